"""How the end of a run decides what may become of OUT."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.test_cli_jobview import RUNNING

from gristmill.cli import _ending
from gristmill.cli._working import End, Outcome
from gristmill.contract.lifecycle import JobState
from gristmill.outlet.assemble import Assembled
from gristmill.outlet.assemble import Outcome as Assembling


class Recorder:
    """Stands for `Output`: notes whether it was told that all of INPUT has been read."""

    fed: bool | None = None

    def finish(self, *, fed: bool, complete: bool) -> Assembled:
        self.fed = fed
        return Assembled(Assembling.GROWN)


@pytest.mark.parametrize(
    ("closed", "fed", "expected"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_only_a_job_that_was_fed_to_its_end_counts_as_read(
    closed: bool, fed: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
):
    """A job that expires or is cancelled ends its feeder without an error: old lines not asked for yet must stay."""
    monkeypatch.setattr(_ending, "prove", lambda *_, **__: None)
    snapshot = msgspec.structs.replace(RUNNING, state=JobState.EXPIRED, closed=closed, n=1000 if closed else None)
    output: Any = Recorder()
    nothing: Any = None
    _ending._finish(Outcome(End.FINISHED, fed=fed), snapshot, nothing, output, nothing)
    assert output.fed is expected
