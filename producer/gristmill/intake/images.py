"""Make any picture fit to send: upright, RGB or grey, one frame, within limits. Runs in the encoder processes only.

Decoders are where crafted files crash and eat memory: `gristmill.intake.encoder_pool` keeps all of this in processes
that may die. The list of formats is closed: Pillow alone would also start external programs for some.

Output is always JPEG: it is what every server reads, and a quarter of a second faster than PNG. Metadata (position,
camera) is not copied.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import msgspec
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from gristmill.intake.errors import PictureError
from gristmill.intake.options import ImageOptions

FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM", "ICO", "TGA", "DDS", "QOI")
_QUALITIES = (85, 75, 65, 50)
_SCALES = (0.75, 0.5, 0.35, 0.25, 0.125)
_WHITE = (255, 255, 255)
_MAX_JPEG_SIDE = 65_500
_FULL_CHROMA_QUALITY = 90
"""From here on colour is kept at full resolution: thin coloured text on colour would blur otherwise."""
_ORIENTATION = 0x0112
_UPRIGHT = 1

Save = Callable[[Image.Image, int, int], bytes]
"""Picture, quality and Pillow's number for the subsampling -> JPEG."""


class Encoded(msgspec.Struct, frozen=True):
    """A JPEG that is fit to send, and its size in pixels."""

    data: bytes
    width: int
    height: int


def encode_picture(data: bytes, options: ImageOptions) -> Encoded:
    """`data` as a JPEG that is fit to send.

    Raises:
        PictureError: no picture, truncated, damaged, too many pixels, or too large even when stepped down.
        MemoryError: the process's limit is too low for it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about odd metadata; a picture that decodes is good
            picture = _decode(data, options)
    except PictureError:
        raise
    except MemoryError:
        raise
    except UnidentifiedImageError:
        raise PictureError("it is not a picture of a known format") from None
    except Exception as error:  # noqa: BLE001 -- decoders raise whatever a crafted file makes them raise
        raise PictureError(_reason(error)) from None
    return within_bytes(picture, options)


def prepare(picture: Image.Image, options: ImageOptions) -> Image.Image:
    """A decoded picture as it is to be encoded: upright, RGB or grey, within `max_pixels`; `picture` is not changed.

    Raises:
        PictureError: it has no pixels, or too many.
    """
    pixels = picture.width * picture.height
    if pixels < 1:
        raise PictureError("it has no pixels")
    if pixels > options.bomb_pixels:
        raise PictureError(f"it has {picture.width} x {picture.height} pixels, more than {options.bomb_pixels:,}")
    if picture.getexif().get(_ORIENTATION, _UPRIGHT) != _UPRIGHT:  # else it would be copied for nothing
        picture = ImageOps.exif_transpose(picture)
    return _within_pixels(_plain(picture), options.max_pixels)


def _reason(error: Exception) -> str:
    """Pillow's words where they are known to name no content."""
    text = str(error)
    if "truncated" in text or isinstance(error, EOFError):
        return "it is truncated"
    return f"it can't be decoded ({type(error).__name__})"


def _decode(data: bytes, options: ImageOptions) -> Image.Image:
    ImageFile.LOAD_TRUNCATED_IMAGES = options.allow_truncated
    Image.MAX_IMAGE_PIXELS = None  # our own limit stands below, as an error and not as a warning
    picture = Image.open(io.BytesIO(data), formats=_known_formats())
    pixels = picture.width * picture.height
    if pixels < 1:
        raise PictureError("it has no pixels")
    if pixels > options.bomb_pixels:
        raise PictureError(f"it claims {picture.width} x {picture.height} pixels, more than {options.bomb_pixels:,}")
    if picture.format == "JPEG" and options.max_pixels and picture.mode in ("RGB", "L"):
        _draft(picture, options.max_pixels)
    picture.load()
    upright = ImageOps.exif_transpose(picture)
    return _within_pixels(_plain(upright), options.max_pixels)


