"""Small jobs for tests of the lease queue, and its usual moves in one word each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from redis.asyncio import Redis

from gristmill.contract import record
from gristmill.contract.failure import FailureClass
from gristmill.contract.manifest import Manifest
from gristmill.queue import LeaseQueue
from gristmill.queue.replies import Claimed, ClaimReply, CommitReply, Finished, Returned, Role, Run, SealReply

FEEDER, COLLECTOR = "feeder-1", "collector-1"
TTL_MS = 3_600_000
_numbers = itertools.count(1)


def frame(index: int, size: int = 40) -> bytes:
    """Recognisable bytes in place of a frame."""
    return b"%d|" % index + b"x" * size


def record_of(index: int, cls: FailureClass | None = None, body: bytes = b"{}") -> bytes:
    """An encoded record of one attempt, 3 prompt and 5 completion tokens."""
    detail = record.Detail(ordinal=index, custom_id=None, fingerprint=b"f" * 16, body=body)
    return record.encode(record.Record(cls=cls, attempts=1, prompt_tokens=3, completion_tokens=5, detail=detail))


async def make_job(redis: Redis, *, leases: bool = True, **options: object) -> LeaseQueue:
    """A new job with its feeder's and collector's leases taken; `first_alone` is off unless given."""
    number = next(_numbers)
    settings = {"name": "test", "first_alone": 0, "block_size": 8} | options
    manifest = Manifest(job=f"job-{number}", epoch=f"e{number}", created_at_ms=0, **settings)
    queue = await LeaseQueue.create(redis, manifest)
    if leases:
        assert (await queue.take_lease(Role.FEEDER, FEEDER, "the feeder", TTL_MS)).granted
        assert (await queue.take_lease(Role.COLLECTOR, COLLECTOR, "the collector", TTL_MS)).granted
    return queue


async def feed(queue: LeaseQueue, run: int, first: int, count: int, *, size: int = 40, images: int = 0) -> SealReply:
    """Stage and seal one run of recognisable frames."""
    fields: dict[bytes | str, bytes] = {str(i): frame(i, size) for i in range(first, first + count)}
    fields |= {f"i:{k:032x}": b"p" * 50 for k in range(images)}
    staged = await queue.stage(FEEDER, fields)
    cursor = b"%d" % (first + count)
    return await queue.seal(
        FEEDER, Run(run=run, first=first, count=count, bytes=staged, fields=len(fields), cursor=cursor)
    )


async def fed_job(redis: Redis, n: int, *, per_run: int = 10, close: bool = True, **options: object) -> LeaseQueue:
    """A job with `n` requests sealed in runs of `per_run`, and closed."""
    queue = await make_job(redis, **options)
    runs = 0
    for first in range(0, n, per_run):
        assert (await feed(queue, runs, first, min(per_run, n - first))).status == "OK"
        runs += 1
    if close:
        assert (await queue.close(runs, n)).status == "OK"
    return queue


async def claim(queue: LeaseQueue, token: str, want: int = 100, **options: object) -> ClaimReply:
    """Claim with a large byte budget; `believed` and `suspects` are off unless given."""
    settings = {"max_bytes": 1 << 30, "ttl_ms": TTL_MS, "believed": False, "suspects": False} | options
    return await queue.claim(token, want, **settings)


async def finish(
    queue: LeaseQueue, token: str, claimed: Iterable[Claimed], cls: FailureClass | None = None
) -> CommitReply:
    """Commit a record for each."""
    return await queue.commit(token, [Finished(c.index, c.run, record_of(c.index, cls)) for c in claimed], [])


async def give_back(
    queue: LeaseQueue, token: str, claimed: Iterable[Claimed], *, delay_ms: int = 0, charged: int = 0
) -> CommitReply:
    """Return each unfinished."""
    return await queue.commit(token, [], [Returned(c.index, c.claim, delay_ms, charged) for c in claimed])


def indices(claimed: Iterable[Claimed]) -> list[int]:
    return [c.index for c in claimed]


async def collect_all(queue: LeaseQueue, token: str = COLLECTOR) -> dict[int, bytes]:
    """Read and ack everything that is there; gives the records by index."""
    got: dict[int, bytes] = {}
    while blocks := await queue.read_blocks(1 << 20):
        for records in blocks.values():
            got |= records
        reply = await queue.ack(token, {block: list(records) for block, records in blocks.items()})
        assert reply.acked > 0, "an ack that frees nothing would loop for ever"
    return got
