"""Pictures of every kind become upright RGB or grey JPEGs, or are refused with a reason."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
from PIL import Image
from tests.support.pictures import (
    BLUE,
    GREEN,
    RED,
    WHITE,
    close_to,
    corners,
    exif,
    opened,
    quarters,
    saved,
    shows_quarters,
    turned,
)

from gristmill.intake.errors import PictureError
from gristmill.intake.images import encode_picture
from gristmill.intake.options import ImageOptions
from gristmill.intake.structure import Verdict, look

PLAIN = ImageOptions()


def encoded(data: bytes, options: ImageOptions = PLAIN) -> Image.Image:
    return opened(encode_picture(data, options).data)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_every_orientation_is_applied(orientation: int, kind: str) -> None:
    """A picture turned by its EXIF orientation comes out upright, and needs the encoder unless it is upright."""
    options = {"quality": 95} if kind != "PNG" else {}
    data = saved(turned(orientation), kind, exif=exif(orientation), **options)
    out = encoded(data)
    assert out.size == (64, 48)
    assert shows_quarters(out)
    if kind != "TIFF":
        assert (look(data).verdict is Verdict.PLAIN) is (orientation == 1)


def test_orientation_in_xmp_goes_to_the_encoder() -> None:
    """An orientation that only XMP holds is not missed by the fast look."""
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="6"/></x:xmpmeta>'
    data = saved(turned(6), "JPEG", xmp=xmp, quality=95)
    assert look(data).verdict is Verdict.ENCODE
    assert shows_quarters(encoded(data))


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "CMYK", "YCbCr", "LAB"])
def test_colour_modes_become_rgb_or_grey(mode: str) -> None:
    """Each opaque mode keeps what it shows."""
    kind = "JPEG" if mode in ("CMYK", "YCbCr") else "TIFF" if mode == "LAB" else "PNG"
    source = quarters()
    picture = source.convert(mode)
    out = encoded(saved(picture, kind, **({"quality": 95} if kind == "JPEG" else {})))
    assert out.mode in ("RGB", "L")
    if mode in ("L", "1"):
        assert corners(out)[3] > corners(out)[2]
    else:
        assert all(close_to(a, b, 60) for a, b in zip(corners(out), corners(picture.convert("RGB")), strict=True))


def test_palette_with_transparency_is_laid_on_white() -> None:
    """A palette's transparent entry shows white, not the colour that happens to lie there."""
    picture = quarters().quantize(4)
    transparent = picture.getpixel((5, 5))
    out = encoded(saved(picture, "PNG", transparency=transparent))
    assert close_to(corners(out)[0], WHITE)
    assert close_to(corners(out)[1], GREEN, 30)


@pytest.mark.parametrize(("mode", "kind"), [("RGBA", "PNG"), ("RGBA", "WEBP"), ("LA", "PNG"), ("PA", "PNG")])
def test_alpha_is_composited_on_white(mode: str, kind: str) -> None:
    """Transparent parts are white, half-transparent ones half white, opaque ones themselves."""
    picture = quarters().convert("RGBA")
    alpha = Image.new("L", picture.size, 255)
    alpha.paste(0, (0, 0, 32, 24))
    alpha.paste(128, (32, 0, 64, 24))
    picture.putalpha(alpha)
    if mode == "LA":
        picture = picture.convert("LA")
    data = saved(picture, kind, **({"lossless": True} if kind == "WEBP" else {}))
    assert look(data).verdict is Verdict.ENCODE
    seen = corners(encoded(data))
    assert close_to(seen[0], WHITE)
    if mode == "RGBA":
        assert close_to(seen[1], (137, 227, 137), 20)
        assert close_to(seen[2], BLUE)


def test_grey_transparency_chunk_is_laid_on_white() -> None:
    """A grey PNG whose tRNS chunk makes one shade transparent shows white there."""
    picture = Image.new("L", (16, 16), 10)
    data = saved(picture, "PNG", transparency=10)
    assert look(data).verdict is Verdict.ENCODE
    assert encoded(data).convert("L").getpixel((8, 8)) > 250


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_deep_grey_is_scaled_not_clipped(mode: str) -> None:
    """Half of the 16-bit range is middle grey; a plain conversion would clip it to white."""
    middle = {"I;16": 32768, "I": 32768, "F": 0.5}[mode]
    picture = Image.new(mode, (16, 16), middle)
    kind = "PNG" if mode == "I;16" else "TIFF"
    out = encoded(saved(picture, kind))
    assert out.mode == "L"
    assert abs(out.getpixel((8, 8)) - 128) <= 2


def test_sixteen_bit_rgb_png_goes_to_the_encoder() -> None:
    """A 48-bit PNG keeps its colours at 8 bits."""
    row = b"\0" + struct.pack(">HHH", 0xDC00, 0x1400, 0x1400) * 8
    header = struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * 8)) + chunk(b"IEND", b"")
    assert look(data).verdict is Verdict.ENCODE
    assert close_to(encoded(data).getpixel((4, 4)), RED)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animations_give_their_first_frame(kind: str) -> None:
    """GIF, animated WebP and APNG are sent as their first frame."""
    frames = [quarters(), Image.new("RGB", (64, 48), "black")]
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=100)
    assert look(data).verdict is Verdict.ENCODE
    assert all(close_to(a, b, 60) for a, b in zip(corners(encoded(data)), (RED, GREEN, BLUE, WHITE), strict=True))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"restart_marker_blocks": 1}),
        ("PNG", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
    ],
)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_plain_files_are_known_as_such(kind: str, options: dict[str, object], mode: str) -> None:
    """Whole, upright files of the three formats need no encoder, and their size is read right."""
    data = saved(quarters(300, 200).convert(mode), kind, **options)
    seen = look(data)
    assert (seen.verdict, seen.mime, seen.width, seen.height) == (Verdict.PLAIN, f"image/{kind.lower()}", 300, 200)


