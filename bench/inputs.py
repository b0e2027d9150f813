"""Inputs of known size, all in the form that every client reads: one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

PHOTO = Path(__file__).resolve().parent.parent / "examples/photos/hubble.jpg"
PICTURE_SIZE = (1600, 1200)
PICTURE_QUALITY = 82
SENTENCE = "The miller asks what the river has brought, and writes down each sack before the stone touches it. "


def prompt(number: int, size: int) -> str:
    """About `size` characters, different for each number."""
    return (f"{number}: " + SENTENCE * (size // len(SENTENCE) + 1))[:size]


def text(folder: Path, requests: int, size: int = 2000) -> Path:
    path = folder / f"text-{requests}-{size}.jsonl"
    with path.open("w", encoding="utf-8") as out:
        for number in range(requests):
            out.write(json.dumps({"prompt": prompt(number, size)}) + "\n")
    return path


def pictures(folder: Path, requests: int) -> Path:
    """One photograph of about 300 KB a request; no two files are alike, so that nobody gains by storing one once."""
    base = folder / "base.jpg"
    with Image.open(PHOTO) as photo:
        photo.resize(PICTURE_SIZE).save(base, "JPEG", quality=PICTURE_QUALITY)
    data = base.read_bytes()
    path = folder / f"pictures-{requests}.jsonl"
    with path.open("w", encoding="utf-8") as out:
        for number in range(requests):
            comment = f"{number:08d}".encode()
            marked = data[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + data[2:]
            picture = folder / f"picture-{number}.jpg"
            picture.write_bytes(marked)
            out.write(json.dumps({"prompt": f"{number}: what is this?", "image": str(picture)}) + "\n")
    return path


def uneven(folder: Path, requests: int, short_s: float, long_s: float) -> Path:
    """Text whose last tenth takes longer to answer, as in an input sorted by length."""
    path = folder / f"uneven-{requests}.jsonl"
    with path.open("w", encoding="utf-8") as out:
        for number in range(requests):
            delay_s = long_s if number >= requests - requests // 10 else short_s
            out.write(json.dumps({"prompt": prompt(number, 200), "delay_s": delay_s}) + "\n")
    return path
