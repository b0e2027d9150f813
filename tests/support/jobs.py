"""Jobs of real frames, sealed straight from the test, and a worker's mill that runs them in the test's loop."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from gristmill.contract import frame as frames
from gristmill.contract import record as records
from gristmill.contract.frame import Frame, Request
from gristmill.contract.manifest import Manifest
from gristmill.contract.record import Record
from gristmill.queue import LeaseQueue
from gristmill.queue.replies import CloseStatus, Role, Run, SealStatus
from gristmilld.clock import monotonic_s
from gristmilld.config import EndpointConfig
from gristmilld.meter import WorkerMetrics
from gristmilld.upstream.client import UpstreamClient
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.pool import EndpointPool
from gristmilld.worker.attempt import Caller
from gristmilld.worker.main import session_opener
from gristmilld.worker.mill import Mill
from gristmilld.worker.payload import Payloads
from gristmilld.worker.roster import Roster

COLLECTOR = "collector"


def chat(ordinal: int, text: str = "", **body: Any) -> Request:
    """A chat request of one user message; without a text it says its ordinal."""
    message = {"role": "user", "content": text or f"request {ordinal}"}
    data = json.dumps({"model": "standin", "messages": [message], **body}).encode()
    digest = hashlib.blake2b(data, digest_size=16).digest()
    return Request(ordinal, f"c{ordinal}", digest, "/chat/completions", [data], [])


async def sealed_job(
    redis: Redis,
    requests: Sequence[Frame],
    *,
    run_size: int = 64,
    images: dict[str, bytes] | None = None,
    **changes: Any,
) -> LeaseQueue:
    """A closed job of `requests`, ready to be worked on; `images` (digest -> bytes) are put into every run."""
    job = f"t-{uuid.uuid4().hex[:8]}"
    manifest = Manifest(**{"job": job, "epoch": uuid.uuid4().hex, "name": job, "created_at_ms": 0, **changes})
    queue = await LeaseQueue.create(redis, manifest)
    assert (await queue.take_lease(Role.FEEDER, "feeder", "test", 60_000)).granted
    runs = 0
    for first in range(0, len(requests), run_size):
        part = requests[first : first + run_size]
        fields: dict[bytes | str, bytes] = {str(first + i): frames.encode(r) for i, r in enumerate(part)}
        fields |= {f"i:{digest}": data for digest, data in (images or {}).items()}
        size = await queue.stage("feeder", fields)
        run = Run(run=runs, first=first, count=len(part), bytes=size, fields=len(fields), cursor=b"")
        assert (await queue.seal("feeder", run)).status is SealStatus.OK
        runs += 1
    assert (await queue.close(runs, len(requests))).status is CloseStatus.OK
    await queue.release_lease(Role.FEEDER, "feeder")
    return queue


async def results(queue: LeaseQueue) -> dict[int, Record]:
    """Every record that has not been acked, by index."""
    blocks = await queue.read_blocks(1 << 30)
    return {i: records.decode(data) for block in blocks.values() for i, data in block.items()}


class Worker:
    """A mill in the test's loop, with the parts that a worker process gives it.

    Attributes:
        mill: claims and dispatches.
        roster: its jobs.
        pool: its endpoints.
    """

    def __init__(
        self, redis: Redis, client: UpstreamClient, urls: Sequence[str], *, prefix: str, **options: Any
    ) -> None:
        configs = [EndpointConfig(name=f"e{i}", url=url) for i, url in enumerate(urls)]
        self.pool = EndpointPool(Endpoint(c) for c in configs)
        meter = WorkerMetrics()
        opener = session_opener(self.pool, prefix, options.pop("lease_ttl_s", 30.0), meter)
        self.roster = Roster(redis, options.pop("pool", "default"), opener, monotonic_s)
        payloads = Payloads(options.pop("allowed_roots", ()), options.pop("picture_bytes", 64 << 20))
        settings: dict[str, Any] = {"slots": 32, "max_bytes": 64 << 20, "clock": monotonic_s, **options}
        self.mill = Mill(self.roster, payloads, Caller(client, self.pool, meter), meter=meter, **settings)


@asynccontextmanager
async def worker(
    redis: Redis, *urls: str, prefix: str = "d.0.0", drain_s: float = 5.0, **options: Any
) -> AsyncIterator[Worker]:
    """A running worker; it drains within `drain_s` when the context ends."""
    async with UpstreamClient(options.get("slots", 32)) as client:
        one = Worker(redis, client, urls, prefix=prefix, **options)
        pumping = asyncio.create_task(one.mill.run())
        try:
            yield one
        finally:
            one.mill.stop()
            await pumping
            await one.mill.drain(drain_s)
