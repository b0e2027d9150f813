"""Inputs of known size, all in the form that every client reads: one JSON object a line.

Pictures are `PICTURES` different photographs, made once. Each request names one by a name of its own (a hard link), and
equal bytes come `PICTURES` requests apart: farther than any client remembers pictures by their bytes (their sum is
above 100 MB), and by name none has been seen before. So nobody gains by a cache, and 10,000 requests need no 3 GB.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

PHOTO = Path(__file__).resolve().parent.parent / "examples/photos/hubble.jpg"
PICTURES = 400
PICTURE_SIZE = (1600, 1200)
PICTURE_QUALITY = 82
STEP_PX = 8
STEPS = 20
SENTENCE = "The miller asks what the river has brought, and writes down each sack before the stone touches it. "


def prompt(number: int, size: int) -> str:
    """About `size` characters, different for each number."""
    return (f"{number}: " + SENTENCE * (size // len(SENTENCE) + 1))[:size]


def text(folder: Path, requests: int, size: int = 2000) -> Path:
    lines = ({"prompt": prompt(number, size)} for number in range(requests))
    return _write(folder / f"text-{requests}-{size}.jsonl", lines)


def pictures(folder: Path, requests: int) -> Path:
    """One JPEG of about 300 KB and 1600 x 1200 pixels a request."""
    originals = photographs(folder)
    names = folder / "named"
    names.mkdir(exist_ok=True)

    def line(number: int) -> dict[str, str]:
        path = names / f"{number}.jpg"
        if not path.exists():
            os.link(originals[number % len(originals)], path)
        return {"prompt": f"{number}: what is this?", "image": str(path)}

    return _write(folder / f"pictures-{requests}.jsonl", map(line, range(requests)))


def photographs(folder: Path) -> list[Path]:
    """`PICTURES` different cuts of one photograph."""
    home = folder / "photographs"
    paths = [home / f"{number}.jpg" for number in range(PICTURES)]
    if home.exists():
        return paths
    home.mkdir()
    width, height = PICTURE_SIZE
    with Image.open(PHOTO) as photo:
        large = photo.convert("RGB").resize((width + STEPS * STEP_PX, height + STEPS * STEP_PX))
    for number, path in enumerate(paths):
        x, y = number % STEPS * STEP_PX, number // STEPS * STEP_PX
        large.crop((x, y, x + width, y + height)).save(path, "JPEG", quality=PICTURE_QUALITY)
    return paths


def ascending(folder: Path, requests: int, median_s: float, sigma: float) -> Path:
    """Short text, each with the time that its answer takes: lognormal, ascending, as in an input sorted by length.

    The times are the quantiles of the distribution, so that every run has the same.
    """
    normal = statistics.NormalDist()

    def line(number: int) -> dict[str, str | float]:
        delay_s = median_s * math.exp(sigma * normal.inv_cdf((number + 0.5) / requests))
        return {"prompt": prompt(number, 200), "delay_s": round(delay_s, 4)}

    return _write(folder / f"ascending-{requests}.jsonl", map(line, range(requests)))


def _write(path: Path, lines: Iterable[object]) -> Path:
    with path.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)
    return path
