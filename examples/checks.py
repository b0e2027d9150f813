"""What a right OUT looks like for the demo's input, checked line by line.

The stand-in endpoint answers with what it really decoded: the hash of the text, and size and mean colour of each
picture. So a wrong order, a picture on its side, a lost byte or a swapped answer shows.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from variants import Picture


@dataclass(frozen=True)
class Expected:
    """What one input line must come back with."""

    custom_id: str | None
    text: str
    pictures: tuple[Picture, ...] = ()


@dataclass
class Verdict:
    """What was right, how far the colours were off, and each thing that was wrong (in words)."""

    answers: int = 0
    texts: int = 0
    pictures: int = 0
    worst_colour: float = 0.0
    wrong: list[str] = field(default_factory=list)


def read_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def verify(out: Path, expected: list[Expected]) -> Verdict:
    """Compare OUT with `expected`, index by index."""
    verdict = Verdict()
    lines = read_lines(out)
    if len(lines) != len(expected):
        verdict.wrong.append(f"{out.name} has {len(lines)} lines for {len(expected)} requests")
    for index, (line, want) in enumerate(zip(lines, expected, strict=False)):
        _verify_line(index, line, want, verdict)
    return verdict


def _verify_line(index: int, line: dict[str, Any], want: Expected, verdict: Verdict) -> None:
    if line["gristmill"]["index"] != index or line["custom_id"] != want.custom_id:
        verdict.wrong.append(f"line {index + 1} holds index {line['gristmill']['index']}, {line['custom_id']!r}")
        return
    if line["error"] is not None or line["gristmill"]["status"] != "ok":
        verdict.wrong.append(f"line {index + 1} failed: {line['error']}")
        return
    verdict.answers += 1
    seen = json.loads(line["response"]["body"]["choices"][0]["message"]["content"])
    if seen["text_sha256"] == hashlib.sha256(want.text.encode()).hexdigest():
        verdict.texts += 1
    else:
        verdict.wrong.append(f"line {index + 1}: the text did not arrive as it was")
    if len(seen["images"]) != len(want.pictures):
        verdict.wrong.append(f"line {index + 1}: {len(seen['images'])} pictures arrived, not {len(want.pictures)}")
    for got, picture in zip(seen["images"], want.pictures, strict=False):
        _verify_picture(index, got, picture, verdict)


def _verify_picture(index: int, got: dict[str, Any], want: Picture, verdict: Verdict) -> None:
    where = f"line {index + 1}: {want.path.name} ({want.variant})"
    if (got["width"], got["height"]) != (want.width, want.height):
        verdict.wrong.append(f"{where} arrived as {got['width']}x{got['height']}, not {want.width}x{want.height}")
        return
    off = max(abs(a - b) for a, b in zip(got["mean_rgb"], want.mean_rgb, strict=True))
    verdict.worst_colour = max(verdict.worst_colour, off)
    if off > want.tolerance:
        verdict.wrong.append(f"{where} is off by {off:.1f} in colour")
        return
    verdict.pictures += 1
