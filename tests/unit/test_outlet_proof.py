"""The proof at the end, and the summary: counts come from the lines, and a difference is never passed over."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.support.outlet import append, begun, entry, fingerprint, record, snapshot

from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import JobState
from gristmill.outlet.adopt import adopt
from gristmill.outlet.assemble import finish
from gristmill.outlet.errors import ProofError
from gristmill.outlet.finished import FinishedPlan
from gristmill.outlet.proof import prove, total_lines
from gristmill.outlet.workdir import Work

TIMEOUT = FailureClass.TIMEOUT


def finished_work(out: Path, *, failed: int = 0, ok: int = 3, leave_out: tuple[int, ...] = ()) -> Work:
    """`ok` and then `failed` lines, finished; without those of `leave_out`."""
    work = begun(out)
    records = [record(o, cls=TIMEOUT if o >= ok else None) for o in range(ok + failed) if o not in leave_out]
    append(work, records)
    finish(work, fed=True)
    return work


def test_a_whole_out_is_proved_and_summed_up_from_its_lines(tmp_path: Path):
    """ok, failed, classes, attempts and tokens are what the lines say."""
    with finished_work(tmp_path / "out", failed=2) as work:
        summary = prove(work, snapshot(n=5, done=5, failed=2))
    assert summary.to_json() == {
        "job": "j",
        "state": "complete",
        "total": 5,
        "ok": 3,
        "failed": 2,
        "waiting": 0,
        "in_flight": 0,
        "not_run": 0,
        "by_class": {"timeout": 2},
        "attempts": 5,
        "tokens": {"prompt": 9, "completion": 6},
        "wall_s": 2.5,
    }
    assert summary.to_text().splitlines() == [
        "job j complete: 5 lines: 3 ok, 2 failed",
        "          2  timeout, for example: it went wrong as timeout",
        "5 attempts; tokens: 9 prompt, 6 completion; 2.5 s",
    ]


def test_a_complete_job_with_a_line_missing_everywhere_is_an_error_that_names_it(tmp_path: Path):
    """10-50 % missing and "complete" must not happen."""
    with (
        finished_work(tmp_path / "out", ok=10, leave_out=(1, 8)) as work,
        pytest.raises(ProofError, match=r"2 lines of the input \(2, 9\) without a result") as caught,
    ):
        prove(work, snapshot(n=10, done=8))
    assert caught.value.ordinals == [1, 8]


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda lines: lines[:1] + lines[2:], r"1 line of the input \(2\) finished, but not in the output"),
        (lambda lines: [*lines[:2], lines[1], lines[2]], "input line 2 stands there twice"),
        (lambda lines: [lines[1], lines[0], lines[2]], "input line 1 is out of order"),
        (lambda lines: [*lines, entry("j", record(9)).line], "input line 10 of 3 cannot be"),
        (lambda lines: [lines[0], b"garbage\n", *lines[1:]], "the line after that of input line 1 is damaged"),
        (
            lambda lines: [*lines[:2], lines[2].replace(b'"error":null', b'"error":{"code":"x","message":"y"}')],
            "input line 3 is both ok and failed",
        ),
    ],
)
def test_every_way_in_which_the_file_can_differ_is_found(tmp_path: Path, edit, sentence: str):
    """Somebody or something changed OUT behind our back."""
    out = tmp_path / "out"
    with finished_work(out) as work:
        out.write_bytes(b"".join(edit(out.read_bytes().splitlines(keepends=True))))
        with pytest.raises(ProofError, match=sentence):
            prove(work, snapshot(n=3, done=3))


def test_a_line_in_out_that_was_never_finished_is_found(tmp_path: Path):
    """The file must not say more than the ledger."""
    out = tmp_path / "out"
    with finished_work(out) as work:
        out.write_bytes(out.read_bytes() + entry("j", record(3)).line)
        with pytest.raises(ProofError, match=r"1 line of the input \(4\) in the output, but never finished"):
            prove(work, snapshot(n=4, done=3, state=JobState.CANCELLED))


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        ({"done": 6}, "the store counted 6 results, 5 are here"),
        ({"done": 5, "failed": 1}, "the store counted 1 failed results, 2 are here"),
    ],
)
def test_the_stores_counters_must_agree(tmp_path: Path, seen: dict[str, int], sentence: str):
    """Three counts, kept by three hands."""
    with finished_work(tmp_path / "out", failed=2) as work, pytest.raises(ProofError, match=sentence):
        prove(work, snapshot(n=5, **({"failed": 2} | seen)))


def test_a_store_that_lost_a_suffix_may_have_counted_failures_otherwise(tmp_path: Path):
    """A request was run again with another end: the first answer stays, and all lines are there."""
    with finished_work(tmp_path / "out", failed=2) as work:
        assert prove(work, snapshot(n=5, done=5, failed=0), rolled_back=True).failed == 2


def test_what_was_cancelled_before_it_ran_is_counted_as_not_run(tmp_path: Path):
    """total = ok + failed + not run."""
    with finished_work(tmp_path / "out", ok=2, failed=1) as work:
        summary = prove(work, snapshot(n=9, done=3, failed=1, state=JobState.CANCELLED))
    assert (summary.total, summary.ok, summary.failed, summary.not_run, summary.waiting) == (9, 2, 1, 6, 0)
    assert "6 not run" in summary.to_text()
    assert " 1 line: " in msgspec.structs.replace(summary, total=1).to_text()


def test_an_interrupted_job_shows_what_waits_and_what_is_in_flight(tmp_path: Path):
    """Its results may still be in the store, so the store's counts are not compared."""
    with finished_work(tmp_path / "out") as work:
        summary = prove(work, snapshot(n=9, done=4, state=JobState.PAUSED, in_flight=2))
    assert (summary.ok, summary.waiting, summary.in_flight, summary.not_run) == (3, 4, 2, 0)


