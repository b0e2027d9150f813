"""The worker's side: claim indices, read their frames, commit records, keep the lease.

Nothing here is done per request but building the arguments of one command: a batch of 128 costs a few round trips.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gristmill.contract.keys import JobKeys, image_field
from gristmill.contract.lifecycle import JobState
from gristmill.queue import registry
from gristmill.queue.connection import sent_once
from gristmill.queue.handle import Handle
from gristmill.queue.loader import Arg
from gristmill.queue.replies import (
    Claimed,
    ClaimReply,
    ClaimStatus,
    CommitReply,
    CommitStatus,
    Finished,
    ReapReply,
    ReapStatus,
    RenewReply,
    RenewStatus,
    Returned,
)

MAX_CLAIM = 1000
MAX_BATCH = 900
"""Most records and returns of one commit: Lua passes no more than some thousand arguments on."""

MAX_COMMIT_BYTES = 16 << 20


async def claim(
    handle: Handle,
    token: str,
    want: int,
    max_bytes: int,
    ttl_ms: int,
    *,
    believed: bool,
    suspects: bool,
    only_suspects: bool = False,
    company: int = MAX_CLAIM,
) -> ClaimReply:
    """Hand `token` up to `want` indices, `company` of them at most when they are suspects; see scripts/claim.lua.

    Never sent twice by the client itself: a claim whose reply was lost may have handed out indices that nobody knows
    of, so the error reaches the caller, who looks at `held` before going on.
    """
    keys = handle.keys
    names = [keys.meta, keys.workers, keys.held(token), keys.waiting, keys.suspects, keys.history, keys.done, keys.runs]
    kinds = 2 if only_suspects else int(suspects)
    args = (token, min(want, MAX_CLAIM), max_bytes, ttl_ms, int(believed), kinds, company)
    while True:
        with sent_once():
            reply = await handle.call("claim", names, *args, version_at=2)
        if reply[0] != b"AGAIN":
            return _claim_reply(reply)


def _claim_reply(reply: list[Any]) -> ClaimReply:
    status, state, version, alone, full, suspects, number, ranges = reply[:8]
    claimed: list[Claimed] = []
    single_at = 8 + 3 * ranges
    for i in range(single_at, len(reply), 6):
        index, run, attempts, crashes, kind, first_ms = reply[i : i + 6]
        claimed.append(Claimed(index, run, number, attempts, crashes, kind == 1, kind == 2, first_ms))
    for i in range(8, single_at, 3):
        run, first, count = reply[i : i + 3]
        claimed += [Claimed(index, run, number) for index in range(first, first + count)]
    return ClaimReply(
        ClaimStatus(status.decode()), JobState(state.decode()), version, claimed, alone == 1, full == 1, suspects
    )


async def fetch(handle: Handle, claimed: Sequence[Claimed]) -> list[bytes | None]:
    """The frames of `claimed`, in its order; None where the store has none."""
    places: dict[int, list[int]] = {}
    for place, item in enumerate(claimed):
        places.setdefault(item.run, []).append(place)
    async with handle.redis.pipeline(transaction=False) as pipe:
        for run, at in places.items():
            pipe.hmget(handle.keys.payload(run), [claimed[i].index for i in at])
        replies = await pipe.execute()
    frames: list[bytes | None] = [None] * len(claimed)
    for at, values in zip(places.values(), replies, strict=True):
        for place, value in zip(at, values, strict=True):
            frames[place] = value
    return frames


async def fetch_images(handle: Handle, run: int, digests: Sequence[str]) -> list[bytes | None]:
    """Pictures of a run by their hex digests, in order; None where the store has none."""
    if not digests:
        return []
    images: Any = await handle.redis.hmget(handle.keys.payload(run), [image_field(digest) for digest in digests])
    return list(images)


async def commit(handle: Handle, token: str, finished: Sequence[Finished], returned: Sequence[Returned]) -> CommitReply:
    """Give back records and unfinished indices; see scripts/commit.lua. Safe to repeat.

    Large batches go in several calls; the reply is their sum, and the state that of the last.
    """
    total: CommitReply | None = None
    for some, back in _batches(finished, returned):
        names, args = encode_commit(handle.keys, handle.block_size, token, some, back)
        reply = _commit_reply(await handle.call("commit", names, *args, version_at=2))
        total = reply if total is None else _sum(total, reply)
    assert total is not None  # _batches gives at least one
    if total.complete:
        await registry.unmark_runnable(handle.redis, handle.keys.job)
    return total


def _batches(
    finished: Sequence[Finished], returned: Sequence[Returned]
) -> Iterator[tuple[Sequence[Finished], Sequence[Returned]]]:
    start = size = 0
    for i, item in enumerate(finished):
        size += len(item.record)
        if i > start and (i - start == MAX_BATCH or size > MAX_COMMIT_BYTES):
            yield finished[start:i], ()
            start, size = i, len(item.record)
    yield finished[start:], returned[:MAX_BATCH]
    for i in range(MAX_BATCH, len(returned), MAX_BATCH):
        yield (), returned[i : i + MAX_BATCH]


def encode_commit(
    keys: JobKeys, block_size: int, token: str, finished: Sequence[Finished], returned: Sequence[Returned]
) -> tuple[list[str], list[Arg]]:
    """KEYS and ARGV (after the epoch) of scripts/commit.lua."""
    groups: dict[tuple[int, int], list[Arg]] = {}
    for item in finished:
        group = (item.index // block_size, item.run)
        try:
            groups[group] += (item.index, item.record)
        except KeyError:
            groups[group] = [item.index, item.record]
    names = [
        keys.meta, keys.done, keys.held(token), keys.waiting, keys.suspects, keys.history, keys.unacked, keys.failures,
    ]  # fmt: skip
    args: list[Arg] = [token, len(groups)]
    blocks: dict[int, int] = {}
    runs: dict[int, int] = {}
    for (block, run), words in groups.items():
        if block not in blocks:
            names.append(keys.block(block))
            blocks[block] = len(names)
        if run not in runs:
            names.append(keys.payload(run))
            runs[run] = len(names)
        args += (block, blocks[block], runs[run], len(words) // 2)
        args += words
    args.append(len(returned))
    for back in returned:
        args += (back.index, back.claim, back.delay_ms, "m" if back.missing else int(back.charged))
    return names, args


def _commit_reply(reply: list[Any]) -> CommitReply:
    status, state, version, new, dup, stale, ahead, complete = reply
    return CommitReply(
        CommitStatus(status.decode()), JobState(state.decode()), version, new, dup, stale, ahead, complete == 1
    )


def _sum(a: CommitReply, b: CommitReply) -> CommitReply:
    return CommitReply(
        b.status, b.state, b.version, a.new + b.new, a.dup + b.dup, a.stale + b.stale, a.ahead + b.ahead, b.complete
    )


async def renew(handle: Handle, token: str, ttl_ms: int) -> RenewReply:
    """Prolong the token's lease to `ttl_ms` from now; see scripts/renew.lua."""
    keys = handle.keys
    names = [keys.meta, keys.workers, keys.held(token)]
    status, state, version, count = await handle.call("renew", names, token, ttl_ms, version_at=2)
    return RenewReply(RenewStatus(status.decode()), JobState(state.decode()), version, count)


