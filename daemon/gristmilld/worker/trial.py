"""The first requests of a job go out alone, so that a wrong setup is found before it burns a million rows.

Their outcomes are held back until the trial is decided. One good answer passes it. If all of them failed alike in a
shape that a wrong URL, model, proxy or server setting gives, the trial fails: nothing is committed, the requests go
back uncharged, and the job pauses with a diagnosis. So it does when the server refused them all in the same words
(numbers aside): then every request asks for something that it won't do. Other failures are the rows' own, and pass.
"""

from __future__ import annotations

import re
from enum import StrEnum

from gristmill.contract.failure import Failure, FailureClass
from gristmilld.upstream.failures import looks_like_configuration
from gristmilld.upstream.outcome import FailedCall, Shape
from gristmilld.worker.attempt import Outcome

_ROW_SHAPES = frozenset({Shape.CONTEXT, Shape.NO_IMAGES, Shape.NOT_AN_ANSWER, Shape.STREAM})
"""Shapes that single rows can have as well: only a whole trial of them speaks of the setup."""


_NUMBER = re.compile(rb"[0-9a-fA-F-]*[0-9][0-9a-fA-F-]*")
"""Numbers and ids, which differ from answer to answer."""


class Verdict(StrEnum):
    OPEN = "open"
    PASSED = "passed"
    FAILED = "failed"


class Trial:
    """The requests of a job that are out alone, and what has come of them.

    Args:
        size: how many the job sends alone (`Manifest.first_alone`).
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._expected = 0
        self.held_back: list[Outcome] = []

    def expect(self, count: int) -> None:
        """`count` more requests went out."""
        self._expected += count

    @property
    def waits(self) -> bool:
        """Whether one of them has not ended."""
        return len(self.held_back) < self._expected

    def add(self, outcome: Outcome) -> Verdict:
        """One of them ended; the verdict after it."""
        self.held_back.append(outcome)
        if outcome.ok:
            return Verdict.PASSED
        if self.waits:
            return Verdict.OPEN
        return Verdict.FAILED if self.diagnosis() else Verdict.PASSED

    def diagnosis(self) -> str | None:
        """What is wrong with the setup, in a sentence, when every outcome says the same."""
        failures = [o.failure for o in self.held_back]
        seen = {(_shape(f), looks_like_configuration(f) if f else None) for f in failures}
        if len(seen) != 1:
            return None
        shape, sentence = seen.pop()
        whole = len(failures) >= max(self._size, 2)  # one row alone says nothing of the others
        if sentence is None:
            return _refused_alike(failures) if whole else None
        return sentence if whole or shape not in _ROW_SHAPES else None


def _refused_alike(failures: list[Failure | None]) -> str | None:
    """What to look at when the server gave all of them the same refusal, numbers aside."""
    first = failures[0]
    if not isinstance(first, FailedCall) or first.cls is not FailureClass.BAD_REQUEST or not first.body:
        return None
    said = {_NUMBER.sub(b"", f.body or b"") if isinstance(f, FailedCall) else b"" for f in failures}
    if len(said) != 1:
        return None
    return (
        f"the first {len(failures)} requests were refused alike: {first.message}. Look at what they all ask for "
        "(--set, the input); if only these rows are bad, --first-alone 0 sends the others"
    )


def _shape(failure: Failure | None) -> Shape | None:
    return failure.shape if isinstance(failure, FailedCall) else None
