"""The judge of the chaos tier sees what it is there to see: a lost, a doubled, a swapped, a misplaced, a failed row."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.chaos_input import CLASS_OF, FIRST_PLANTED, REFUSED_EVERY, Sheet, examine

SHEET = Sheet("s", 1_600, poison=700)
REFUSED_ROW, BAD_ROW = REFUSED_EVERY, 1_499


def line(row: int) -> dict[str, Any]:
    """What OUT should hold for `row`."""
    kind = SHEET.kind(row)
    tail = {"index": row, "status": "ok" if kind == "sound" else "failed", "class": CLASS_OF.get(kind, "ok")}
    content = json.dumps({"text_sha256": SHEET.digest(row)})
    return {
        "custom_id": None if kind == "bad" else f"s-{row}",
        "response": {"body": {"choices": [{"message": {"content": content}}]}} if kind == "sound" else None,
        "error": None if kind == "sound" else {"message": "planted"},
        "gristmill": tail,
    }


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def test_what_is_planted_is_expected(tmp_path: Path):
    """A right OUT is clean; planted rows failed, and it knows which of them no endpoint was asked for."""
    found = examine(SHEET, written(tmp_path / "out", [line(row) for row in range(SHEET.rows)]))
    assert found.clean, found.examples
    assert (found.rows, found.never_sent) == (1_600, 2)
    assert [SHEET.kind(row) for row in (0, FIRST_PLANTED, 700, REFUSED_ROW, BAD_ROW)] == [
        "sound", "sound", "poison", "refused", "bad",
    ]  # fmt: skip


def lose(lines: list[dict[str, Any]]) -> None:
    del lines[5]


def double(lines: list[dict[str, Any]]) -> None:
    lines.insert(6, line(5))


def swap_answers(lines: list[dict[str, Any]]) -> None:
    lines[5]["response"], lines[6]["response"] = lines[6]["response"], lines[5]["response"]


def swap_places(lines: list[dict[str, Any]]) -> None:
    lines[5], lines[6] = lines[6], lines[5]


def fail(lines: list[dict[str, Any]]) -> None:
    lines[5] |= {"error": {"message": "?"}, "gristmill": {"index": 5, "status": "failed", "class": "timeout"}}


def answer_what_was_refused(lines: list[dict[str, Any]]) -> None:
    lines[REFUSED_ROW]["gristmill"]["status"] = "ok"


def name_another(lines: list[dict[str, Any]]) -> None:
    lines[5]["custom_id"] = "s-6"


@pytest.mark.parametrize(
    ("spoil", "lost", "doubled", "wrong"),
    [
        (lose, 1, 0, 0), (double, 0, 1, 0), (swap_answers, 0, 0, 2), (swap_places, 0, 0, 1), (fail, 0, 0, 1),
        (answer_what_was_refused, 0, 0, 1), (name_another, 0, 0, 1),
    ],
)  # fmt: skip
def test_each_fault_is_seen(
    tmp_path: Path, spoil: Callable[[list[dict[str, Any]]], None], lost: int, doubled: int, wrong: int
):
    """One fault in an OUT that is right otherwise is counted as what it is, and told in words."""
    lines = [line(row) for row in range(SHEET.rows)]
    spoil(lines)
    found = examine(SHEET, written(tmp_path / "out", lines))
    assert (found.lost, found.doubled, found.wrong) == (lost, doubled, wrong)
    assert not found.clean
    assert found.examples


def test_a_torn_line_is_no_result(tmp_path: Path):
    """What is not whole is wrong, and its row is lost."""
    out = written(tmp_path / "out", [line(row) for row in range(SHEET.rows)])
    out.write_bytes(out.read_bytes()[:-20])
    found = examine(SHEET, out)
    assert (found.lost, found.wrong) == (1, 1)


def test_a_sound_row_that_counts_as_poison_is_wrong(tmp_path: Path):
    """However many workers were killed while they ran it."""
    lines = [line(row) for row in range(SHEET.rows)]
    lines[5] |= {"error": {"message": "?"}, "gristmill": {"index": 5, "status": "failed", "class": "poison"}}
    found = examine(SHEET, written(tmp_path / "out", lines))
    assert (found.wrong, found.clean) == (1, False)
