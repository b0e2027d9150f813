"""The feeder against a real store and queue: exactly the input's lines are in it, whatever happens on the way."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as StoreGoneError
from tests.support.pictures import exif, quarters, saved, turned
from tests.support.store import StoreProcess
from tests.support.wait import wait_until

from gristmill.contract import frame, record
from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import JobState
from gristmill.contract.manifest import Manifest
from gristmill.intake import feeder, feeder_store
from gristmill.intake.errors import FeedError, InputError
from gristmill.intake.feeder import FeedResult, feed
from gristmill.intake.lines_seen import Notice
from gristmill.intake.options import EncodeOptions
from gristmill.intake.runs import Cursor
from gristmill.intake.source import identify
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import Claimed, Finished, Role, Run, SealReply, SealStatus
from gristmill.queue.store import connect

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


async def test_every_line_becomes_one_request(redis: Redis, tmp_path: Path) -> None:
    """Indices and ordinals are dense and in input order; blank lines are none; the job is closed with its n."""
    path = write(tmp_path / "in", prompts(700))
    path.write_text(path.read_text().replace("\n", "\n\n", 5))
    queue = await new_job(redis)
    result = await run(queue, path)
    assert (result.lines, result.sealed, result.carried, result.closed) == (700, 700, 0, True)
    found = await claimed(queue)
    assert [c.index for c, _ in found] == list(range(700))
    frames = in_order(found)
    assert [f.ordinal for f in frames] == list(range(700))
    assert [f.custom_id for f in frames] == [f"c{i}" for i in range(700)]
    assert [f.line for f in frames[:8]] == [1, 3, 5, 7, 9, 11, 12, 13]
    snapshot = await queue.snapshot()
    assert (snapshot.closed, snapshot.n, snapshot.feeder) == (True, 700, None)
    assert Cursor.decode(snapshot.cursor).offset == path.stat().st_size
    assert found[0][0].run == 0
    assert sum(1 for c, _ in found if c.run == 0) == 16


async def test_empty_input_completes_the_job(redis: Redis, tmp_path: Path) -> None:
    """No line, no request, and still an end."""
    queue = await new_job(redis)
    result = await run(queue, write(tmp_path / "in", []))
    assert result.closed
    assert (await queue.snapshot()).state is JobState.COMPLETE


async def test_pictures_are_stored_once_a_run(redis: Redis, tmp_path: Path) -> None:
    """Lines that share pictures share their bytes; each frame finds its pictures in its own run."""
    (tmp_path / "a.png").write_bytes(saved(quarters(), "PNG"))
    (tmp_path / "b.jpg").write_bytes(saved(turned(6), "JPEG", exif=exif(6)))
    path = write(tmp_path / "in", [{"prompt": str(i), "images": ["a.png", "b.jpg", "a.png"]} for i in range(30)])
    queue = await new_job(redis)
    assert (await run(queue, path)).sealed == 30
    for run_number in (0, 1):
        fields = await redis.hkeys(queue.keys.payload(run_number))
        assert sum(1 for field in fields if field.startswith(b"i:")) == 2
    for item, made in await claimed(queue):
        assert isinstance(made, frame.Request)
        blobs = await queue.fetch_images(item.run, [image.sha for image in made.images])
        assert [len(blob or b"") for blob in blobs] == [image.size for image in made.images]


async def test_full_hopper_waits_and_repeats_only_the_seal(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the mark the stage stays, the lease is renewed beyond its time, the wait is told, and the rest follows."""
    monkeypatch.setattr(feeder_store, "LEASE_TTL_MS", 600)
    monkeypatch.setattr(feeder_store, "_TELL_AFTER_S", 0.1)
    monkeypatch.setattr(feeder_store, "_LONGEST_WAIT_S", 0.1)
    path = write(tmp_path / "in", prompts(600, size=2000))
    queue = Hooked(await new_job(redis, payload_mark_bytes=300_000))
    notices: list[Notice] = []
    feeding = asyncio.create_task(run(queue, path, notices=notices))
    await wait_until(lambda: queue.sealed.count(SealStatus.FULL) > 10, description="the hopper is full for a while")
    assert queue.staged == queue.sealed.count(SealStatus.OK) + 1
    lease = (await queue.snapshot()).feeder
    assert lease is not None
    assert lease.token == "f1"
    assert any("as much as it may" in notice.text for notice in notices)
    found = await drain(queue.queue, 600)
    assert (await feeding).sealed == 600
    assert queue.staged == queue.sealed.count(SealStatus.OK)
    assert [f.ordinal for f in in_order(found)] == list(range(600))
    assert any(notice.kind == "going_on" for notice in notices)