def test_carried_lines_belong_to_the_total(tmp_path: Path):
    """A rerun speaks of all of INPUT, not only of what it sent."""
    out = tmp_path / "out"
    out.write_bytes(b"".join(entry("old", record(o, text=t)).line for o, t in enumerate("ab")))
    with Work.open(out) as work:
        FinishedPlan.build(work)
        work.begin("j")
        plan = FinishedPlan(work.folder)
        plan.rewind(0)
        for ordinal, text in ((0, "b"), (2, "a")):
            carried = plan.take(f"c-{text}", fingerprint(text))
            assert carried is not None
            plan.carry(ordinal, carried)
        plan.close()
        append(work, [record(1, text="x", cls=TIMEOUT)])
        finish(work, fed=True)
        seen = snapshot(n=1, done=1, failed=1)
        assert total_lines(work, seen) == 3
        summary = prove(work, seen)
    assert (summary.total, summary.ok, summary.failed) == (3, 2, 1)


def test_adopted_lines_are_of_the_same_job_and_not_counted_twice(tmp_path: Path):
    """`results` a second time: the store counted those lines too."""
    out = tmp_path / "out"
    out.write_bytes(entry("j", record(0)).line + entry("j", record(1, cls=TIMEOUT)).line)
    with begun(out) as work:
        adopt(work)
        append(work, [record(2)])
        finish(work, fed=True)
        summary = prove(work, snapshot(n=3, done=3, failed=1))
    assert (summary.total, summary.ok, summary.failed) == (3, 2, 1)


def test_lines_that_went_to_a_stream_are_proved_where_they_lie(tmp_path: Path):
    """There is no file to read again."""
    with Work.open(None, folder=tmp_path / "w") as work:
        work.begin("j")
        append(work, [record(0), record(1)])
        assert prove(work, snapshot(n=2, done=2)).ok == 2
        with pytest.raises(ProofError, match="without a result"):
            prove(work, snapshot(n=3, done=2))
