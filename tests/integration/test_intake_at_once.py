"""The short way of pictures: what goes it, what does not, and that both ways make the same requests."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.pictures import data_url, exif, quarters, saved, turned

from gristmill.contract.digest import digest_of
from gristmill.intake import at_once as at_once_module
from gristmill.intake.at_once import AtOnce
from gristmill.intake.draft import PictureRef
from gristmill.intake.encode import Entry
from gristmill.intake.hot import HotPictures
from gristmill.intake.options import EncodeOptions, ImageOptions
from gristmill.intake.pictures import PictureStore
from gristmill.intake.pipeline import Pipeline

pytestmark = pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the kernel must read without waiting")

PNG = saved(quarters(), "PNG")


def refs(*urls: str) -> list[PictureRef]:
    return [PictureRef({}, "url", url, f"part {i}") for i, url in enumerate(urls)]


def opener(root: Path, **options: Any) -> AtOnce:
    made = EncodeOptions(**options)
    return AtOnce(made, str(root), HotPictures(made))


async def entries_of(path: Path, options: EncodeOptions, *, short: bool = True, take: Any = None) -> list[Entry]:
    """All entries of an input, by both ways or by the long way alone."""
    store = PictureStore(options, str(path.parent))
    pipeline = Pipeline(path, options, store, take=take)
    if not short:
        pipeline._at_once = _Never(options, "", HotPictures(options))
    found: list[Entry] = []
    while not pipeline.ended:
        found += await pipeline.ready()
    await pipeline.close()
    await store.close()
    return found


class _Never(AtOnce):
    def __call__(self, refs: Sequence[PictureRef]) -> None:
        return None


@pytest.mark.parametrize("inline", [True, False])
async def test_both_ways_make_the_same_requests(tmp_path: Path, inline: bool) -> None:
    """Fingerprints, bodies and pictures don't tell which way a line went, whatever its pictures are."""
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "b.jpg").write_bytes(saved(quarters(), "JPEG"))
    (tmp_path / "turned.jpg").write_bytes(saved(turned(6), "JPEG", exif=exif(6)))
    (tmp_path / "link.png").symlink_to("a.png")
    (tmp_path / "cut.png").write_bytes(PNG[:-9])
    names = ["a.png", "b.jpg", "turned.jpg", "link.png", "cut.png", "none.png", data_url(PNG), "./a.png"]
    lines = [{"custom_id": str(i), "prompt": "p", "image": name} for i, name in enumerate(names)]
    lines += [{"custom_id": "x", "prompt": "p", "images": ["a.png", "turned.jpg", "b.jpg"]}, {"prompt": "q"}]
    path = tmp_path / "in"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = EncodeOptions(inline=inline, spool_dir=str(tmp_path / "spool"))
    one, other = await entries_of(path, options), await entries_of(path, options, short=False)
    assert [entry.frame(0) for entry in one] == [entry.frame(0) for entry in other]
    assert [entry.blobs for entry in one] == [entry.blobs for entry in other]
    assert [entry.refused is None for entry in one] == [
        name not in ("cut.png", "none.png") for name in [*names, "", ""]
    ]


def test_a_fit_file_needs_no_second_trip(tmp_path: Path) -> None:
    """By reference it is named by where it really lies, with all that tells whether it was changed."""
    (tmp_path / "real").mkdir()
    file = tmp_path / "real" / "a.png"
    file.write_bytes(PNG)
    (tmp_path / "way").symlink_to("real")
    opened = opener(tmp_path, inline=False)(refs("way/a.png"))
    assert opened is not None
    assert opened[0].picture is not None
    image, status = opened[0].picture.image, file.stat()
    assert (image.path, image.size, image.digest) == (str(file.resolve()), len(PNG), digest_of(PNG))
    assert (image.mtime_ns, image.ctime_ns, image.inode) == (status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def test_a_picture_that_was_just_read_is_not_read_again(tmp_path: Path) -> None:
    """Until it changes; equal bytes under other names are held once where they travel in the store."""
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "b.png").write_bytes(PNG)
    short = opener(tmp_path)
    opened = short(refs("a.png", "a.png", "b.png", data_url(PNG)))
    assert opened is not None
    assert len({id(one.picture) for one in opened}) == 1
    assert short.read_bytes == 2 * len(PNG)
    os.utime(tmp_path / "a.png", ns=(1, 1))
    assert short(refs("a.png"))
    assert short.read_bytes == 3 * len(PNG)


