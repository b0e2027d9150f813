"""A whole input is read, encoded and counted as a feeder would, with real files and real encoders."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

import pytest
from tests.support.pictures import data_url, exif, opened, quarters, saved, shows_quarters, turned

from gristmill.contract import frame
from gristmill.contract.digest import digest_of
from gristmill.contract.failure import FailureClass
from gristmill.intake import pipeline as pipeline_module
from gristmill.intake import structure
from gristmill.intake.check import check
from gristmill.intake.encode import Entry
from gristmill.intake.encoder_pool import EncoderPool
from gristmill.intake.options import EncodeOptions, ImageOptions
from gristmill.intake.pictures import PictureStore
from gristmill.intake.pipeline import Pipeline


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


async def run(path: Path, options: EncodeOptions = EncodeOptions(), **more: Any) -> list[Entry]:
    store = PictureStore(options, str(path.parent))
    pipeline = Pipeline(path, options, store, **more)
    found: list[Entry] = []
    try:
        while not pipeline.ended:
            found += await pipeline.ready()
    finally:
        await pipeline.close()
        await store.close()
    return found


def body_of(entry: Entry) -> Any:
    """The body as a worker would send it."""
    data = entry.pieces[0]
    for image, piece in zip(entry.images, entry.pieces[1:], strict=True):
        blob = entry.blobs[image.digest] if image.path is None else Path(image.path).read_bytes()
        assert len(blob) == image.size
        assert digest_of(blob) == image.digest
        data += base64.b64encode(blob) + piece
    return json.loads(data)


def picture_of(entry: Entry, part: int = 0) -> bytes:
    url = body_of(entry)["messages"][0]["content"][part]["image_url"]["url"]
    return base64.b64decode(url.partition(",")[2])


async def test_fit_files_are_sent_as_they_are(tmp_path: Path) -> None:
    """JPEG, PNG and WebP bytes pass through unchanged, under their real type, and no encoder is started."""
    files = {kind: saved(quarters(), kind.upper()) for kind in ("jpeg", "png", "webp")}
    for kind, data in files.items():
        (tmp_path / f"{kind}.jpg").write_bytes(data)
    path = write(tmp_path / "in", [{"prompt": "p", "image": f"{kind}.jpg"} for kind in files])
    options = EncodeOptions()
    pool = EncoderPool()
    store = PictureStore(options, str(tmp_path), pool)
    pipeline = Pipeline(path, options, store)
    entries: list[Entry] = []
    while not pipeline.ended:
        entries += await pipeline.ready()
    assert pool.pids == []
    await store.close()
    for entry, (kind, data) in zip(entries, files.items(), strict=True):
        url = body_of(entry)["messages"][0]["content"][0]["image_url"]["url"]
        assert url == f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


async def test_each_source_form_reaches_the_same_bytes(tmp_path: Path) -> None:
    """Relative and absolute paths, file URLs and data URLs are one request with one fingerprint."""
    data = saved(quarters(), "PNG")
    (tmp_path / "a b.png").write_bytes(data)
    forms = ["a b.png", str(tmp_path / "a b.png"), f"file://{tmp_path}/a%20b.png", data_url(data)]
    forms += ["./a b.png", data_url(data, "image/jpeg").rstrip("=")]
    forms += ["data:;base64," + base64.urlsafe_b64encode(data).decode(), "data:image/png," + quote_from_bytes(data)]
    entries = await run(write(tmp_path / "in", [{"prompt": "p", "image": form} for form in forms]))
    assert {picture_of(entry) for entry in entries} == {data}
    assert len({entry.fingerprint for entry in entries}) == 1
    assert len({id(blob) for entry in entries for blob in entry.blobs.values()}) <= 2


async def test_media_root_is_where_relative_paths_begin(tmp_path: Path) -> None:
    """`--media-root` replaces the input's own folder."""
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "a.png").write_bytes(saved(quarters(), "PNG"))
    path = write(tmp_path / "in", [{"prompt": "p", "image": "a.png"}])
    assert (await run(path))[0].refused is not None
    assert (await run(path, EncodeOptions(media_root=str(tmp_path / "media"))))[0].refused is None


