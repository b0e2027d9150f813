"""`producer run` over an OUT that has failed lines."""

from __future__ import annotations

from tests.support.desk import Desk, desk, shared_standin, standin
from tests.support.standin import StandinProcess

__all__ = ["desk", "shared_standin", "standin"]


def test_rerun_of_rows_that_are_bad_for_good(desk: Desk, standin: StandinProcess):
    """Only the failed rows are sent again, refused in the same words: exit 1 as before, never a wrong setup."""
    standin.control(faults=[{"kind": "status", "status": 400, "text": "bad"}])
    texts = ["bad" if i % 5 == 0 else f"fine {i}" for i in range(40)]
    desk.input.write_text("".join(f'{{"custom_id":"c{i}","prompt":"{t} {i}"}}\n' for i, t in enumerate(texts)))
    for sent in (40, 8):
        standin.reset_stats()
        assert desk.run().returncode == 1
        assert standin.stats["requests"] == sent
        assert [line["gristmill"]["index"] for line in desk.lines] == list(range(40))
        assert sum(line["error"] is not None for line in desk.lines) == 8


def test_rerun_that_pauses_keeps_the_old_failed_lines(desk: Desk, standin: StandinProcess):
    """A line of OUT is replaced when there is something new for it, and never just dropped."""
    standin.control(faults=[{"kind": "status", "status": 400, "text": "bad"}])
    desk.input.write_text("".join(f'{{"prompt":"{"bad" if i == 7 else "fine"} {i}"}}\n' for i in range(20)))
    assert desk.run().returncode == 1
    before = desk.out.read_text()
    standin.control(faults=[{"kind": "status", "status": 401, "text": "bad"}])
    assert desk.run().returncode == 3
    assert desk.out.read_text() == before
    standin.control(faults=[])
    assert desk.run().returncode == 0
    assert len(desk.lines) == 20