def test_what_is_not_fit_at_once_goes_the_long_way(tmp_path: Path) -> None:
    """Also one among many, and a pipe holds nobody up."""
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "cut.png").write_bytes(PNG[:-9])
    (tmp_path / "turned.jpg").write_bytes(saved(turned(6), "JPEG", exif=exif(6)))
    (tmp_path / "empty").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    short = opener(tmp_path)
    for name in ("cut.png", "turned.jpg", "empty", "pipe", "none", ".", "s3://x/y", "a\0b", "data:image/png;base64,!"):
        assert short(refs("a.png", name)) is None, name
    assert short(refs("a.png"))
    assert opener(tmp_path, image=ImageOptions(max_pixels=10))(refs("a.png")) is None
    assert opener(tmp_path, image=ImageOptions(max_bytes=10))(refs("a.png")) is None
    assert opener(tmp_path, image=ImageOptions(bomb_pixels=10))(refs("a.png")) is None
    assert opener(tmp_path, inline=False)(refs(data_url(PNG))) is None, "it has to be written first"


def test_roots_hold_whatever_links_say(tmp_path: Path) -> None:
    """A picture is taken only from beneath the roots, by where it really lies."""
    root, outside = tmp_path.resolve() / "root", tmp_path.resolve() / "root-not"
    for folder in (root, outside):
        folder.mkdir()
        (folder / "a.png").write_bytes(PNG)
    (root / "link.png").symlink_to(outside / "a.png")
    (root / "way").symlink_to(outside)
    (outside / "in.png").symlink_to(root / "a.png")
    short = opener(root, roots=[str(root)])
    for name in ("link.png", "way/a.png", "../root-not/a.png", str(outside / "a.png")):
        assert short(refs(name)) is None, name
    for name in ("a.png", str(outside / "in.png")):
        assert short(refs(name)), name


def test_large_pictures_are_left_to_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes the reading thread long goes the long way."""
    (tmp_path / "a.png").write_bytes(PNG)
    monkeypatch.setattr(at_once_module, "MOST_BYTES", len(PNG) - 1)
    assert opener(tmp_path)(refs("a.png")) is None
    monkeypatch.setattr(at_once_module, "MOST_BYTES", len(PNG))
    assert opener(tmp_path)(refs("a.png"))


def test_a_cold_disk_is_asked_less_and_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would have to be waited for goes the long way, and after each vain try more pictures do so untried."""
    for i in range(300):
        (tmp_path / f"{i}.png").write_bytes(PNG + bytes([i % 256, i // 256]))
    tries: list[int] = []
    real, cold = os.preadv, True

    def preadv(fd: int, buffers: Any, offset: int, flags: int) -> int:
        tries.append(flags)
        if cold:
            raise BlockingIOError
        return real(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", preadv)
    short = opener(tmp_path)
    assert all(short(refs(f"{i}.png")) is None for i in range(200))
    assert 4 <= len(tries) <= 12
    assert set(tries) == {os.RWF_NOWAIT}
    cold = False
    found = [short(refs(f"{i}.png")) is not None for i in range(200, 300)]
    assert True in found[:65]
    assert all(found[found.index(True) :]), "once it is warm, every picture is tried again"


async def test_what_an_earlier_run_finished_holds_no_picture(tmp_path: Path) -> None:
    """A line that is carried is known by its fingerprint, and its pictures are let go of at once."""
    (tmp_path / "a.png").write_bytes(PNG)
    path = tmp_path / "in"
    path.write_text('{"custom_id":"a","prompt":"p","image":"a.png"}\n{"custom_id":"b","prompt":"p","image":"a.png"}\n')
    made = await entries_of(path, EncodeOptions(), take=lambda custom_id, _: "old" if custom_id == "a" else None)
    assert [(entry.carried, len(entry.blobs)) for entry in made] == [("old", 0), (None, 1)]


def test_nothing_is_opened_that_is_no_picture_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open a device or a pipe can do something, so it is not done for what is no file or lies beneath no root."""
    root = tmp_path.resolve() / "root"
    root.mkdir()
    (root / "a.png").write_bytes(PNG)
    (tmp_path / "b.png").write_bytes(PNG)
    (root / "link.png").symlink_to(tmp_path / "b.png")
    os.mkfifo(root / "pipe")
    opened: list[str] = []
    real = os.open

    def noting(path: Any, flags: int, *more: Any) -> int:
        opened.append(str(path))
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", noting)
    short = opener(root, roots=[str(root)])
    for name in ("pipe", "/dev/null", "link.png", "../b.png", "a.png"):
        short(refs(name))
    assert opened == [str(root / "a.png")]
