"""Repeated custom_ids are found whatever the distance, with both lines, in memory that does not grow with the input."""

from __future__ import annotations

import random
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.contract.failure import FailureClass
from gristmill.intake import duplicates
from gristmill.intake.draft import Refused
from gristmill.intake.duplicates import AT_HAND, SeenIds, require_unique
from gristmill.intake.encode import Entry, refused_entry
from gristmill.intake.errors import InputError
from gristmill.intake.lines_seen import LinesSeen, Notice
from gristmill.intake.readers import Line

CAP = 1 << 20


def entry(line: int, custom_id: str) -> Entry:
    """A line as the feeder sees it; refused, since that needs no body."""
    return refused_entry(
        Line(line, line, b""), line - 1, Refused(custom_id, FailureClass.BAD_INPUT, "is not an object")
    )


@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(0, 30), max_size=120), at_hand=st.integers(1, 40))
def test_each_repetition_is_found_once_with_a_line_before_it(ids: list[int], at_hand: int) -> None:
    """Near ones at once, far ones at the end: together as many as there are lines that repeat an id, each with an
    earlier line of the same id; and each id that comes back is told with its very first line."""
    seen, found = SeenIds(at_hand=at_hand), list[tuple[int, int]]()
    for line, one in enumerate(ids, 1):
        first = seen.first_line(f"id-{one}", line)
        found += [] if first is None else [(first, line)]
    found += seen.repeats()
    seen.close()
    very_first = {one: line for line, one in reversed(list(enumerate(ids, 1)))}
    repeated = {line for line, one in enumerate(ids, 1) if very_first[one] < line}
    assert sorted(later for _, later in found) == sorted(repeated)
    assert all(first < later and ids[first - 1] == ids[later - 1] for first, later in found)
    assert {very_first[ids[later - 1]] for later in repeated} <= {first for first, _ in found}


def test_memory_does_not_grow_with_the_input() -> None:
    """Five times the ids take the same memory: what is not at hand lies in the file."""

    def peak_bytes(count: int) -> int:
        tracemalloc.start()
        seen = SeenIds(at_hand=4096)
        for line in range(1, count):
            seen.first_line(f"id-{line}", line)
        assert not list(seen.repeats())
        seen.close()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak_bytes(40_960) < 1.2 * peak_bytes(8192)


def test_a_part_larger_than_memory_is_read_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ids fall into one part, only so many are compared at a time, and none is missed."""
    monkeypatch.setattr(duplicates, "AT_HAND", 4)
    seen, chance = SeenIds(at_hand=500), random.Random(3)
    lines = [chance.randrange(4000) for _ in range(8000)]
    near = sum(seen.first_line(str(one), line) is not None for line, one in enumerate(lines, 1))
    assert near + sum(1 for _ in seen.repeats()) == len(lines) - len(set(lines))
    seen.close()


def test_strict_finds_repetitions_far_apart(tmp_path: Path) -> None:
    """Also when other ids without number lie between the two lines."""
    path = tmp_path / "input"
    between = "".join(f'{{"custom_id":"{i}"}}\n' for i in range(AT_HAND + 10))
    path.write_text('{"custom_id":"twice"}\n' + between + '{"custom_id":"twice"}\n')
    with pytest.raises(InputError, match=f"lines 1 and {AT_HAND + 12} have the same custom_id"):
        require_unique(path, max_line_bytes=CAP)
    require_unique(path, max_line_bytes=CAP, limit=AT_HAND + 11)


def test_far_repetitions_are_told_in_the_order_of_lines() -> None:
    """The first five pairs one by one, near or far, the rest as a number."""
    told: list[Notice] = []
    seen = LinesSeen(told.append, on_bad_line="record")
    for line in range(1, AT_HAND + 20):
        seen.see(entry(line, f"id-{line if line <= AT_HAND else line - AT_HAND}"))
    seen.sum_up()
    texts = [notice.text for notice in told if notice.kind == "duplicate"]
    assert seen.duplicates == 19
    assert texts == [
        *(f"lines {i} and {AT_HAND + i} have the same custom_id; both are sent" for i in range(1, 6)),
        "19 lines repeat the custom_id of an earlier line",
    ]
    seen.close()


def test_without_room_the_feeding_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Repetitions are worth a warning, no failure; the warning says where room is missing. `strict` must know them."""
    gone = str(tmp_path / "gone")
    monkeypatch.setenv("TMPDIR", gone)
    monkeypatch.setattr(tempfile, "tempdir", gone)
    told: list[Notice] = []
    seen = LinesSeen(told.append, on_bad_line="record")
    for line in range(1, AT_HAND + 3):
        seen.see(entry(line, f"id-{line}"))
    seen.sum_up()
    [warning] = [notice.text for notice in told if notice.kind == "duplicate"]
    assert warning.startswith("repeated custom_ids are not looked for any more: No such file or directory")
    assert f"in {gone}: free 16 bytes for each line there, or set TMPDIR" in warning
    path = tmp_path / "input"
    path.write_text("".join(f'{{"custom_id":"{i}"}}\n' for i in range(AT_HAND + 1)))
    with pytest.raises(InputError, match=r"can't be looked for: .* set TMPDIR"):
        require_unique(path, max_line_bytes=CAP)