async def test_stopped_feeder_is_resumed_by_the_next(redis: Redis, tmp_path: Path) -> None:
    """A cancelled feeder gives its lease back at once; the next goes on at the cursor, with nothing twice or lost."""
    path = write(tmp_path / "in", prompts(900, size=1000))
    queue = Hooked(await new_job(redis, payload_mark_bytes=250_000))
    feeding = asyncio.create_task(run(queue, path))
    await wait_until(lambda: SealStatus.FULL in queue.sealed, description="the feeder waits")
    feeding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await feeding
    snapshot = await queue.snapshot()
    assert (snapshot.feeder, snapshot.feeder_lost, snapshot.closed) == (None, True, False)
    assert 0 < snapshot.prod < 900
    again = asyncio.create_task(run(queue.queue, path, token="f2"))
    found = await drain(queue.queue, 900)
    assert (await again).lines == 900
    assert [f.custom_id for f in in_order(found)] == [f"c{i}" for i in range(900)]
    assert (await run(queue.queue, path, token="f3")).closed


async def test_lost_reply_of_a_seal_is_no_second_run(redis: Redis, tmp_path: Path) -> None:
    """The same seal asked again is a DUP with our cursor: the feeder goes on without a rewind."""
    queue = Hooked(await new_job(redis))
    lost = 0

    async def lose(reply: SealReply) -> None:
        nonlocal lost
        if reply.status is SealStatus.OK and lost < 2:
            lost += 1
            raise StoreGoneError("reply lost")

    queue.after_seal = lose
    notices: list[Notice] = []
    result = await run(queue, write(tmp_path / "in", prompts(400)), notices=notices)
    assert result.sealed == 400
    assert queue.sealed.count(SealStatus.DUP) == 2
    assert [f.ordinal for f in in_order(await claimed(queue.queue))] == list(range(400))
    assert not [notice for notice in notices if notice.kind == "rewound"]


async def test_torn_stage_is_uploaded_again(redis: Redis, tmp_path: Path) -> None:
    """A stage that expired or was cut is staged anew."""
    queue = Hooked(await new_job(redis))
    torn = 0

    async def tear(sealed: Run) -> None:
        nonlocal torn
        if sealed.run == 1 and torn < 2:
            torn += 1
            await redis.delete(queue.queue.keys.stage("f1"))

    queue.before_seal = tear
    assert (await run(queue, write(tmp_path / "in", prompts(400)))).sealed == 400
    assert queue.sealed.count(SealStatus.TORN) == 2
    assert len(await claimed(queue.queue)) == 400


async def test_store_that_lost_a_suffix_is_fed_again_from_its_cursor(redis: Redis, tmp_path: Path) -> None:
    """After a rollback the feeder rewinds to what the store has: no index is skipped, and the job gets its whole n."""
    inner = await new_job(redis)
    queue = Hooked(inner)
    saved_keys: dict[bytes, bytes] = {}
    seals = 0

    async def roll_back(reply: SealReply) -> None:
        nonlocal seals
        seals += 1
        if seals == 2:
            for key in [key async for key in redis.scan_iter(inner.keys.pattern)]:
                saved_keys[key] = await redis.dump(key)
        if seals == 4:
            await redis.delete(*[key async for key in redis.scan_iter(inner.keys.pattern)])
            for key, value in saved_keys.items():
                await redis.restore(key, 0, value)

    queue.after_seal = roll_back
    notices: list[Notice] = []
    result = await run(queue, write(tmp_path / "in", prompts(1500)), notices=notices)
    assert (result.lines, result.sealed) == (1500, 1500)
    assert SealStatus.GAP in queue.sealed
    assert [notice.kind for notice in notices] == ["rewound"]
    assert [f.custom_id for f in in_order(await claimed(inner))] == [f"c{i}" for i in range(1500)]


