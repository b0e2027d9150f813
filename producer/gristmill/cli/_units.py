"""Sizes, durations and allowances as people write them. Pure: text in, numbers out, and back."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

import msgspec

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|)", re.IGNORECASE)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_SECONDS = 100 * 365 * 86400
_WORD = re.compile(r"[A-Za-z_][\w./:-]*")


def parse_size(text: str) -> int:
    """Bytes of ``64MB`` (10^6), ``1GiB`` (2^30), ``512k`` or ``1000``.

    Raises:
        ValueError: it is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size: write it like 64MB, 1GiB or 500000")
    number, prefix, binary = match.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** " kmgt".index(prefix.lower() or " "))


def parse_duration(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``10m``, ``1.5h`` or ``2d``.

    Raises:
        ValueError: it is no duration.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no duration: write it like 90, 90s, 10m or 1.5h")
    return float(match[1]) * _SECONDS[match[2].lower()]


class Deadline(msgspec.Struct, frozen=True):
    """A moment: so many seconds from now, or (when that is None) at a wall-clock time, ms since the epoch."""

    after_s: float | None = None
    at_ms: int = 0

    def ms(self, now_ms: int) -> int:
        """The moment in ms since the epoch, when it is `now_ms`."""
        return self.at_ms if self.after_s is None else now_ms + round(self.after_s * 1000)


def parse_deadline(text: str) -> Deadline:
    """The moment of ``90m`` (from now) or ``2026-08-01T06:00`` (local time, unless it names a zone).

    Raises:
        ValueError: it is neither.
    """
    try:
        after_s = parse_duration(text)
    except ValueError:
        pass
    else:
        if not 0 < after_s <= _MAX_SECONDS:
            raise ValueError(f"{text!r} is no deadline: it is more than 0 and less than a hundred years away")
        return Deadline(after_s)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a duration such as 90m or 2d nor a time such as 2026-08-01T06:00"
        ) from None
    return Deadline(None, round(at.timestamp() * 1000))


def parse_max_failures(text: str) -> tuple[int, float]:
    """(count, percent) of ``100`` or ``5%``; the other one is 0.

    Raises:
        ValueError: neither a positive count nor a percentage between 0 and 100.
    """
    text = text.strip()
    percent = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text)
    if percent is not None and 0 < float(percent[1]) <= 100:
        return 0, float(percent[1])
    if text.isdecimal() and int(text) > 0:
        return int(text), 0.0
    raise ValueError(f"{text!r} is neither a count such as 100 nor a percentage such as 5%")


def parse_assignment(text: str) -> tuple[str, Any]:
    """Key and value of ``temperature=0.2``; the value is JSON, or a bare word, which is a string.

    Raises:
        ValueError: no key, or a value that is neither; the message shows the key only.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ValueError("write it as key=value, with a JSON value: temperature=0.2")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        pass
    if value in {"True", "False", "None"}:
        raise ValueError(f"{key}: JSON spells it {({'None': 'null'}).get(value, value.lower())}")
    if not _WORD.fullmatch(value):
        raise ValueError(f"the value of {key} is not JSON; a text needs quotes that the shell keeps: '{key}=\"...\"'")
    return key, value


def format_count(n: float) -> str:
    """``1,234`` below a hundred thousand, then ``123k``, ``4.56M``, ``1.23G``."""
    for limit, divisor, suffix in ((1e5, 1, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if n < limit:
            return f"{n / divisor:,.0f}{suffix}" if suffix != "M" else f"{n / divisor:.2f}M"
    return f"{n / 1e9:.2f}G"


def format_rate(per_s: float) -> str:
    """Two to three significant digits: ``0.25``, ``7.3``, ``128``, ``12.3k``."""
    if per_s < 1:
        return f"{per_s:.2f}"
    if per_s < 10:
        return f"{per_s:.1f}"
    return f"{per_s:.0f}" if per_s < 10_000 else f"{per_s / 1000:.1f}k"


def format_bytes(n: float) -> str:
    """``512 B``, ``64 MiB``, ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def format_duration(seconds: float) -> str:
    """``0:07``, ``12:34``, ``1:02:03`` or ``2d 03:04``."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days}d {h:02}:{m:02}"
    return f"{h}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"
