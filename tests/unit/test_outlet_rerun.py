"""A rerun over an old OUT: what is carried over, how OUT is replaced, and what nobody asks for any more."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tests.support.outlet import (
    append,
    begun,
    contents,
    fingerprint,
    finished_file,
    ordinals,
    plan_and_begin,
    record,
)

from gristmill.outlet.assemble import Assembled, Grower, Outcome, finish
from gristmill.outlet.finished import FinishedPlan, open_plan
from gristmill.outlet.workdir import Work


def test_a_rerun_sends_only_what_is_missing_and_replaces_out_in_one_step(tmp_path: Path):
    """Moved lines are found, failed, changed and new ones are sent; until the end the old OUT stands."""
    out = tmp_path / "out"
    finished_file(out, ["a", "b!", "c", "d"])
    out.chmod(0o640)
    old = out.read_bytes()
    work, missing = plan_and_begin(out, "new", ["d", "b", "a", "new", "c"])
    with work:
        assert missing == [1, 3]
        append(work, [record(3, text="new"), record(1, text="b")])
        assert out.read_bytes() == old
        assert finish(work, fed=True) == Assembled(Outcome.REPLACED, 0)
    assert contents(out) == ["d", "b", "a", "new", "c"]
    assert ordinals(out) == [0, 1, 2, 3, 4]
    assert stat.S_IMODE(out.stat().st_mode) == 0o640
    assert b'"id":"old-3","custom_id":"c-d"' in out.read_bytes()


def test_equal_requests_take_one_finished_line_each(tmp_path: Path):
    """The k-th occurrence takes the k-th line: two equal requests with one answer still send one."""
    out = tmp_path / "out"
    finished_file(out, ["a", "a", "b"])
    work, missing = plan_and_begin(out, "new", ["a", "b", "a", "a", "b"])
    work.close()
    assert missing == [3, 4]


def test_the_last_line_may_lack_its_newline_or_be_torn(tmp_path: Path):
    """Editors drop the newline, crashes the line: the first counts, the second does not."""
    for cut, missing_after in ((1, []), (10, [1])):
        out = tmp_path / f"out{cut}"
        finished_file(out, ["a", "b"])
        os.truncate(out, out.stat().st_size - cut)
        work, missing = plan_and_begin(out, "new", ["a", "b"])
        with work:
            assert missing == missing_after
            append(work, [record(o, text="b") for o in missing])
            finish(work, fed=True)
        assert sorted(contents(out)) == ["a", "b"]
        assert out.read_bytes().endswith(b"\n")


def test_work_of_a_run_that_was_killed_is_taken_over(tmp_path: Path):
    """Fresh run, crash, same command: OUT is only a copy, so each line counts once."""
    out = tmp_path / "out"
    with begun(out, "one") as work:
        grower = Grower(work)
        append(work, [record(0, text="a"), record(1, text="a"), record(3, text="d")])
        grower.step()
        grower.close()
    work, missing = plan_and_begin(out, "two", ["a", "a", "a", "d"])
    with work:
        assert missing == [2]
        grower = Grower(work)
        grower.step()
        assert ordinals(out) == [0, 1]
        append(work, [record(2, text="a")])
        finish(work, fed=True, grower=grower)
        grower.close()
    assert contents(out) == ["a", "a", "a", "d"]


def test_a_folder_with_lines_that_nobody_asked_for_yet_is_not_removed(tmp_path: Path):
    """Killed, run again, cancelled before INPUT was read as far as the first time: the answers are still there."""
    out = tmp_path / "out"
    with begun(out, "one") as work:
        append(work, [record(o, text=t) for o, t in enumerate("abc")])
    work, _ = plan_and_begin(out, "two", ["a"])
    with work:
        finish(work, fed=False)
        assert not work.remove()
    work, missing = plan_and_begin(out, "three", ["a", "b", "c"])
    with work:
        assert missing == []
        finish(work, fed=True)
        assert work.remove()
    assert contents(out) == ["a", "b", "c"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_crash_after_the_rename_counts_no_line_twice(tmp_path: Path):
    """Then OUT and the segments hold the same results: a result is known by its number."""
    out = tmp_path / "out"
    finished_file(out, ["a!"])
    work, _ = plan_and_begin(out, "two", ["a", "a"])
    with work:
        append(work, [record(0, text="a")])
        finish(work, fed=True)  # and killed before the folder was removed
    work, missing = plan_and_begin(out, "three", ["a", "a"])
    work.close()
    assert missing == [1]


def test_answers_that_nobody_asks_for_are_kept_beside_out_and_used_again(tmp_path: Path):
    """`--limit 1` over a finished OUT must not throw paid answers away."""
    out = tmp_path / "out"
    finished_file(out, ["a", "b", "c"])
    work, _ = plan_and_begin(out, "two", ["b"])
    with work:
        assert finish(work, fed=True).unused == 2
        work.remove()
    assert contents(out) == ["b"]
    assert sorted(contents(tmp_path / "out.unused")) == ["a", "c"]
    work, missing = plan_and_begin(out, "three", ["a", "b", "c"])
    with work:
        assert missing == []
        assert finish(work, fed=True).unused == 0
    assert contents(out) == ["a", "b", "c"]
    assert not (tmp_path / "out.unused").exists()


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_crash_between_the_renames_loses_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int):
    """OUT gives lines to OUT.unused and takes others from it; whichever rename is the last, all are there."""
    out = tmp_path / "out"
    finished_file(out, ["a", "b"])
    finished_file(tmp_path / "out.unused", ["c", "d"], job="older")
    work, missing = plan_and_begin(out, "two", ["a", "c"])
    assert missing == []
    replace, left = Path.replace, [renames]

    def killed_later(self: Path, target: Path) -> Path:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return replace(self, target)

    with work, monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed_later)
        with pytest.raises(KeyboardInterrupt):
            finish(work, fed=True)
    work, missing = plan_and_begin(out, "three", ["a", "b", "c", "d"])
    with work:
        assert missing == []
        finish(work, fed=True)
    assert contents(out) == ["a", "b", "c", "d"]


def test_an_old_out_stays_when_input_was_not_read_to_its_end(tmp_path: Path):
    """Lines behind the place where a run was cancelled are still good."""
    out = tmp_path / "out"
    finished_file(out, ["a", "b", "c"])
    old = out.read_bytes()
    work, _ = plan_and_begin(out, "two", ["new", "a"])
    with work:
        append(work, [record(0, text="new")])
        assert finish(work, fed=False).outcome is Outcome.KEPT
        assert not work.remove()
    assert out.read_bytes() == old
    work, missing = plan_and_begin(out, "three", ["new", "a", "b", "c"])
    work.close()
    assert missing == []


def test_an_old_out_stays_when_nobody_compared_it(tmp_path: Path):
    """Without a plan its lines would simply be gone."""
    out = tmp_path / "out"
    finished_file(out, ["a"])
    with begun(out) as work:
        append(work, [record(0, text="x")])
        assert finish(work, fed=True).outcome is Outcome.KEPT
    assert contents(out) == ["a"]


def test_a_plan_of_an_earlier_run_is_no_comparison(tmp_path: Path):
    """A killed run left its index of finished lines: a job that begins without a plan must not trust it."""
    out = tmp_path / "out"
    finished_file(out, ["a"])
    plan_and_begin(out, "two", ["a"])[0].close()
    with begun(out, "three") as work:
        assert finish(work, fed=True).outcome is Outcome.KEPT
    assert contents(out) == ["a"]


def test_a_line_that_moved_up_behind_one_that_stayed_gets_its_own_number(tmp_path: Path):
    """They are neighbours in the old OUT and in the new one, since the line between never ran."""
    out = tmp_path / "out"
    finished_file(out, ["a", "b", "c"])
    work, missing = plan_and_begin(out, "two", ["a", "never", "b", "c"])
    with work:
        assert missing == [1]
        finish(work, fed=True)
    assert ordinals(out) == [0, 2, 3]
    assert contents(out) == ["a", "b", "c"]


def test_the_feeder_may_come_back_to_its_cursor(tmp_path: Path):
    """Lines carried behind the cursor are free again, those before it are not."""
    out = tmp_path / "out"
    finished_file(out, ["a", "b", "c"])
    with Work.open(out) as work:
        assert FinishedPlan.build(work).ok == 3
        work.begin("two")
        plan = open_plan(str(work.folder))
        plan.rewind(0)
        for ordinal, text in enumerate("abc"):
            carried = plan.take(f"c-{text}", fingerprint(text))
            assert carried is not None
            plan.carry(ordinal, carried)
        plan.flush()
        plan.take("c-a", fingerprint("a"))
        plan.close()
        again = open_plan(str(work.folder))
        again.rewind(1)
        assert again.take("c-a", fingerprint("a")) is None
        assert again.take("c-b", fingerprint("b")) is not None
        assert again.take("c-b", fingerprint("b")) is None
        again.close()


def test_an_overwritten_run_plans_nothing(tmp_path: Path):
    """--overwrite starts anew, whatever is there."""
    out = tmp_path / "out"
    finished_file(out, ["a"])
    work, missing = plan_and_begin(out, "two", ["a"], overwrite=True)
    with work:
        assert missing == [0]
        append(work, [record(0, text="a")])
        assert finish(work, fed=True).outcome is Outcome.GROWN
    assert b'"id":"two-0"' in out.read_bytes()
