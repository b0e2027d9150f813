"""Variants of the sample photographs, each with what a right answer must say about it.

A model server should see the picture that a person sees: upright, in RGB, transparency on white, the first frame of an
animation. So what is expected is measured on the photograph itself, before a variant is written from it. Each variant
is cropped to another width, and wider than high, so that one lying on its side or taken for another shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageChops, ImageStat

PHOTOS = Path(__file__).parent / "photos"
ORIENTATION_TAG = 0x0112
MAX_SIDE = 800  # pixels: the two big photographs would take most of the demo's time

# How a picture has to be stored, so that the viewer who obeys the tag sees it upright.
STORED_AS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@dataclass(frozen=True)
class Picture:
    """One written file and what it shows: size in pixels as seen, mean colour 0..255 a channel."""

    path: Path
    photo: str
    variant: str
    width: int
    height: int
    mean_rgb: tuple[float, ...]
    tolerance: float


def _mean_rgb(seen: Image.Image) -> tuple[float, ...]:
    return tuple(ImageStat.Stat(seen.convert("RGB")).mean)


def _jpeg(rgb: Image.Image, path: Path) -> Image.Image:
    rgb.save(path, "JPEG", quality=92)
    return rgb


def _turned(orientation: int) -> Callable[[Image.Image, Path], Image.Image]:
    def write(rgb: Image.Image, path: Path) -> Image.Image:
        exif = Image.Exif()
        exif[ORIENTATION_TAG] = orientation
        rgb.transpose(STORED_AS[orientation]).save(path, "JPEG", quality=92, exif=exif)
        return rgb

    return write


def _grey_jpeg(rgb: Image.Image, path: Path) -> Image.Image:
    grey = rgb.convert("L")
    grey.save(path, "JPEG", quality=92)
    return grey


def _cmyk(rgb: Image.Image, path: Path) -> Image.Image:
    rgb.convert("CMYK").save(path, "JPEG", quality=95)
    return rgb


def _png(rgb: Image.Image, path: Path) -> Image.Image:
    rgb.save(path, "PNG", compress_level=1)
    return rgb


def _palette(rgb: Image.Image, path: Path) -> Image.Image:
    small = rgb.quantize(64, dither=Image.Dither.NONE)
    small.save(path, "PNG", compress_level=1)
    return small


def _transparent(rgb: Image.Image, path: Path) -> Image.Image:
    alpha = Image.linear_gradient("L").resize(rgb.size)
    layered = rgb.copy()
    layered.putalpha(alpha)
    layered.save(path, "PNG", compress_level=1)
    return Image.composite(rgb, Image.new("RGB", rgb.size, "white"), alpha)


def _sixteen_bit(rgb: Image.Image, path: Path) -> Image.Image:
    grey = rgb.convert("L")
    grey.convert("I").point(lambda level: level * 257 + 0).convert("I;16").save(path, "PNG", compress_level=1)
    return grey


def _webp(rgb: Image.Image, path: Path) -> Image.Image:
    rgb.save(path, "WEBP", quality=90, method=0)
    return rgb


def _animated(kind: str) -> Callable[[Image.Image, Path], Image.Image]:
    def write(rgb: Image.Image, path: Path) -> Image.Image:
        first = rgb.quantize(64, dither=Image.Dither.NONE).convert("RGB")
        second = ImageChops.invert(first)
        first.save(path, kind, save_all=True, append_images=[second], duration=200, lossless=True, method=0)
        return first

    return write


# name -> (suffix, writer that returns the picture as seen, how far the mean colour may be off)
VARIANTS: dict[str, tuple[str, Callable[[Image.Image, Path], Image.Image], float]] = {
    "jpeg": ("jpg", _jpeg, 2.0),
    "jpeg, turned right by EXIF": ("jpg", _turned(6), 2.0),
    "png": ("png", _png, 2.0),
    "jpeg, CMYK": ("jpg", _cmyk, 3.0),
    "jpeg, turned left by EXIF": ("jpg", _turned(8), 2.0),
    "png, palette": ("png", _palette, 2.0),
    "png, transparent": ("png", _transparent, 2.0),
    "jpeg, upside down by EXIF": ("jpg", _turned(3), 2.0),
    "webp": ("webp", _webp, 2.0),
    "png, 16 bit": ("png", _sixteen_bit, 2.0),
    "jpeg, mirrored and turned by EXIF": ("jpg", _turned(5), 2.0),
    "webp, animated": ("webp", _animated("WEBP"), 2.0),
    "jpeg, grey": ("jpg", _grey_jpeg, 2.0),
    "gif, animated": ("gif", _animated("GIF"), 3.0),
    "jpeg, mirrored by EXIF": ("jpg", _turned(2), 2.0),
}


def make(folder: Path, count: int) -> Iterator[Picture]:
    """Write `count` pictures into `folder`: every photograph in turn, every variant in turn."""
    photos = [(path.stem, Image.open(path).convert("RGB")) for path in sorted(PHOTOS.iterdir())]
    variants = list(VARIANTS.items())
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        photo, original = photos[i % len(photos)]
        name, (suffix, write, tolerance) = variants[i % len(variants)]
        width, height = min(original.width, MAX_SIDE), min(original.height, MAX_SIDE)
        cropped = original.crop((0, 0, width - i % 256, height * 3 // 4 - i % 7))
        path = folder / f"{i:04d}-{photo}.{suffix}"
        seen = write(cropped, path)
        yield Picture(path, photo, name, seen.width, seen.height, _mean_rgb(seen), tolerance)