async def test_rotated_pictures_are_turned_on_the_way(tmp_path: Path) -> None:
    """Order and text around the pictures stay; only those that need it are encoded anew."""
    (tmp_path / "turned.jpg").write_bytes(saved(turned(6), "JPEG", exif=exif(6), quality=95))
    plain = saved(quarters(), "PNG")
    content = [
        {"type": "text", "text": "before"},
        {"type": "image_url", "image_url": {"url": "turned.jpg", "detail": "high"}},
        {"type": "text", "text": "between"},
        {"type": "image_url", "image_url": {"url": data_url(plain)}},
    ]
    entry = (await run(write(tmp_path / "in", [{"messages": [{"role": "user", "content": content}]}])))[0]
    sent = body_of(entry)["messages"][0]["content"]
    assert [part["type"] for part in sent] == ["text", "image_url", "text", "image_url"]
    assert sent[1]["image_url"]["detail"] == "high"
    assert shows_quarters(opened(picture_of(entry, 1)))
    assert picture_of(entry, 3) == plain


async def test_bad_pictures_are_named_and_their_neighbours_sent(tmp_path: Path) -> None:
    """Each bad picture refuses its own line with path or place and reason, and never with its bytes."""
    (tmp_path / "cut.png").write_bytes(saved(quarters(), "PNG")[:-30])
    (tmp_path / "cut.jpg").write_bytes(saved(quarters(), "JPEG")[:-30])
    (tmp_path / "text.jpg").write_bytes(b"SENTINEL")
    (tmp_path / "empty.jpg").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.jpg")
    cases = {
        "cut.png": "truncated",
        "cut.jpg": "truncated",
        "text.jpg": "known format",
        "empty.jpg": "empty",
        "pipe.jpg": "regular file",
        "nowhere.jpg": "does not exist",
        ".": "regular file",
        "s3://bucket/a.jpg": "scheme s3",
        "file://other/a.jpg": "another host",
        "a\0b": "zero byte",
        "U0VOVElORUw=" * 200: "needs data:image",
        "data:image/png;base64,U0VOVElORUw": "data URL in message 1 part 1",
        "data:image/png;base64,U0V*OVElORUw": "broken base64",
        "data:SENTINEL": "no comma",
    }
    lines: list[Any] = [{"custom_id": "x", "prompt": "p", "image": form} for form in cases]
    entries = await run(write(tmp_path / "in", [*lines, {"prompt": "good"}]))
    assert entries[-1].refused is None
    for number, (entry, (form, reason)) in enumerate(zip(entries, cases.items(), strict=False), start=1):
        assert entry.refused is not None, form
        refusal = frame.decode(entry.frame(5))
        assert isinstance(refusal, frame.Refusal)
        assert (refusal.cls, refusal.line, refusal.custom_id) == (FailureClass.BAD_IMAGE, number, "x")
        assert reason in refusal.message
        assert f"line {number} " in refusal.message
        assert "SENTINEL" not in refusal.message
        assert "U0V" not in refusal.message
        if len(form) < 20 and form.isprintable():
            assert form in refusal.message or form.startswith("data:")


async def test_every_depth_of_nesting_is_sent_or_refused(tmp_path: Path) -> None:
    """A line that can just be read but not written again is refused like a deeper one, with a picture and without."""
    path = tmp_path / "in"
    (tmp_path / "a.png").write_bytes(saved(quarters(), "PNG"))
    nests = ["[" * depth + "]" * depth for depth in range(1, 1200)]
    path.write_text("".join(f'{{"prompt":"p","x":{nest}}}\n' for nest in nests))
    entries = await run(path, EncodeOptions(model="m"))
    path.write_text("".join(f'{{"prompt":"p","image":"a.png","x":{nest}}}\n' for nest in nests))
    for found in (entries, await run(path)):
        assert [entry.line for entry in found] == list(range(1, 1200))
        assert found[0].refused is None
        assert found[-1].refused is not None
        assert all("nested" in entry.refused.reason for entry in found if entry.refused is not None)


async def test_long_paths_leave_room_for_the_reason(tmp_path: Path) -> None:
    """A message stays within its bound and still says what is wrong."""
    entry = (await run(write(tmp_path / "in", [{"prompt": "p", "image": "x/" * 450 + "a.png"}])))[0]
    refusal = frame.decode(entry.frame(0))
    assert isinstance(refusal, frame.Refusal)
    assert len(refusal.message) <= 500
    assert "a.png" in refusal.message
    assert "does not exist" in refusal.message