async def test_store_outage_is_waited_out(
    own_store: StoreProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is killed and comes back: the feeder says that it waits, and every line is in the end there once."""
    monkeypatch.setattr(feeder_store, "_TELL_AFTER_S", 0.1)
    redis = connect(own_store.url)
    path = write(tmp_path / "in", prompts(3000, size=500))
    queue = Hooked(await new_job(redis))
    killed = False

    async def kill(sealed: Run) -> None:
        nonlocal killed
        if sealed.run == 4 and not killed:
            killed = True
            own_store.kill()

    queue.before_seal = kill
    notices: list[Notice] = []
    feeding = asyncio.create_task(run(queue, path, notices=notices))
    await wait_until(lambda: any(n.kind == "waiting" for n in notices), description="the feeder says that it waits")
    await asyncio.to_thread(own_store.start)
    assert (await feeding).sealed == 3000
    assert [f.custom_id for f in in_order(await claimed(queue.queue))] == [f"c{i}" for i in range(3000)]
    await redis.aclose()


async def test_second_feeder_is_refused_by_name(redis: Redis, tmp_path: Path) -> None:
    """One feeder a job; the other is told who it is."""
    queue = await new_job(redis)
    await queue.take_lease(Role.FEEDER, "other", "host pid 7", 60_000)
    with pytest.raises(FeedError, match="host pid 7"):
        await run(queue, write(tmp_path / "in", prompts(1)))
    assert (await queue.snapshot()).feeder is not None


async def test_lease_taken_over_stops_the_feeder(redis: Redis, tmp_path: Path) -> None:
    """A feeder whose lease another took seals nothing more."""
    queue = Hooked(await new_job(redis))

    async def take(sealed: Run) -> None:
        if sealed.run == 2:
            await queue.take_lease(Role.FEEDER, "thief", "there", 60_000, force=True)

    queue.before_seal = take
    with pytest.raises(FeedError, match="there"):
        await run(queue, write(tmp_path / "in", prompts(1000)))
    snapshot = await queue.snapshot()
    assert snapshot.sealed_runs == 2
    assert snapshot.feeder is not None
    assert snapshot.feeder.token == "thief"


async def test_cancelled_job_ends_the_feeding(redis: Redis, tmp_path: Path) -> None:
    """It is no error: the result says so."""
    queue = Hooked(await new_job(redis))

    async def cancel(sealed: Run) -> None:
        if sealed.run == 1:
            await queue.cancel()

    queue.before_seal = cancel
    result = await run(queue, write(tmp_path / "in", prompts(1000)))
    assert (result.closed, result.ended, result.sealed) == (False, "cancelled", 16)


async def test_bad_lines_are_sealed_as_refusals(redis: Redis, tmp_path: Path) -> None:
    """They take an index and an ordinal like any other line, and are told."""
    path = write(tmp_path / "in", [{"prompt": "a"}, {"x": 1}, {"prompt": "b", "image": "no.png"}, {"prompt": "c"}])
    queue = await new_job(redis)
    notices: list[Notice] = []
    result = await run(queue, path, notices=notices)
    assert (result.sealed, result.refused) == (4, 2)
    frames = in_order(await claimed(queue))
    assert [f.cls if isinstance(f, frame.Refusal) else None for f in frames] == [
        None, FailureClass.BAD_INPUT, FailureClass.BAD_IMAGE, None
    ]  # fmt: skip
    assert [notice.kind for notice in notices] == ["bad_line", "bad_line"]


async def test_bad_lines_can_be_skipped_or_fail(redis: Redis, tmp_path: Path) -> None:
    """`skip` gives them no place; `fail` ends with the line's number and reason."""
    path = write(tmp_path / "in", [{"prompt": "a"}, {"x": 1}, {"prompt": "c"}])
    queue = await new_job(redis)
    assert (await run(queue, path, EncodeOptions(on_bad_line="skip"))).sealed == 2
    assert [f.ordinal for f in in_order(await claimed(queue))] == [0, 1]
    with pytest.raises(InputError, match="line 2 has none of the keys"):
        await run(await new_job(redis), path, EncodeOptions(on_bad_line="fail"))


async def test_duplicates_are_told_or_refused(redis: Redis, tmp_path: Path) -> None:
    """A few pairs by line number, then a count; `strict` seals nothing at all."""
    path = write(tmp_path / "in", [{"custom_id": "a", "prompt": str(i)} for i in range(10)])
    queue = await new_job(redis)
    notices: list[Notice] = []
    result = await run(queue, path, notices=notices)
    assert (result.sealed, result.duplicates) == (10, 9)
    assert "lines 1 and 2 " in notices[0].text
    assert len(notices) == 6
    assert notices[-1].text.startswith("9 lines")
    strict = await new_job(redis)
    with pytest.raises(InputError, match="lines 1 and 2"):
        await run(strict, path, strict=True)
    assert (await strict.snapshot()).sealed_runs == 0


async def test_limit_and_sample(redis: Redis, tmp_path: Path) -> None:
    """Ordinals are dense over the lines that are meant; the sample is the same each time."""
    path = write(tmp_path / "in", prompts(2000))
    queue = await new_job(redis)
    assert (await run(queue, path, limit=30)).sealed == 30
    samples = []
    for _ in range(2):
        queue = await new_job(redis)
        assert (await run(queue, path, sample=300)).sealed == 300
        frames = in_order(await claimed(queue))
        assert [f.ordinal for f in frames] == list(range(300))
        samples.append([f.custom_id for f in frames])
    assert samples[0] == samples[1]
    assert max(int((c or "")[1:]) for c in samples[0]) > 1500


async def test_changed_input_is_not_fed(redis: Redis, tmp_path: Path) -> None:
    """The identity in the manifest must still hold."""
    path = write(tmp_path / "in", prompts(5))
    source = identify(path)
    write(path, prompts(6))
    with pytest.raises(InputError, match="changed"):
        await feed(await new_job(redis), source, EncodeOptions(), None, "f", "h", lambda _: None)


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


async def test_finished_lines_are_carried(redis: Redis, tmp_path: Path) -> None:
    """Only what is missing is sealed: its ordinal is the line's, its index is dense; also across a resumed feeder."""
    path = write(tmp_path / "in", prompts(1200, size=1000))
    plan = FakePlan({f"c{i}" for i in range(1200) if i % 3 == 0})
    queue = Hooked(await new_job(redis, payload_mark_bytes=250_000))
    feeding = asyncio.create_task(run(queue, path, plan=plan))
    await wait_until(lambda: SealStatus.FULL in queue.sealed, description="the feeder waits")
    feeding.cancel()
    await asyncio.gather(feeding, return_exceptions=True)
    again = asyncio.create_task(run(queue.queue, path, plan=plan, token="f2"))
    found = await drain(queue.queue, 800)
    result = await again
    assert (result.lines, result.sealed, result.carried) == (1200, 800, 400)
    assert [c.index for c, _ in sorted(found, key=lambda pair: pair[0].index)] == list(range(800))
    assert [f.ordinal for f in in_order(found)] == [i for i in range(1200) if i % 3]
    assert plan.carried == [(i, f"c{i}") for i in range(0, 1200, 3)]
    assert plan.flushed == 400


async def test_wholly_carried_input_closes_empty(redis: Redis, tmp_path: Path) -> None:
    """Nothing to send: the job closes with n = 0 and is complete."""
    path = write(tmp_path / "in", prompts(50))
    queue = await new_job(redis)
    result = await run(queue, path, plan=FakePlan({f"c{i}" for i in range(50)}))
    assert (result.lines, result.sealed, result.carried, result.closed) == (50, 0, 50, True)
    assert (await queue.snapshot()).state is JobState.COMPLETE


async def test_slow_picture_does_not_hold_back_what_is_ready(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came before a slow picture is sealed after 200 ms, so that workers have something to do."""
    monkeypatch.setattr(feeder, "RUN_AGE_S", 0.01)
    (tmp_path / "slow.tif").write_bytes(saved(quarters(3000, 3000), "TIFF"))
    path = write(tmp_path / "in", [{"prompt": "first"}, {"prompt": "slow", "image": "slow.tif"}, {"prompt": "last"}])
    queue = await new_job(redis)
    assert (await run(queue, path)).sealed == 3
    assert (await queue.snapshot()).sealed_runs >= 2
