"""The feeder against a real store and queue: exactly the input's lines are in it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis
from tests.support.feeding import (
    FakePlan,
    Hooked,
    claimed,
    drain,
    in_order,
    new_job,
    prompts,
    run,
    write,
)
from tests.support.pictures import exif, quarters, saved, turned
from tests.support.wait import wait_until

from gristmill.contract import frame
from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import JobState
from gristmill.intake.encoder_pool import EncoderPool
from gristmill.intake.encoder_wire import Done
from gristmill.intake.errors import InputError
from gristmill.intake.feeder import feed
from gristmill.intake.lines_seen import Notice
from gristmill.intake.options import EncodeOptions, ImageOptions
from gristmill.intake.runs import Cursor
from gristmill.intake.source import identify
from gristmill.queue.replies import SealStatus


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
        blobs = await queue.fetch_images(item.run, [image.digest for image in made.images])
        assert [len(blob or b"") for blob in blobs] == [image.size for image in made.images]


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
    notices: list[Notice] = []
    with pytest.raises(InputError, match="line 2 has none of the keys"):
        await run(await new_job(redis), path, EncodeOptions(on_bad_line="fail"), notices=notices)
    assert notices == [], "the error says it, and the line gets no result"


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
    """What came before a slow picture is sealed while that is encoded, so that workers have something to do."""
    queue = await new_job(redis)
    encode = EncoderPool.encode

    async def sealed_once() -> bool:
        return (await queue.snapshot()).sealed_runs == 1

    async def slowly(pool: EncoderPool, data: bytes, options: ImageOptions) -> Done:
        await wait_until(sealed_once, description="what came before is sealed")
        return await encode(pool, data, options)

    monkeypatch.setattr(EncoderPool, "encode", slowly)
    (tmp_path / "slow.tif").write_bytes(saved(quarters(30, 30), "TIFF"))
    path = write(tmp_path / "in", [{"prompt": "first"}, {"prompt": "slow", "image": "slow.tif"}, {"prompt": "last"}])
    assert (await run(queue, path)).sealed == 3
    assert (await queue.snapshot()).sealed_runs == 2