async def test_limits_on_pictures_hold(tmp_path: Path) -> None:
    """`max_pixels`, `max_bytes` and the bomb limit are checked on bytes that would else pass through."""
    (tmp_path / "a.png").write_bytes(saved(quarters(400, 300), "PNG"))
    path = write(tmp_path / "in", [{"prompt": "p", "image": "a.png"}])
    small = (await run(path, EncodeOptions(image=ImageOptions(max_pixels=30_000))))[0]
    assert opened(picture_of(small)).size == (200, 150)
    bomb = (await run(path, EncodeOptions(image=ImageOptions(bomb_pixels=1000))))[0]
    assert bomb.refused is not None
    assert "400 x 300" in bomb.refused.reason
    light = (await run(path, EncodeOptions(image=ImageOptions(max_bytes=600, quality=50))))[0]
    assert light.refused is not None or len(picture_of(light)) <= 600


async def test_by_reference_names_the_file_or_the_spool(tmp_path: Path) -> None:
    """Fit files are named where they lie, with size, time and hash; what was encoded anew lies in the spool, once."""
    plain = saved(quarters(), "PNG")
    (tmp_path / "plain.png").write_bytes(plain)
    (tmp_path / "link.png").symlink_to("plain.png")
    (tmp_path / "turned.jpg").write_bytes(saved(turned(3), "JPEG", exif=exif(3)))
    forms = ["plain.png", "link.png", "turned.jpg", "turned.jpg", data_url(plain)]
    spool = tmp_path / "spool"
    options = EncodeOptions(inline=False, spool_dir=str(spool))
    entries = await run(write(tmp_path / "in", [{"prompt": "p", "image": form} for form in forms]), options)
    images = [entry.images[0] for entry in entries]
    status = (tmp_path / "plain.png").stat()
    for image in images[:2]:
        assert image == frame.Image(
            digest_of(plain),
            len(plain),
            str(tmp_path / "plain.png"),
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino,
        )
    assert images[2] == images[3]
    assert Path(str(images[2].path)).is_relative_to(spool)
    assert Path(str(images[4].path)).is_relative_to(spool)
    assert len([file for file in spool.rglob("*") if file.is_file()]) == 2
    assert all(not entry.blobs for entry in entries)
    assert picture_of(entries[4]) == plain
    assert shows_quarters(opened(picture_of(entries[2])))


async def test_touched_file_is_named_with_its_new_time(tmp_path: Path) -> None:
    """By reference, a file that was touched between two lines is not taken from the hot cache with its old time."""
    file = tmp_path / "a.png"
    file.write_bytes(saved(quarters(), "PNG"))
    options = EncodeOptions(inline=False)
    path = write(tmp_path / "in", [{"prompt": "p", "image": "a.png"}])
    store = PictureStore(options, str(tmp_path))
    times = []
    for mtime_ns in (1_000_000_000, 2_000_000_000):
        os.utime(file, ns=(mtime_ns, mtime_ns))
        pipeline = Pipeline(path, options, store)
        times.append((await pipeline.ready())[0].images[0].mtime_ns)
        await pipeline.close()
    await store.close()
    assert times == [1_000_000_000, 2_000_000_000]