@pytest.mark.parametrize("kind", ["JPEG", "progressive JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"])
@pytest.mark.parametrize("part", [0.15, 0.5, 0.9, 0.995])
def test_truncated_files_are_refused(kind: str, part: float) -> None:
    """Wherever a file is cut, it is refused as truncated or unreadable, and never passed through."""
    noise = Image.effect_noise((300, 200), 80).convert("RGB")
    data = saved(noise, kind.rsplit(maxsplit=1)[-1], **({"progressive": True} if " " in kind else {}))
    cut = data[: int(len(data) * part)]

    def send() -> None:
        assert look(cut).verdict is Verdict.ENCODE
        encode_picture(cut, PLAIN)

    with pytest.raises(PictureError):
        send()


def test_cut_jpeg_whose_thumbnail_is_whole_is_refused() -> None:
    """The end marker of a thumbnail inside EXIF does not make a cut picture whole."""
    tags = exif(1)
    thumbnail = saved(quarters(), "JPEG")
    data = saved(Image.effect_noise((300, 200), 80), "JPEG", exif=tags, comment=thumbnail)
    assert look(data).verdict is Verdict.PLAIN
    cut = data[: len(data) // 2]
    assert look(cut).verdict is Verdict.ENCODE
    with pytest.raises(PictureError, match="truncated"):
        encode_picture(cut, PLAIN)


def test_truncated_picture_is_sent_when_tolerated() -> None:
    """`allow_truncated` keeps what can be decoded."""
    data = saved(Image.effect_noise((300, 200), 80), "JPEG")
    out = encode_picture(data[: len(data) // 2], ImageOptions(allow_truncated=True))
    assert (out.width, out.height) == (300, 200)
    png = saved(Image.effect_noise((300, 200), 80), "PNG")
    assert look(png[:-200], allow_truncated=True).verdict is Verdict.ENCODE


def test_damaged_png_is_refused_by_its_checksum() -> None:
    """One flipped bit in a PNG's data is found without decoding."""
    data = bytearray(saved(quarters(), "PNG"))
    data[len(data) // 2] ^= 1
    with pytest.raises(PictureError, match="checksum"):
        look(bytes(data))


def test_trailing_bytes_do_not_hurt() -> None:
    """Cameras append second pictures and padding: the first picture is whole all the same."""
    data = saved(quarters(), "JPEG")
    assert look(data + data + b"\0" * 500).verdict is Verdict.PLAIN


@pytest.mark.parametrize("data", [b"not a picture", b"<html>404</html>", b"%PDF-1.7", b"\xff\xd8\xff", b"GIF89a"])
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    """Text, web pages and bare headers have a reason, and none of their content in it."""
    assert look(data).verdict is Verdict.ENCODE
    with pytest.raises(PictureError) as caught:
        encode_picture(data, PLAIN)
    assert "404" not in caught.value.reason


def test_empty_file_is_refused() -> None:
    """An empty file says so."""
    with pytest.raises(PictureError, match="empty"):
        look(b"")


def test_postscript_is_never_opened() -> None:
    """EPS would make Pillow start an external program: it is no known format here."""
    with pytest.raises(PictureError, match="known format"):
        encode_picture(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", PLAIN)


def test_bomb_is_refused_before_it_is_decoded() -> None:
    """A small file that claims billions of pixels is refused by its header alone."""
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)
    data = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )
    with pytest.raises(PictureError, match="100000 x 100000"):
        encode_picture(data, PLAIN)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_max_pixels_scales_down_and_keeps_the_shape(kind: str) -> None:
    """The result fits, keeps its aspect, and is not much smaller than allowed."""
    data = saved(quarters(1600, 1200), kind)
    out = encoded(data, ImageOptions(max_pixels=100_000))
    width, height = out.size
    assert 95_000 < width * height <= 100_000
    assert abs(width / height - 4 / 3) < 0.02
    assert shows_quarters(out)


def test_max_bytes_steps_down_quality_then_size() -> None:
    """Quality goes first; when it does not suffice, pixels go; in the end the picture is refused."""
    data = saved(Image.effect_noise((400, 300), 90).convert("RGB"), "PNG")
    whole = encode_picture(data, PLAIN)
    less = encode_picture(data, ImageOptions(max_bytes=len(whole.data) * 2 // 3))
    assert len(less.data) <= len(whole.data) * 2 // 3
    assert (less.width, less.height) == (400, 300)
    small = encode_picture(data, ImageOptions(max_bytes=len(whole.data) // 20))
    assert len(small.data) <= len(whole.data) // 20
    assert small.width < 400
    with pytest.raises(PictureError, match="stepped down"):
        encode_picture(data, ImageOptions(max_bytes=100))


def test_metadata_is_not_copied() -> None:
    """Position and camera of a re-encoded picture stay at home."""
    tags = exif(6)
    tags[0x010F] = "SECRETCAM"
    out = encode_picture(saved(turned(6), "JPEG", exif=tags), PLAIN).data
    assert b"SECRETCAM" not in out
    assert not Image.open(io.BytesIO(out)).getexif()
