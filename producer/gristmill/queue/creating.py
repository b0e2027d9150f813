"""Jobs come into the store, and are looked at as a whole."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from gristmill.contract import manifest as manifests
from gristmill.contract.failure import CLASSES, FailureClass
from gristmill.contract.keys import JobKeys
from gristmill.contract.lifecycle import TERMINAL, JobState, PauseReason
from gristmill.contract.manifest import Manifest
from gristmill.queue import loader, registry
from gristmill.queue.errors import JobExistsError, JobNotFoundError, StoreFullError
from gristmill.queue.handle import Handle
from gristmill.queue.replies import JobSnapshot, Lease, Role

MAX_BLOCK_SIZE = 4000

_ENCODING_NOTE = "One job of Gristmill, see gristmill.contract.keys. This text is longer than 64 bytes on purpose."
"""A hash with one long value is kept as a table and never as a list, in which every look-up would scan."""


async def create(redis: Redis, manifest: Manifest) -> Handle:
    """Put a job into the store, running. Safe to repeat after a lost reply.

    Raises:
        JobExistsError: another job has its id.
        StoreFullError: the store is at its memory limit.
        ValueError: the manifest's id or block size cannot be used.
    """
    if manifest.block_size % 8 or not 8 <= manifest.block_size <= MAX_BLOCK_SIZE:
        raise ValueError(f"block_size is a multiple of 8 from 8 to {MAX_BLOCK_SIZE}, not {manifest.block_size}")
    keys = JobKeys(manifest.job)
    try:
        reply = await _put(redis, keys, manifest)
    except OutOfMemoryError:
        raise StoreFullError from None
    handle = Handle(redis, keys, manifest.epoch, manifest.block_size)
    handle.see(0, reply[1])
    return handle


async def _put(redis: Redis, keys: JobKeys, manifest: Manifest) -> Any:
    """Announce the job, create it, and have it worked on; the script's reply."""
    await registry.announce_job(redis, manifest.job)
    fields = [word for pair in _fields(manifest).items() for word in pair]
    reply = await loader.call(
        redis, "create", [keys.meta, keys.spec], [manifest.epoch, manifests.encode(manifest), *fields]
    )
    if reply[0] != b"OK":
        raise JobExistsError(manifest.job)
    await registry.keep_job(redis, manifest.job)
    await registry.mark_runnable(redis, manifest.job, manifest.priority)
    return reply


def _fields(manifest: Manifest) -> dict[str, str | int | float]:
    zero = (
        "sealed_runs prod cur cur_run in_flight payload_bytes results_bytes done failed acked attempts prompt_tokens "
        "completion_tokens dup stale missing redelivered progress_at proven done_base failed_base last_claim"
    )
    return {
        "note": _ENCODING_NOTE,
        "format": manifest.format,
        "block_size": manifest.block_size,
        "max_in_flight": manifest.max_in_flight,
        "payload_mark": manifest.payload_mark_bytes,
        "results_mark": manifest.results_mark_bytes,
        "first_alone": manifest.first_alone,
        "max_failures": manifest.max_failures,
        "max_percent": manifest.max_failures_percent,
        "deadline": manifest.deadline_ms,
        "keep": manifest.keep_ms,
        "pool": manifest.pool,
        **dict.fromkeys(zero.split(), 0),
    }


async def attach(redis: Redis, job: str) -> Handle:
    """The handle of a job that is in the store.

    Raises:
        JobNotFoundError: it is not, or is being removed.
        FormatError: another version of Gristmill made it.
    """
    keys = JobKeys(job)
    manifest = await read_manifest(redis, keys)
    epoch: Any
    state: Any
    epoch, state = await redis.hmget(keys.meta, ["epoch", "state"])
    if epoch is None or epoch.decode() != manifest.epoch or state == JobState.DELETING.encode():
        raise JobNotFoundError(job)
    return Handle(redis, keys, manifest.epoch, manifest.block_size)


