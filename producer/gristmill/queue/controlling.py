"""Whoever steers a job: its life, and the leases of its one feeder and one collector."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis

from gristmill.contract.keys import JobKeys
from gristmill.contract.lifecycle import Event, JobState, PauseReason
from gristmill.queue import feedstats, registry
from gristmill.queue.creating import read_manifest
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.handle import Handle
from gristmill.queue.loader import Arg
from gristmill.queue.replies import ControlReply, ControlStatus, LeaseReply, Role

FREE_RUNS_AT_ONCE = 200
UNLINK_AT_ONCE = 500
_NEVER_SENT_AGAIN = (JobState.CANCELLED, JobState.EXPIRED)


async def control(
    handle: Handle, event: Event, reason: str = "", detail: str = "", *, force: bool = False
) -> ControlReply:
    """Send one event of the life of a job; see scripts/ctl.lua."""
    names = [handle.keys.meta, handle.keys.done]
    reply = await handle.call("ctl", names, event.value, reason, detail, int(force), version_at=2)
    status, state, version, in_flight = reply
    return ControlReply(ControlStatus(status.decode()), JobState(state.decode()), version, in_flight)


async def pause(handle: Handle, reason: PauseReason, detail: str) -> ControlReply:
    """Hand out nothing more; what is in flight may finish. A newer reason replaces an older one."""
    return await control(handle, Event.PAUSE, reason.value, detail)


async def resume(handle: Handle, *, proven: bool = False) -> ControlReply:
    """Go on; the setup has to be proven again, unless it is said to be, and the failure budget starts anew."""
    reply = await control(handle, Event.RESUME, "proven" if proven else "")
    if reply.status is ControlStatus.OK and reply.state is JobState.RUNNING:
        manifest = await read_manifest(handle.redis, handle.keys)
        await registry.mark_runnable(handle.redis, handle.keys.job, manifest.priority)
    return reply


async def cancel(handle: Handle) -> ControlReply:
    """Hand out nothing more and end once nothing is in flight; what is in flight may still finish."""
    reply = await control(handle, Event.CANCEL)
    await _after_end(handle, reply)
    return reply


async def settle(handle: Handle, *, force: bool = False) -> ControlReply:
    """End a job that is being cancelled, at once with `force`, and free its payload.

    Call it again for a cancelled or expired job that still holds payload bytes: whoever freed them has died.
    """
    reply = await control(handle, Event.SETTLE, force=force)
    await _after_end(handle, reply)
    return reply


async def expire(handle: Handle) -> ControlReply:
    """The deadline has passed: nothing more is sent, finished work is kept, the payload is freed."""
    reply = await control(handle, Event.EXPIRE)
    await _after_end(handle, reply)
    return reply


async def _after_end(handle: Handle, reply: ControlReply) -> None:
    if reply.status is ControlStatus.GONE or reply.state not in _NEVER_SENT_AGAIN:
        return
    await registry.unmark_runnable(handle.redis, handle.keys.job)
    keys = handle.keys
    runs = int(await handle.redis.hget(keys.meta, "sealed_runs") or 0)
    for start in range(0, max(runs, 1), FREE_RUNS_AT_ONCE):
        payload = [keys.payload(run) for run in range(start, min(start + FREE_RUNS_AT_ONCE, runs))]
        names = [keys.meta, keys.waiting, keys.suspects, keys.history, *payload]
        await handle.call("free", names, version_at=2)


async def remove(handle: Handle) -> None:
    """Take the job out of the store, whatever its state; uncollected results go with it. Safe to repeat.

    The state says `deleting` first, so that every other client stops; the job's hash goes last but for its row in the
    list of jobs, so that whoever dies on the way leaves something that can be found and removed.
    """
    keys, redis = handle.keys, handle.redis
    await control(handle, Event.DELETE)
    if await redis.hget(keys.meta, "epoch") not in (None, handle.epoch.encode()):
        return  # another incarnation has the id now; its keys are not ours
    await registry.unmark_runnable(redis, keys.job)
    server = ""
    while server != (server := await _server(redis)):  # a cursor means nothing to the server that takes over
        await _unlink_all_but_meta(redis, keys)
    await redis.unlink(keys.meta)
    await feedstats.forget(redis, keys.job)
    await registry.forget_job(redis, keys.job)


async def _unlink_all_but_meta(redis: Redis, keys: JobKeys) -> None:
    meta, chunk = keys.meta.encode(), []
    async for key in redis.scan_iter(match=keys.pattern, count=1000):
        if key != meta:
            chunk.append(key)
        if len(chunk) >= UNLINK_AT_ONCE:
            await redis.unlink(*chunk)
            chunk = []
    if chunk:
        await redis.unlink(*chunk)


async def _server(redis: Redis) -> str:
    """Which run of which server answers."""
    return str((await redis.info("server")).get("run_id", "?"))


async def finish_removal(redis: Redis, job: str) -> bool:
    """Remove what is left of a job whose removal has died half way; whether there was such a one.

    It says `deleting`, so nobody can attach to it any more.
    """
    try:
        keys = JobKeys(job)
    except ValueError:  # no job can have such a name
        return False
    found: Any = await redis.hmget(keys.meta, ["epoch", "state"])
    epoch, state = found
    if epoch is None or state != JobState.DELETING.encode():
        return False
    await remove(Handle(redis, keys, epoch.decode(), block_size=1))
    return True


async def take_lease(
    handle: Handle, role: Role, token: str, holder: str, ttl_ms: int, *, force: bool = False
) -> LeaseReply:
    """Take the job's feeder or collector lease, from a live holder only with `force`; see scripts/lease.lua.

    Raises:
        JobNotFoundError: the job was removed.
    """
    return await _lease(handle, role, "take", token, holder, ttl_ms, int(force))


async def renew_lease(handle: Handle, role: Role, token: str, ttl_ms: int) -> bool:
    """Prolong it; False when another token holds it, or nobody does.

    Raises:
        JobNotFoundError: the job was removed.
    """
    return (await _lease(handle, role, "renew", token, "", ttl_ms, 0)).granted


async def release_lease(handle: Handle, role: Role, token: str) -> None:
    """Give it back; nothing happens when the token does not hold it, or the job is gone."""
    try:
        await _lease(handle, role, "release", token, "", 0, 0)
    except JobNotFoundError:
        return


async def _lease(handle: Handle, role: Role, op: str, *args: Arg) -> LeaseReply:
    reply = await handle.call("lease", [handle.keys.meta], role.value, op, *args, version_at=1)
    status, version, granted, holder, expires_in_ms = reply
    if status != b"OK":
        raise JobNotFoundError(handle.keys.job)
    return LeaseReply(granted == 1, holder.decode(), expires_in_ms, version)
