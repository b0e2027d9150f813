"""The feeder's side: bytes are staged by plain commands, then one small script takes the whole run or nothing."""

from __future__ import annotations

from collections.abc import Mapping

from redis.exceptions import OutOfMemoryError

from gristmill.contract.lifecycle import JobState
from gristmill.queue.errors import StoreFullError
from gristmill.queue.handle import Handle
from gristmill.queue.replies import CloseReply, CloseStatus, Run, SealReply, SealStatus

STAGE_TTL_S = 600
CHUNK_BYTES = 1 << 20
"""Most bytes of one HSET (a single larger value goes alone), so that no command holds up the store for long."""


async def stage(handle: Handle, token: str, fields: Mapping[bytes | str, bytes]) -> int:
    """Lay a run's fields ready for `seal`, in place of whatever this token had staged; gives the sum of the bytes.

    Raises:
        StoreFullError: the store is at its memory limit; stage again later.
    """
    key, total, chunk_bytes = handle.keys.stage(token), 0, 0
    chunk: list[bytes | str] = []
    async with handle.redis.pipeline(transaction=False) as pipe:
        pipe.unlink(key)
        for field, value in fields.items():
            if chunk and chunk_bytes + len(value) > CHUNK_BYTES:
                pipe.execute_command("HSET", key, *chunk)
                chunk, chunk_bytes = [], 0
            chunk += (field, value)
            chunk_bytes += len(value)
            total += len(value)
        if chunk:
            pipe.execute_command("HSET", key, *chunk)
        pipe.expire(key, STAGE_TTL_S)
        replies = await pipe.execute(raise_on_error=False)  # else the library puts the command into the error's text
    for reply in replies:
        if isinstance(reply, OutOfMemoryError):
            raise StoreFullError
        if isinstance(reply, Exception):
            raise reply
    return total


async def seal(handle: Handle, token: str, run: Run) -> SealReply:
    """Take the staged run into the job; see scripts/seal.lua for every status.

    Raises:
        ValueError: a run without requests.
    """
    if run.count < 1:
        raise ValueError("a run holds at least one request")
    keys = handle.keys
    names = [keys.meta, keys.stage(token), keys.payload(run.run), keys.runs]
    args = (token, run.run, run.first, run.count, run.bytes, run.fields, run.cursor)
    try:
        status, state, version, runs, held, mark, cursor = await handle.call("seal", names, *args, version_at=2)
    except OutOfMemoryError:
        return SealReply(SealStatus.FULL, JobState.RUNNING, handle.version)
    return SealReply(SealStatus(status.decode()), JobState(state.decode()), version, runs, held, mark, cursor)


async def close(handle: Handle, runs: int, n: int) -> CloseReply:
    """Say that the input has ended after `runs` runs and `n` requests; see scripts/close.lua."""
    keys = handle.keys
    status, state, version, sealed, count = await handle.call("close", [keys.meta, keys.done], runs, n, version_at=2)
    return CloseReply(CloseStatus(status.decode()), JobState(state.decode()), version, sealed, count)
