"""The demo's judge is right: what it expects is what a viewer sees, and it notices each kind of wrong answer."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageOps, ImageStat

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import checks  # noqa: E402  the examples are scripts beside each other
import corpus  # noqa: E402
import variants  # noqa: E402


def as_seen(path: Path) -> Image.Image:
    """What a person sees in a viewer: the first frame, upright, on white."""
    with Image.open(path) as opened:
        picture = ImageOps.exif_transpose(opened).copy()
    if picture.mode == "RGBA":
        white = Image.new("RGB", picture.size, "white")
        white.paste(picture, mask=picture.getchannel("A"))
        return white
    if picture.mode == "I;16":
        return picture.convert("I").point(lambda level: level * (1 / 257) + 0).convert("RGB")
    return picture.convert("RGB")


def test_each_variant_shows_what_is_expected_of_it(tmp_path: Path) -> None:
    """Decoded as a viewer would, every kind of file has the size and the colour that were noted for it."""
    pictures = list(variants.make(tmp_path, len(variants.VARIANTS)))
    assert {p.variant for p in pictures} == set(variants.VARIANTS)
    for picture in pictures:
        seen = as_seen(picture.path)
        assert seen.size == (picture.width, picture.height), picture.variant
        off = [abs(a - b) for a, b in zip(ImageStat.Stat(seen).mean, picture.mean_rgb, strict=True)]
        assert max(off) < picture.tolerance, picture.variant


def test_the_variants_are_what_they_are_called(tmp_path: Path) -> None:
    """A CMYK file is CMYK, an animated one moves, one that is turned by EXIF lies on its side as stored."""
    shape = {}
    pictures = {p.variant: p for p in variants.make(tmp_path, len(variants.VARIANTS))}
    for name, picture in pictures.items():
        with Image.open(picture.path) as opened:
            shape[name] = (opened.mode, getattr(opened, "n_frames", 1), opened.size)
    assert shape["jpeg, CMYK"][0] == "CMYK"
    assert shape["png, palette"][0] == "P"
    assert shape["png, transparent"][0] == "RGBA"
    assert shape["png, 16 bit"][0] == "I;16"
    assert shape["gif, animated"][1] == shape["webp, animated"][1] == 2
    turned = pictures["jpeg, turned right by EXIF"]
    assert shape[turned.variant][2] == (turned.height, turned.width) != (turned.width, turned.height)


def answer(index: int, want: checks.Expected) -> dict[str, Any]:
    content = {
        "text_sha256": hashlib.sha256(want.text.encode()).hexdigest(),
        "images": [{"width": p.width, "height": p.height, "mean_rgb": list(p.mean_rgb)} for p in want.pictures],
    }
    body = {"choices": [{"message": {"content": json.dumps(content)}}]}
    meta = {"index": index, "status": "ok", "class": "ok"}
    return {"custom_id": want.custom_id, "response": {"body": body}, "error": None, "gristmill": meta}


def change_content(line: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> None:
    message = line["response"]["body"]["choices"][0]["message"]
    content = json.loads(message["content"])
    change(content)
    message["content"] = json.dumps(content)


def swap_text(lines: list[dict[str, Any]]) -> None:
    change_content(lines[1], lambda c: c.update(text_sha256="0" * 64))


def turn_picture(lines: list[dict[str, Any]]) -> None:
    def turn(content: dict[str, Any]) -> None:
        image = content["images"][0]
        image["width"], image["height"] = image["height"], image["width"]

    change_content(next(line for line in lines if "width" in json.dumps(line)), turn)


def invert_picture(lines: list[dict[str, Any]]) -> None:
    def invert(content: dict[str, Any]) -> None:
        content["images"][0]["mean_rgb"] = [255 - level for level in content["images"][0]["mean_rgb"]]

    change_content(next(line for line in lines if "width" in json.dumps(line)), invert)


def drop_picture(lines: list[dict[str, Any]]) -> None:
    change_content(next(line for line in lines if "width" in json.dumps(line)), lambda c: c["images"].clear())


def swap_lines(lines: list[dict[str, Any]]) -> None:
    lines[2], lines[5] = lines[5], lines[2]


def lose_line(lines: list[dict[str, Any]]) -> None:
    lines.pop()


def fail_line(lines: list[dict[str, Any]]) -> None:
    lines[3] |= {"error": {"code": "timeout", "message": "no answer"}, "response": None}


@pytest.mark.parametrize(
    "spoil", [swap_text, turn_picture, invert_picture, drop_picture, swap_lines, lose_line, fail_line]
)
def test_the_judge_notices(spoil: Callable[[list[dict[str, Any]]], None], tmp_path: Path) -> None:
    """A right OUT passes, and one single thing wrong in it is found."""
    pictures = list(variants.make(tmp_path / "photos", 4))
    expected = corpus.write_requests(tmp_path / "in.jsonl", pictures, 12)
    lines = [answer(i, want) for i, want in enumerate(expected)]
    out = tmp_path / "out.jsonl"

    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    right = checks.verify(out, expected)
    assert (right.wrong, right.answers, right.texts, right.pictures) == ([], 12, 12, 4)

    spoil(lines)
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert checks.verify(out, expected).wrong