async def held(handle: Handle, token: str) -> dict[int, int]:
    """What the store says the token holds: index -> claim number."""
    pairs = await handle.redis.hgetall(handle.keys.held(token))
    return {int(index): abs(int(number)) for index, number in pairs.items()}


async def tokens(handle: Handle) -> dict[str, int]:
    """Worker tokens with a lease on the job -> its deadline, ms of the store's clock."""
    rows: Any = await handle.redis.zrange(handle.keys.workers, 0, -1, withscores=True)
    return {token.decode(): int(deadline) for token, deadline in rows}


async def reap(handle: Handle, token: str, *, force: bool, crashed: bool, delay_ms: int = 0) -> ReapReply:
    """End a token's lease and put back what it held; see scripts/reap.lua."""
    names, args = _reap_words(handle.keys, token, force=force, crashed=crashed, delay_ms=delay_ms)
    return _reap_reply(await handle.call("reap", names, *args, version_at=1))


async def reap_expired(handle: Handle) -> int:
    """End every lease that has run out by the store's clock, without blame; gives how many.

    After an outage of the store nobody could renew: wait one whole TTL before calling this.
    """
    all_tokens = list(await tokens(handle))
    if not all_tokens:
        return 0
    calls = [_reap_words(handle.keys, t, force=False, crashed=False, delay_ms=0) for t in all_tokens]
    replies = await handle.call_each("reap", calls, version_at=1)
    return sum(reply[0] == b"OK" for reply in replies)


def _reap_words(
    keys: JobKeys, token: str, *, force: bool, crashed: bool, delay_ms: int
) -> tuple[list[str], tuple[Arg, ...]]:
    names = [keys.meta, keys.workers, keys.held(token), keys.waiting, keys.suspects, keys.history, keys.done]
    return names, (token, int(force), int(crashed), delay_ms)


def _reap_reply(reply: list[Any]) -> ReapReply:
    status, version, moved, suspects, poisoned = reply
    return ReapReply(ReapStatus(status.decode()), version, moved, suspects, poisoned)
