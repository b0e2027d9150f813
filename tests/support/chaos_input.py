"""Inputs with planted rows, and what OUT must hold for them: the proof that the chaos tier makes from the files alone.

Every row's text is its own (it names job and row), and the stand-in answers with the sha-256 of the text it read. So a
lost row, a doubled row and an answer at a wrong place all show, without trusting a counter of the product.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.support.chaos_daemon import POISON

REFUSED = "this text is refused by the endpoint"
FIRST_PLANTED = 500
"""Rows before it are sound: a job whose first requests all fail pauses, as it should."""
REFUSED_EVERY, BAD_EVERY = 997, 1499
CLASS_OF = {"refused": "bad_request", "bad": "bad_input", "poison": "poison"}


Fate = Literal["", "pause", "cancel"]


@dataclass(frozen=True)
class Sheet:
    """One input.

    Attributes:
        name: makes its texts its own.
        rows: how many there are.
        poison: the row that kills workers, or -1.
        fate: what its user does to its job.
        moody: the endpoint may refuse any row at any time, so a row that is run again may end otherwise.
    """

    name: str
    rows: int
    poison: int = -1
    fate: Fate = ""
    moody: bool = False

    def kind(self, row: int) -> str:
        """``sound``, or how it is planted to fail."""
        if row == self.poison:
            return "poison"
        if row < FIRST_PLANTED:
            return "sound"
        if row % REFUSED_EVERY == 0:
            return "refused"
        return "bad" if row % BAD_EVERY == 0 else "sound"

    def text(self, row: int) -> str:
        """What row `row` says."""
        more = {"refused": REFUSED, "poison": POISON}.get(self.kind(row), "")
        return f"{self.name} row {row} {more}{'x' * (row * 7919 % 90)}"

    def digest(self, row: int) -> str:
        """What the stand-in's answer to row `row` must name: the sha-256 of its text."""
        return hashlib.sha256(self.text(row).encode()).hexdigest()

    def lines(self) -> Iterator[str]:
        for row in range(self.rows):
            if self.kind(row) == "bad":
                yield '{"prompt": "a line that was cut'
            else:
                yield json.dumps({"custom_id": f"{self.name}-{row}", "prompt": self.text(row)})

    def write(self, path: Path) -> None:
        with path.open("w") as file:
            file.writelines(line + "\n" for line in self.lines())


@dataclass
class Findings:
    """One OUT: its rows, those of them that no endpoint was asked for, and what is wrong, in counts and in words."""

    rows: int = 0
    never_sent: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        if len(self.examples) < 10:
            self.examples.append(what)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.wrong)


def examine(sheet: Sheet, out: Path, *, part: bool = False) -> Findings:
    """Compare OUT with the input that it came from, line by line; with `part`, rows may be missing."""
    found, seen = Findings(), Counter[int]()
    last = -1
    with out.open() as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                index = row["gristmill"]["index"]
            except (ValueError, KeyError, TypeError):
                found.wrong += 1
                found.note(f"line {number} is no result")
                continue
            seen[index] += 1
            fault = _fault(sheet, index, row) if seen[index] == 1 else ""
            if index < last:
                fault = fault or f"row {index} comes after row {last}"
            if fault:
                found.wrong += 1
                found.note(fault)
            last = max(last, index)
    found.rows = len(seen)
    found.never_sent = sum(sheet.kind(row) in ("bad", "poison") for row in seen)
    for row in range(sheet.rows):
        if not seen[row] and not part:
            found.lost += 1
            found.note(f"row {row} ({sheet.kind(row)}) is lost")
    found.doubled = sum(count - 1 for count in seen.values())
    if found.doubled:
        found.note(f"doubled: {[row for row, count in seen.items() if count > 1][:5]}")
    return found


def _fault(sheet: Sheet, index: int, row: dict) -> str:
    """What is wrong with the one result of row `index`; empty when it is right."""
    if not 0 <= index < sheet.rows:
        return f"row {index} was never asked for"
    kind, tail = sheet.kind(index), row["gristmill"]
    if kind != "bad" and row["custom_id"] != f"{sheet.name}-{index}":
        return f"row {index} has the custom_id {row['custom_id']!r}"
    if kind != "sound":
        right = tail["status"] == "failed" and tail["class"] == CLASS_OF[kind] and row["error"] is not None
        return "" if right else f"row {index} ({kind}) is {tail['status']}, {tail['class']}"
    if tail["status"] != "ok":
        if sheet.moody and tail["class"] == "bad_request":
            return ""
        return f"row {index} failed: {tail['class']}, {(row['error'] or {}).get('message', '')[:200]}"
    content = json.loads(row["response"]["body"]["choices"][0]["message"]["content"])
    if content["text_sha256"] != sheet.digest(index):
        return f"row {index} has the answer to another text"
    return ""
