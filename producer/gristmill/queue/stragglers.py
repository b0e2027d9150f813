"""The requests of a job that were started and have no result yet, and how an operator gives one up.

It costs the store a few commands for each worker, and reads what every worker holds: for people who look at a job, not
for anything that runs all the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gristmill.contract import frame as frames
from gristmill.contract import record as records
from gristmill.contract.failure import FailureClass
from gristmill.queue import working
from gristmill.queue.handle import Handle
from gristmill.queue.replies import Claimed, CommitReply, Finished

_AT_ONCE = 1000
OPERATOR = "operator"
"""The token under which records of given-up requests are committed; it never holds anything."""


class Straggler(msgspec.Struct, frozen=True):
    """One request without a result.

    Attributes:
        index: of the request.
        first_ms: when it was first claimed, ms of the store's clock.
        attempts: charged so far, without the one that may be under way.
        holder: the worker's token; empty while it waits for another attempt.
    """

    index: int
    first_ms: int
    attempts: int
    holder: str


async def find(handle: Handle, *, started_before_ms: int | None = None, most: int | None = None) -> list[Straggler]:
    """Started requests without a result, the oldest first.

    Args:
        started_before_ms: only those that were first claimed before that.
        most: no more than so many.
    """
    keys, redis = handle.keys, handle.redis
    places: dict[int, tuple[int, str]] = {}
    for key in (keys.waiting, keys.suspects):
        rows: Any = await redis.zrange(key, 0, -1)
        places |= {int(row): (0, "") for row in rows}
    for token in await working.tokens(handle):
        held = await working.held(handle, token)
        places |= {index: (claim, token) for index, claim in held.items()}
    found = []
    indices = list(places)
    for start in range(0, len(indices), _AT_ONCE):
        part = indices[start : start + _AT_ONCE]
        async with redis.pipeline(transaction=False) as pipe:
            pipe.hmget(keys.history, [str(i) for i in part])
            for index in part:  # one that another has answered may still be held
                pipe.getbit(keys.done, index)
            texts, *done = await pipe.execute()
        for index, text, is_done in zip(part, texts, done, strict=True):
            if is_done:
                continue
            attempts, first_ms = _history(text)
            claim, holder = places[index]
            found.append(Straggler(index, first_ms or claim, attempts, holder))
    if started_before_ms is not None:
        found = [s for s in found if s.first_ms < started_before_ms]
    return sorted(found, key=lambda s: (s.first_ms, s.index))[:most]


def _history(text: bytes | None) -> tuple[int, int]:
    """(charged attempts, ms of the first claim); see scripts/_past.lua."""
    if text is None:
        return 0, 0
    attempts, *_, first_ms = text.split(b",")
    return int(attempts), int(first_ms)


async def requests(handle: Handle, indices: Sequence[int]) -> dict[int, tuple[int, frames.Frame]]:
    """The payload run and the frame of each index; those that have a result meanwhile are left out."""
    claimed = [Claimed(index, await _run_of(handle, index), 0) for index in indices]
    texts = await working.fetch(handle, claimed)
    return {c.index: (c.run, frames.decode(text)) for c, text in zip(claimed, texts, strict=True) if text is not None}


async def _run_of(handle: Handle, index: int) -> int:
    rows: Any = await handle.redis.zrange(handle.keys.runs, index, 0, desc=True, byscore=True, offset=0, num=1)
    return int(rows[0].partition(b",")[0])


async def give_up(handle: Handle, stragglers: Sequence[Straggler], why: str) -> CommitReply:
    """Fail `stragglers` for good, as class `cancelled`, with `why`; answers that have come meanwhile are kept.

    A worker that holds one learns nothing of it: its answer comes second and is dropped, and when that was all that the
    job waited for, the job is complete and the call is cut.
    """
    attempts = {s.index: s.attempts + (1 if s.holder else 0) for s in stragglers}
    finished = []
    for index, (run, frame) in (await requests(handle, list(attempts))).items():
        detail = records.Detail(frame.ordinal, frame.custom_id, frame.fingerprint, message=why)
        record = records.Record(FailureClass.CANCELLED, attempts[index], 0, 0, detail)
        finished.append(Finished(index, run, records.encode(record)))
    return await working.commit(handle, OPERATOR, finished, ())