def _known_formats() -> list[str]:
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _draft(picture: Image.Image, max_pixels: int) -> None:
    """Let the JPEG decoder scale by 1/2, 1/4 or 1/8, to no less than `max_pixels`: several times faster."""
    scale = math.sqrt(max_pixels / (picture.width * picture.height))
    if scale <= 0.5:
        picture.draft(picture.mode, (math.ceil(picture.width * scale), math.ceil(picture.height * scale)))


def _plain(picture: Image.Image) -> Image.Image:
    """RGB or L with 8 bits; transparency is laid on white."""
    if picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info:
        return _on_white(picture)
    if picture.mode in ("RGB", "L"):
        return picture
    if picture.mode == "1":
        return picture.convert("L")
    if picture.mode[0] in "IF":
        return _to_8_bits(picture)
    return picture.convert("RGB")


def _on_white(picture: Image.Image) -> Image.Image:
    if picture.mode[0] in "IF":
        return _to_8_bits(picture)  # one transparent grey value of 16 bits: not worth more
    if picture.mode in ("RGBa", "La"):
        picture = picture.convert("RGBA" if picture.mode == "RGBa" else "LA")
    layer = picture.convert("RGBA")
    ground = Image.new("RGB", layer.size, _WHITE)
    ground.paste(layer, mask=layer.getchannel("A"))
    return ground


def _to_8_bits(picture: Image.Image) -> Image.Image:
    """16-bit, 32-bit and floating grey scaled to 0..255, where a plain convert would clip nearly all of it to white."""
    values = picture if picture.mode == "F" else picture.convert("I").convert("F")
    extrema: Any = values.getextrema()
    low, high = extrema
    offset, span = _range(picture.mode, float(low), float(high))
    scale = 255.0 / span
    return values.point(lambda v: v * scale + (0.5 - offset * scale)).convert("L")


def _range(mode: str, low: float, high: float) -> tuple[float, float]:
    """(offset, span) of the scale: the mode's natural one where the values lie in it, else their own."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise PictureError("it holds values that are not numbers")
    naturals = (1.0, 255.0, 65535.0) if mode == "F" else (65535.0,)
    for natural in naturals:
        if low >= 0 and high <= natural:
            return 0.0, natural
    return low, (high - low) or 1.0


def _within_pixels(picture: Image.Image, max_pixels: int) -> Image.Image:
    scale = min(1.0, _MAX_JPEG_SIDE / max(picture.size))
    if max_pixels:
        scale = min(scale, math.sqrt(max_pixels / (picture.width * picture.height)))
    return picture if scale >= 1.0 else _scaled(picture, scale)


def _scaled(picture: Image.Image, scale: float) -> Image.Image:
    size = max(1, math.floor(picture.width * scale)), max(1, math.floor(picture.height * scale))
    return picture.resize(size, Image.Resampling.LANCZOS)


def within_bytes(picture: Image.Image, options: ImageOptions, save: Save | None = None) -> Encoded:
    """A prepared picture as a JPEG of at most `max_bytes`: less quality first, then fewer pixels at a middle quality.

    Raises:
        PictureError: it is too large even when stepped down.
    """
    limit, save = options.max_bytes, save or _save
    data = b""
    for quality in (options.quality, *(q for q in _QUALITIES if q < options.quality)):
        data = save(picture, quality, _subsampling(quality))
        if not limit or len(data) <= limit:
            return Encoded(data, *picture.size)
    for scale in _SCALES:
        smaller = _scaled(picture, scale)
        quality = min(options.quality, 75)
        data = save(smaller, quality, _subsampling(quality))
        if len(data) <= limit:
            return Encoded(data, *smaller.size)
    raise PictureError(f"it still has {len(data):,} bytes when stepped down, the limit is {limit:,}")


def _subsampling(quality: int) -> int:
    return 0 if quality >= _FULL_CHROMA_QUALITY else 2


def _save(picture: Image.Image, quality: int, subsampling: int) -> bytes:
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=quality, subsampling=subsampling)
    return out.getvalue()
