"""What feeder tests share: inputs, jobs, a worker's and a collector's hands, and ways to disturb."""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from gristmill.contract import frame, record
from gristmill.contract.manifest import Manifest
from gristmill.intake.feeder import FeedResult, feed
from gristmill.intake.lines_seen import Notice
from gristmill.intake.options import EncodeOptions
from gristmill.intake.source import identify
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import Claimed, CloseReply, Finished, Role, Run, SealReply, SealStatus
from tests.support.wait import wait_until

Fetched = tuple[Claimed, frame.Frame]


def write(path: Path, lines: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def prompts(count: int, size: int = 20) -> list[dict[str, str]]:
    return [{"custom_id": f"c{i}", "prompt": f"{i} ".ljust(size, "x")} for i in range(count)]


async def new_job(redis: Redis, **more: Any) -> LeaseQueue:
    job = f"j{secrets.token_hex(4)}"
    manifest = Manifest(job=job, epoch=secrets.token_hex(4), name="n", created_at_ms=1, **{"first_alone": 0, **more})
    return await LeaseQueue.create(redis, manifest)


async def run(queue: Any, path: Path, options: EncodeOptions = EncodeOptions(), **more: Any) -> FeedResult:
    notices: list[Notice] = more.pop("notices", [])
    plan, token = more.pop("plan", None), more.pop("token", "f1")
    return await feed(queue, identify(path), options, plan, token, "here", notices.append, **more)


async def claimed(queue: LeaseQueue, token: str = "w1") -> list[Fetched]:
    """Everything that can be claimed now, with its frames; a frame that is missing fails the test."""
    found: list[Fetched] = []
    while batch := (await queue.claim(token, 500, 1 << 30, 30_000, believed=False, suspects=True)).claimed:
        for item, data in zip(batch, await queue.fetch(batch), strict=True):
            assert data is not None
            found.append((item, frame.decode(data)))
    return found


async def finish(queue: LeaseQueue, token: str, items: Iterable[Fetched]) -> None:
    records = [
        Finished(
            c.index,
            c.run,
            record.encode(record.Record(None, 1, 1, 1, record.Detail(f.ordinal, f.custom_id, f.fingerprint))),
        )
        for c, f in items
    ]
    if records:
        await queue.commit(token, records, [])


async def drain(queue: LeaseQueue, wanted: int, token: str = "w1") -> list[Fetched]:
    """Work like a worker and a collector until `wanted` requests are done."""
    found: list[Fetched] = []
    await queue.take_lease(Role.COLLECTOR, "col", "here", 60_000)

    async def turn() -> bool:
        batch = await claimed(queue, token)
        await finish(queue, token, batch)
        found.extend(batch)
        blocks = await queue.read_blocks(1 << 30)
        if blocks:
            await queue.ack("col", {block: list(records) for block, records in blocks.items()})
        return len(found) >= wanted

    await wait_until(turn, description=f"{wanted} requests done")
    return found


def in_order(found: list[Fetched]) -> list[frame.Frame]:
    return [item for _, item in sorted(found, key=lambda pair: pair[0].index)]


class Hooked:
    """A queue whose `seal` and `stage` pass through a test's hands."""

    def __init__(self, queue: LeaseQueue) -> None:
        self.queue = queue
        self.staged = 0
        self.sealed: list[SealStatus] = []
        self.before_seal: Callable[[Run], Awaitable[None]] | None = None
        self.after_seal: Callable[[SealReply], Awaitable[None]] | None = None
        self.before_close: Callable[[], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)

    async def stage(self, token: str, fields: Any) -> int:
        self.staged += 1
        return await self.queue.stage(token, fields)

    async def seal(self, token: str, sealed: Run) -> SealReply:
        if self.before_seal is not None:
            await self.before_seal(sealed)
        reply = await self.queue.seal(token, sealed)
        self.sealed.append(reply.status)
        if self.after_seal is not None:
            await self.after_seal(reply)
        return reply

    async def close(self, runs: int, n: int) -> CloseReply:
        if self.before_close is not None:
            await self.before_close()
        return await self.queue.close(runs, n)


class Past:
    """An earlier state of a job's keys, to which the store can be thrown back."""

    def __init__(self, redis: Redis, pattern: str) -> None:
        self._redis = redis
        self._pattern = pattern
        self._keys: dict[bytes, bytes] = {}

    async def keep(self) -> None:
        self._keys = {key: await self._redis.dump(key) async for key in self._redis.scan_iter(self._pattern)}

    async def restore(self) -> None:
        await self._redis.delete(*[key async for key in self._redis.scan_iter(self._pattern)])
        for key, value in self._keys.items():
            await self._redis.restore(key, 0, value)


class FakePlan:
    """Knows some custom_ids as finished; checks the order of calls that the protocol promises."""

    def __init__(self, finished: set[str]) -> None:
        self.finished = set(finished)
        self.taken: set[str] = set()
        self.carried: list[tuple[int, str]] = []
        self.flushed = 0

    def take(self, custom_id: str | None, fingerprint: bytes) -> str | None:
        assert len(fingerprint) == 16
        if custom_id is None or custom_id not in self.finished - self.taken:
            return None
        self.taken.add(custom_id)
        return custom_id

    def carry(self, ordinal: int, carried: str) -> None:
        assert carried in self.taken
        assert not self.carried or self.carried[-1][0] < ordinal
        self.carried.append((ordinal, carried))

    def flush(self) -> None:
        self.flushed = len(self.carried)

    def rewind(self, carried_count: int) -> None:
        assert carried_count <= self.flushed
        del self.carried[carried_count:]
        self.taken = {custom_id for _, custom_id in self.carried}
