"""What the structure of a file proves, without decoding it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from PIL import Image
from tests.support.pictures import saved

from gristmill.intake import structure
from gristmill.intake.errors import PictureError
from gristmill.intake.structure import Verdict, look

EOI = b"\xff\xd9"


def noise(width: int = 32, height: int = 24, mode: str = "RGB") -> Image.Image:
    """A picture whose data hold every byte, so many bytes 0xFF too."""
    size = width * height * len(mode)
    return Image.frombytes(mode, (width, height), random.Random(5).randbytes(size))


def with_thumbnail(data: bytes) -> bytes:
    """`data` with an APP1 segment that holds a whole JPEG, as cameras write it."""
    small = saved(noise(8, 8), "JPEG")
    segment = b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0" + small
    return data[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + data[2:]


JPEGS: dict[str, bytes] = {
    "colour": saved(noise(), "JPEG", quality=95, subsampling=0),
    "halved colour": saved(noise(), "JPEG", quality=90, subsampling=2),
    "grey": saved(noise(mode="L"), "JPEG", quality=90),
    "restarts": saved(noise(), "JPEG", quality=90, restart_marker_blocks=2),
    "own tables": saved(noise(), "JPEG", quality=90, optimize=True),
    "progressive": saved(noise(), "JPEG", quality=90, progressive=True),
    "thumbnail": with_thumbnail(saved(noise(), "JPEG", quality=90)),
}


@pytest.mark.parametrize("name", JPEGS)
def test_no_part_of_a_jpeg_is_taken_for_the_whole(name: str) -> None:
    """Whatever is cut off, also when the cut falls behind an end of image within a thumbnail or a table."""
    data = JPEGS[name]
    assert look(data).verdict is Verdict.PLAIN
    assert data.count(EOI) >= (2 if name == "thumbnail" else 1)
    for size in range(1, len(data)):
        assert look(data[:size]).verdict is Verdict.ENCODE, size


def test_a_cut_jpeg_that_was_filled_up_is_not_taken_for_whole() -> None:
    """Zeros and other fillings in place of what is missing hold no end of image."""
    data = JPEGS["colour"]
    for filling in (b"\0", b"\xff", b" "):
        assert look(data[:-500] + filling * 500).verdict is Verdict.ENCODE


def test_a_component_that_has_not_come_yet_is_waited_for() -> None:
    """A sequential JPEG with a scan for each component ends only behind the last."""
    data = JPEGS["colour"]
    at = data.index(b"\xff\xda")
    one = (
        data[:at]
        + b"\xff\xda\0\x08\x01\x01\x00\x00\x3f\x00"
        + b"ab"
        + b"\xff\xda\0\x08\x01\x02\x00\x00\x3f\x00"
        + b"cd"
    )
    assert look(one).verdict is Verdict.ENCODE
    assert look(one + EOI).verdict is Verdict.PLAIN


def test_the_data_of_an_only_scan_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual JPEG is judged by its headers and its end; a progressive one is searched."""

    class Never:
        def search(self, *_: Any) -> None:
            raise AssertionError("searched")

    monkeypatch.setattr(structure, "_NEXT_MARKER", Never())
    assert look(JPEGS["colour"]).verdict is Verdict.PLAIN
    with pytest.raises(AssertionError, match="searched"):
        look(JPEGS["progressive"])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_any_buffer_is_looked_at_alike(kind: str) -> None:
    """Bytes, and a window of a larger buffer that is used again and again."""
    data = saved(noise(), kind)
    buffer = bytearray(len(data) + 1000)
    buffer[: len(data)] = data
    wanted = look(data)
    assert (wanted.verdict, wanted.width, wanted.height) == (Verdict.PLAIN, 32, 24)
    assert look(memoryview(buffer)[: len(data)]) == look(bytearray(data)) == wanted
    if kind != "JPEG":
        with pytest.raises(PictureError, match="truncated"):
            look(memoryview(buffer)[: len(data) - 5])