async def read_manifest(redis: Redis, keys: JobKeys) -> Manifest:
    """The job's manifest.

    Raises:
        JobNotFoundError: no such job.
        FormatError: another version of Gristmill wrote it.
    """
    data = await redis.get(keys.spec)
    if data is None:
        raise JobNotFoundError(keys.job)
    return manifests.decode(data)


async def snapshot(handle: Handle) -> JobSnapshot:
    """One consistent look at the job.

    Raises:
        JobNotFoundError: it was removed.
    """
    keys, floor = handle.keys, handle.version
    reply = await loader.call(handle.redis, "look", [keys.meta, keys.waiting, keys.suspects], [])
    now_ms, waiting, suspects, *flat = reply
    meta = {k.decode(): v for k, v in zip(flat[::2], flat[1::2], strict=True)}
    if meta.get("epoch", b"").decode() != handle.epoch:
        raise JobNotFoundError(keys.job)
    handle.see(floor, int(meta["version"]))
    return _snapshot(handle, meta, now_ms, waiting, suspects)


def _snapshot(handle: Handle, meta: dict[str, Any], now_ms: int, waiting: int, suspects: int) -> JobSnapshot:
    def number(field: str) -> int:
        return int(meta.get(field, 0))

    state = JobState(meta["state"].decode())
    closed = meta["closed"] == b"1"
    feeder = _lease(meta, Role.FEEDER, now_ms)
    begun = "feeder_holder" in meta
    return JobSnapshot(
        job=handle.keys.job,
        epoch=handle.epoch,
        version=number("version"),
        state=state,
        reason=PauseReason(meta["reason"].decode()) if state is JobState.PAUSED and "reason" in meta else None,
        detail=meta.get("detail", b"").decode() if state is JobState.PAUSED else "",
        closed=closed,
        n=number("n") if closed else None,
        sealed_runs=number("sealed_runs"),
        prod=number("prod"),
        cur=number("cur"),
        done=number("done"),
        failed=number("failed"),
        acked=number("acked"),
        in_flight=number("in_flight"),
        waiting=waiting + suspects,
        suspects=suspects,
        payload_bytes=number("payload_bytes"),
        results_bytes=number("results_bytes"),
        payload_mark_bytes=number("payload_mark"),
        results_mark_bytes=number("results_mark"),
        prompt_tokens=number("prompt_tokens"),
        completion_tokens=number("completion_tokens"),
        attempts=number("attempts"),
        by_class=_by_class(meta),
        feeder=feeder,
        fed_by=meta.get("feeder_holder", b"").decode(),
        feeder_lost=begun and feeder is None and not closed and state not in TERMINAL,
        cursor=meta.get("cursor", b""),
        collector=_lease(meta, Role.COLLECTOR, now_ms),
        redelivered=number("redelivered"),
        dup=number("dup"),
        stale=number("stale"),
        missing=number("missing"),
        proven=meta["proven"] == b"1",
        created_at_ms=number("created_at"),
        started_at_ms=number("started_at"),
        finished_at_ms=number("finished_at"),
        now_ms=now_ms,
        deadline_ms=number("deadline"),
        keep_ms=number("keep"),
        pool=meta.get("pool", b"").decode(),
        max_in_flight=number("max_in_flight"),
        progress_at_ms=number("progress_at"),
    )


def _lease(meta: dict[str, Any], role: Role, now_ms: int) -> Lease | None:
    token = meta.get(f"{role}_token")
    left_ms = int(meta.get(f"{role}_until", 0)) - now_ms
    if token is None or left_ms <= 0:
        return None
    return Lease(token.decode(), meta[f"{role}_holder"].decode(), left_ms)


def _by_class(meta: dict[str, Any]) -> dict[FailureClass, int]:
    found = {int(k.removeprefix("class:")): int(v) for k, v in meta.items() if k.startswith("class:")}
    return {CLASSES[code]: count for code, count in sorted(found.items()) if code in CLASSES}