async def test_hot_picture_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture that many lines share is inspected once, and all of them carry the same bytes object."""
    looked: list[int] = []
    look = structure.look

    def counting(data: bytes, *, allow_truncated: bool = False) -> structure.Look:
        looked.append(len(data))
        return look(data, allow_truncated=allow_truncated)

    monkeypatch.setattr(structure, "look", counting)
    (tmp_path / "a.png").write_bytes(saved(quarters(), "PNG"))
    entries = await run(write(tmp_path / "in", [{"prompt": str(i), "image": "a.png"} for i in range(300)]))
    assert len(looked) == 1
    assert len({id(blob) for entry in entries for blob in entry.blobs.values()}) == 1


async def test_order_is_kept_while_encoders_work_ahead(tmp_path: Path) -> None:
    """Slow pictures, fast ones, text and bad lines come out as they went in."""
    (tmp_path / "slow.tif").write_bytes(saved(quarters(1500, 1500), "TIFF"))
    (tmp_path / "fast.png").write_bytes(saved(quarters(), "PNG"))
    images = ["slow.tif", None, "fast.png", "missing.png", None, "slow.tif"] * 20
    path = write(tmp_path / "in", [{"prompt": str(i), "image": image} for i, image in enumerate(images)])
    entries = await run(path)
    assert [entry.line for entry in entries] == list(range(1, 121))
    assert [entry.place for entry in entries] == list(range(120))
    assert [entry.refused is not None for entry in entries] == [image == "missing.png" for image in images]


async def test_what_lies_ahead_is_bounded_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are opened ahead only up to the limit; one that is larger than the limit still gets its turn alone."""
    sizes = [1000, 1000, 1000, 5000, 1000, 1000]
    for at, size in enumerate(sizes):
        (tmp_path / f"{at}.png").write_bytes(saved(quarters(), "PNG").ljust(size, b"\0"))
    monkeypatch.setattr(pipeline_module, "AHEAD_BYTES", 2500)
    opened_ahead: list[str] = []
    store = PictureStore(EncodeOptions(), str(tmp_path))
    real_open = store.open

    async def counting(ref: Any) -> Any:
        opened_ahead.append(ref.url)
        return await real_open(ref)

    monkeypatch.setattr(store, "open", counting)
    path = write(tmp_path / "in", [{"prompt": "p", "image": f"{at}.png"} for at in range(len(sizes))])
    pipeline = Pipeline(path, EncodeOptions(), store)
    found: list[Entry] = []
    steps = []
    while not pipeline.ended:
        before = len(found)
        found += await pipeline.ready()
        steps.append(sum(sizes[before : len(opened_ahead)]))
    assert all(size <= 2500 or size == 5000 for size in steps)
    assert [entry.line for entry in found] == [1, 2, 3, 4, 5, 6]
    await pipeline.close()
    await store.close()


async def test_finished_lines_are_not_encoded(tmp_path: Path) -> None:
    """What the plan knows is asked by fingerprint once the source is hashed; no encoder is started for it."""
    (tmp_path / "a.tif").write_bytes(saved(quarters(), "TIFF"))
    path = write(tmp_path / "in", [{"custom_id": "a", "prompt": "p", "image": "a.tif"}, {"prompt": "q"}])
    fresh = await run(path)
    asked: list[tuple[str | None, bytes]] = []

    def take(custom_id: str | None, fingerprint: bytes) -> object:
        asked.append((custom_id, fingerprint))
        return "old" if custom_id == "a" else None

    again = await run(path, take=take)
    assert sorted(asked, key=str) == sorted(((e.custom_id, e.fingerprint) for e in fresh), key=str)
    assert (again[0].carried, again[1].carried) == ("old", None)
    assert not again[0].blobs


async def test_check_reports_what_would_be_sent(tmp_path: Path) -> None:
    """Counts, bad lines, duplicates, models, sizes and one example without base64."""
    picture = saved(quarters(), "PNG")
    path = write(
        tmp_path / "in",
        [
            {"custom_id": "a", "prompt": "one", "model": "m"},
            {"custom_id": "a", "prompt": "two", "image": data_url(picture), "stream": True},
            {"nothing": 1},
            {"prompt": "three", "image": "missing.png"},
        ],
    )
    report = await check(path, EncodeOptions(), examples=2)
    assert (report.lines, report.sendable, report.refused, report.duplicates) == (4, 2, 2, 1)
    assert [(bad.line, bad.cls) for bad in report.bad] == [(3, FailureClass.BAD_INPUT), (4, FailureClass.BAD_IMAGE)]
    assert report.models == {"m": 1, "": 1}
    assert report.paths == {"/chat/completions": 2}
    assert (report.pictures, report.streams_removed, report.clean) == (1, 1, False)
    assert any("lines 1 and 2" in notice for notice in report.notices)
    assert f"<{len(picture):,} bytes>" in report.examples[1].body
    assert report.largest_body_bytes > len(picture) * 4 // 3


async def test_check_of_an_empty_input(tmp_path: Path) -> None:
    """Nothing to send is nothing wrong."""
    path = tmp_path / "in"
    path.write_bytes(b"\n\n")
    report = await check(path, EncodeOptions())
    assert (report.lines, report.clean) == (0, True)
