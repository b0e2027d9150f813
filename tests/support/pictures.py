"""Pictures made for tests: every mode, orientation and damage that intake must cope with."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image

RED, GREEN, BLUE, WHITE = (220, 20, 20), (20, 200, 20), (20, 20, 220), (255, 255, 255)
CORNERS = (RED, GREEN, BLUE, WHITE)


def quarters(width: int = 64, height: int = 48) -> Image.Image:
    """Red top left, green top right, blue bottom left, white bottom right: any turn or mirror shows."""
    picture = Image.new("RGB", (width, height))
    for at, colour in enumerate(CORNERS):
        left, top = (at % 2) * width // 2, (at // 2) * height // 2
        picture.paste(colour, (left, top, left + (width + 1) // 2, top + (height + 1) // 2))
    return picture


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def opened(data: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(data))
    picture.load()
    return picture


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def turned(orientation: int) -> Image.Image:
    """`quarters` as a camera stores it, to be shown upright by `orientation`."""
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    picture = quarters()
    return picture if orientation == 1 else picture.transpose(undo[orientation])


def corners(picture: Image.Image) -> list[tuple[int, ...]]:
    """The colours at the centres of the four quarters, in reading order."""
    rgb = picture.convert("RGB")
    width, height = rgb.size
    return [rgb.getpixel((width * x // 4, height * y // 4)) for y in (1, 3) for x in (1, 3)]


def close_to(seen: tuple[int, ...], wanted: tuple[int, ...], tolerance: int = 12) -> bool:
    return all(abs(a - b) <= tolerance for a, b in zip(seen, wanted, strict=True))


def shows_quarters(picture: Image.Image) -> bool:
    return all(close_to(seen, wanted) for seen, wanted in zip(corners(picture), CORNERS, strict=True))


def data_url(data: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"
