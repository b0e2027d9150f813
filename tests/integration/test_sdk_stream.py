"""Iterables are pulled only as fast as they are taken, in order, and can be given again for a while."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time

import pytest
from PIL import Image
from tests.support import pictures
from tests.support.wait import wait_until

from gristmill.contract.manifest import Manifest
from gristmill.intake.errors import FeedError
from gristmill.intake.feeder import feed_entries
from gristmill.intake.options import EncodeOptions, ImageOptions
from gristmill.intake.pipeline import Start
from gristmill.queue import LeaseQueue
from gristmill.sdk import stream as streams
from gristmill.sdk.pictures import GivenPictures
from gristmill.sdk.shape import Shaped, shape
from gristmill.sdk.stream import Hopper, StreamEntries, pull


def item(weight: int = 1) -> Shaped:
    return Shaped(b'{"prompt":"x"}', weight=weight)


async def made(**options):
    hopper = Hopper(asyncio.get_running_loop())
    store = GivenPictures(EncodeOptions(model="m", **options), "/")
    return hopper, StreamEntries(hopper, EncodeOptions(model="m", **options), store), store


async def everything(entries: StreamEntries) -> list:
    found: list = []
    while not entries.ended:
        found += await entries.ready(1.0)
    return found


async def test_a_generator_is_pulled_no_further_than_there_is_room():
    """A few hundred requests ahead, however long it is; taking some pulls as many more."""
    pulled = 0

    def endless():
        nonlocal pulled
        while True:
            pulled += 1
            yield "x"

    hopper = Hopper(asyncio.get_running_loop())
    pull(endless(), hopper, shape)
    await wait_until(lambda: pulled == streams.HOPPER_REQUESTS + 1, description="it is full")
    await asyncio.sleep(0.1)  # and stays so
    assert pulled == streams.HOPPER_REQUESTS + 1
    assert len(await hopper.take(100, None)) == 100
    await wait_until(lambda: pulled == streams.HOPPER_REQUESTS + 101, description="as many more")
    hopper.close()
    await wait_until(lambda: not any(t.name == "gm-pull" for t in threading.enumerate()), description="it is let go")


async def test_room_is_counted_in_bytes_too(monkeypatch):
    """Large pictures are pulled one or two at a time."""
    monkeypatch.setattr(streams, "HOPPER_BYTES", 100)
    hopper = Hopper(asyncio.get_running_loop())
    assert hopper.try_put(item(60))
    assert hopper.try_put(item(60))
    assert not hopper.try_put(item(60))
    assert len(await hopper.take(1, None)) == 1
    assert hopper.try_put(item(60))


async def test_what_the_iterable_raises_comes_after_what_it_gave():
    """As the same exception."""
    error = RuntimeError("planned")

    def broken():
        yield "a"
        yield "b"
        raise error

    hopper, entries, store = await made()
    pull(broken(), hopper, shape)
    await wait_until(lambda: hopper._ended, description="it has raised")
    with pytest.raises(RuntimeError, match="planned") as caught:
        await everything(entries)
    assert caught.value is error
    await store.close()


async def test_entries_are_those_of_a_file(tmp_path):
    """Same bodies, same fingerprints, same order, pictures or not; refusals stand in their place."""
    from gristmill.intake.pictures import PictureStore
    from gristmill.intake.pipeline import Pipeline

    picture = tmp_path / "p.jpg"
    picture.write_bytes(pictures.saved(pictures.quarters(), "JPEG"))
    requests = [
        {"prompt": "a"},
        {"custom_id": "b", "messages": [{"role": "user", "content": "b"}], "temperature": 0},
        {"prompt": "c", "image": str(picture)},
        {"prompt": ""},
        {"nothing": 1},
        {"prompt": "d", "image": "missing.jpg"},
    ]
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(map(json.dumps, requests)))
    options = EncodeOptions(model="m")
    store = PictureStore(options, str(tmp_path))
    pipeline = Pipeline(path, options, store)
    of_file: list = []
    while not pipeline.ended:
        of_file += await pipeline.ready()
    await store.close()
    hopper, entries, given = await made()
    pull(requests, hopper, shape)
    of_stream = await everything(entries)
    await given.close()
    assert [(e.place, e.fingerprint, e.pieces, e.images, e.blobs) for e in of_stream[:3]] == [
        (e.place, e.fingerprint, e.pieces, e.images, e.blobs) for e in of_file[:3]
    ]
    assert [e.refused and e.refused.cls for e in of_stream] == [e.refused and e.refused.cls for e in of_file]
    assert [e.line for e in of_stream] == [1, 2, 3, 4, 5, 6]


async def test_given_pictures_arrive_upright_and_plain_and_are_let_go():
    """A PIL image of any mode, and bytes of any format, become a JPEG that shows what a viewer would show."""
    tall = pictures.turned(6)
    exif = pictures.exif(6)
    tall.info["exif"] = exif.tobytes()
    tall.getexif()[0x0112] = 6
    given = [
        Image.new("CMYK", (8, 6)),
        Image.new("RGBA", (8, 6), (0, 0, 0, 0)),
        Image.new("I;16", (8, 6)),
        Image.new("P", (8, 6)),
        pictures.quarters(),
        tall,
        pictures.saved(Image.new("CMYK", (8, 6)), "TIFF"),
    ]
    hopper, entries, store = await made()
    pull([[{"type": "image", "value": p}, {"type": "text", "value": "?"}] for p in given], hopper, shape)
    found = await everything(entries)
    assert [e.refused for e in found] == [None] * len(given)
    seen = [pictures.opened(next(iter(e.blobs.values()))) for e in found]
    assert {(p.format, p.mode in ("RGB", "L")) for p in seen} == {("JPEG", True)}
    assert pictures.close_to(seen[1].convert("RGB").getpixel((0, 0)), (255, 255, 255))
    assert pictures.shows_quarters(seen[4])
    assert pictures.shows_quarters(seen[5])
    assert store.stats.pictures == len(given)
    await store.close()


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP"])
async def test_given_bytes_that_are_fit_are_sent_byte_for_byte(format_):
    """Nothing is lost by encoding them once more, and no encoder is started for them."""
    data = pictures.saved(pictures.quarters(), format_)
    hopper, entries, store = await made()
    pull([[{"type": "image", "value": data}, {"type": "text", "value": "?"}]], hopper, shape)
    (entry,) = await everything(entries)
    assert list(entry.blobs.values()) == [data]
    assert store.stats.pictures == 0
    await store.close()


async def test_a_given_picture_that_is_no_good_is_refused_in_its_place():
    """Damaged bytes, an image that was closed, one beyond the limit: each is a bad_image that names its place."""
    closed = Image.open(io.BytesIO(pictures.saved(pictures.quarters(), "PNG")))
    closed.close()
    hopper, entries, store = await made(image=ImageOptions(bomb_pixels=100_000))
    requests = [b"no picture", closed, Image.new("L", (1000, 1000)), Image.new("L", (10, 10))]
    pull([[{"type": "image", "value": p}] for p in requests], hopper, shape)
    found = await everything(entries)
    assert [e.refused and e.refused.cls.value for e in found] == ["bad_image"] * 3 + [None]
    for entry in found[:3]:
        assert "the picture in message 1 part 1 can't be sent: it" in entry.refused.reason
    await store.close()


async def test_pictures_ahead_are_bounded(monkeypatch):
    """No more than the bound is being encoded or waits for one before it, however many are given."""
    monkeypatch.setattr(streams, "AHEAD_BYTES", 100_000)
    hopper, entries, store = await made()
    pull(([{"type": "image", "value": Image.new("RGB", (100, 100))}] for _ in range(50)), hopper, shape)
    most = 0
    found: list = []
    while not entries.ended:
        found += await entries.ready(1.0)
        most = max(most, entries._ahead_bytes)
    assert len(found) == 50
    assert most <= 100_000
    await store.close()


async def test_what_the_store_lost_is_given_again():
    """From any place of the last seconds, the same entries; then it goes on where it was."""
    hopper, entries, store = await made()
    pull((f"prompt {n}" for n in range(1000)), hopper, shape)
    first: list = []
    while len(first) < 600:
        first += await entries.ready(1.0)
    assert entries.open(Start(0, 200, 200)) is entries
    again = await everything(entries)
    assert [e.place for e in again] == list(range(200, 1000))
    assert [e.fingerprint for e in again[:100]] == [e.fingerprint for e in first[200:300]]
    await store.close()


async def test_what_is_too_old_cannot_be_given_again(monkeypatch):
    """Said in a sentence, instead of a job that would come to less than was given."""
    monkeypatch.setattr(streams, "REPLAY_BYTES", 10_000)
    hopper, entries, store = await made()
    pull((f"prompt {n}" for n in range(1000)), hopper, shape)
    await everything(entries)
    assert entries._kept_bytes <= 10_000
    with pytest.raises(FeedError, match="lost what it had from request 11 on, and an iterable can't be read again"):
        entries.open(Start(0, 10, 10))
    with pytest.raises(FeedError, match="only 1000 have been given"):
        entries.open(Start(0, 2000, 2000))
    monkeypatch.setattr(streams, "REPLAY_S", -1.0)
    hopper.close()
    await store.close()


async def test_a_stream_is_fed_soon_and_to_its_end(redis):
    """A run of one request is sealed within moments; the job is closed when the iterable ends."""
    queue = await LeaseQueue.create(redis, Manifest(job="stream", epoch="e", name="s", created_at_ms=0, first_alone=0))
    hopper, entries, store = await made()
    feeding = asyncio.create_task(feed_entries(queue, entries.open, store, "t", "h", lambda _: None, run_age_s=0.02))
    assert hopper.try_put(shape("one"))
    began_s = time.monotonic()
    await wait_until(lambda: _sealed(queue, 1), description="one is sealed")
    assert time.monotonic() - began_s < 5
    assert not (await queue.snapshot()).closed
    pull(["two", "three"], hopper, shape)
    result = await feeding
    assert (result.lines, result.sealed, result.closed) == (3, 3, True)
    assert (await queue.snapshot()).n == 3


async def _sealed(queue: LeaseQueue, count: int) -> bool:
    return (await queue.snapshot()).prod == count
