"""Sizes, durations and allowances as people write them."""

from __future__ import annotations

from datetime import datetime

import pytest

from gristmill.cli import _units as units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("500000", 500_000),
        ("64MB", 64_000_000),
        ("64 mb", 64_000_000),
        ("1GiB", 1 << 30),
        ("512k", 512_000),
        ("1.5Ki", 1536),
        ("2T", 2 * 10**12),
    ],
)
def test_sizes(text: str, expected: int):
    """Decimal and binary units, with or without B, in any case."""
    assert units.parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "MB", "-1", "1XB", "1 2", "1e9", "64MBs"])
def test_no_sizes(text: str):
    """Anything else is refused with an example."""
    with pytest.raises(ValueError, match="64MB"):
        units.parse_size(text)


@pytest.mark.parametrize(("text", "expected"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("2d", 172800)])
def test_durations(text: str, expected: float):
    """Seconds without a unit; s, m, h and d."""
    assert units.parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "s", "-1", "1w", "1h30m"])
def test_no_durations(text: str):
    """Anything else is refused with an example."""
    with pytest.raises(ValueError, match="10m"):
        units.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("100", (100, 0.0)), ("5%", (0, 5.0)), ("0.5 %", (0, 0.5)), ("100%", (0, 100.0))]
)
def test_failure_allowances(text: str, expected: tuple[int, float]):
    """A count or a percentage."""
    assert units.parse_max_failures(text) == expected


@pytest.mark.parametrize("text", ["0", "0%", "101%", "-3", "1.5", "many", ""])
def test_no_failure_allowances(text: str):
    """An allowance that means nothing is refused."""
    with pytest.raises(ValueError, match="5%"):
        units.parse_max_failures(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("temperature=0.2", ("temperature", 0.2)),
        ('stop=["a","b=c"]', ("stop", ["a", "b=c"])),
        ("stream_options=null", ("stream_options", None)),
        ("reasoning_effort=low", ("reasoning_effort", "low")),
        ("model=org/name-1.5:q4", ("model", "org/name-1.5:q4")),
        ('user="two words"', ("user", "two words")),
    ],
)
def test_assignments(text: str, expected: tuple[str, object]):
    """The value is JSON; a bare word is a string."""
    assert units.parse_assignment(text) == expected


@pytest.mark.parametrize("text", ["temperature", "=1", 'f={"a":1', "user=two words", "flag=True", "x=None", "x="])
def test_no_assignments(text: str):
    """Damaged JSON and Python's spellings are refused, and the value is not repeated (it may be a prompt)."""
    with pytest.raises(ValueError, match=r"JSON") as caught:
        units.parse_assignment(text)
    assert "two words" not in str(caught.value)


@pytest.mark.parametrize(
    ("n", "expected"),
    [(0, "0"), (99_999, "99,999"), (123_456, "123k"), (4_560_000, "4.56M"), (1_230_000_000, "1.23G")],
)
def test_counts_stay_short(n: int, expected: str):
    """Large counts are shortened."""
    assert units.format_count(n) == expected


@pytest.mark.parametrize(("s", "expected"), [(7, "0:07"), (754, "12:34"), (3723, "1:02:03"), (183_840, "2d 03:04")])
def test_durations_are_read_at_a_glance(s: float, expected: str):
    """Minutes, hours and days."""
    assert units.format_duration(s) == expected


def test_rates_and_bytes():
    """Rates keep two to three digits, bytes have binary units."""
    assert [units.format_rate(r) for r in (0.25, 7.34, 128.4, 12_345)] == ["0.25", "7.3", "128", "12.3k"]
    assert [units.format_bytes(b) for b in (512, 1 << 16, 64 << 20, 3 << 29)] == [
        "512 B",
        "64 KiB",
        "64 MiB",
        "1.5 GiB",
    ]


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("90s", 1_090_000),
        ("2d", 1_000_000 + 2 * 86_400_000),
        ("2026-08-01T06:00Z", 1_785_564_000_000),
        ("2026-08-01T06:00+02:00", 1_785_556_800_000),
        ("2026-08-01 06:00:30.5Z", 1_785_564_030_500),
    ],
)
def test_a_deadline_is_a_duration_from_now_or_a_time(text: str, expected_ms: int):
    """At 1,000 s since the epoch."""
    assert units.parse_deadline(text).ms(1_000_000) == expected_ms


def test_a_deadline_without_a_zone_is_local_time():
    """As the person who types it means it."""
    local = datetime(2026, 8, 1, 6).astimezone().timestamp()
    assert units.parse_deadline("2026-08-01T06:00").ms(0) == round(local * 1000)


@pytest.mark.parametrize("text", ["soon", "", "0", "0s", "-3m", "2026-13-01", "99999999d"])
def test_what_is_no_deadline_is_refused(text: str):
    """With what it may be."""
    with pytest.raises(ValueError, match=r"deadline|duration"):
        units.parse_deadline(text)
