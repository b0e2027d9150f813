"""From durable lines to OUT: growing, replacing, carrying over, and what nobody asks for any more."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tests.support.outlet import append, begun, contents, entry, fingerprint, ordinals, record

from gristmill.contract.failure import FailureClass
from gristmill.outlet.adopt import adopt
from gristmill.outlet.assemble import Assembled, Grower, Outcome, finish
from gristmill.outlet.errors import DiskError, OutRefusedError
from gristmill.outlet.finished import FinishedPlan, open_plan
from gristmill.outlet.reading import LineStream, ordered_lines
from gristmill.outlet.workdir import Work


def plan_and_begin(out: Path, job: str, wanted: list[str], **options: bool) -> tuple[Work, list[int]]:
    """A rerun for requests `wanted`: what the feeder does; the open work and the ordinals that must be sent."""
    work = Work.open(out, **options)
    FinishedPlan.build(work)
    work.begin(job)
    plan = open_plan(str(work.folder))
    plan.rewind(0)
    missing = []
    for ordinal, text in enumerate(wanted):
        carried = plan.take(f"c-{text}", fingerprint(text))
        if carried is None:
            missing.append(ordinal)
        else:
            plan.carry(ordinal, carried)
    plan.flush()
    plan.close()
    return work, missing


def finished_file(out: Path, texts: list[str], job: str = "old") -> None:
    """A whole OUT of an earlier run; a text with "!" failed."""
    failed = FailureClass.TIMEOUT
    records = (record(i, text=t.strip("!"), cls=failed if "!" in t else None) for i, t in enumerate(texts))
    out.write_bytes(b"".join(entry(job, r).line for r in records))


def test_out_grows_in_order_while_results_come_in_any(tmp_path: Path):
    """Whoever follows OUT sees lines in the order of INPUT, from the first moment."""
    out = tmp_path / "out"
    with begun(out) as work:
        grower = Grower(work)
        append(work, [record(2), record(0)])
        assert grower.step() > 0
        assert ordinals(out) == [0]
        assert grower.next_ordinal == 1
        append(work, [record(1), record(4)])
        grower.step()
        assert ordinals(out) == [0, 1, 2]
        assert grower.step() == 0
        append(work, [record(3)])
        assert finish(work, fed=True, grower=grower).outcome is Outcome.GROWN
        grower.close()
        grower.close()
    assert ordinals(out) == [0, 1, 2, 3, 4]
    assert stat.S_IMODE(out.stat().st_mode) & 0o044 == 0o044 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("damage", ["torn", "longer", "other", "none", "gone"])
def test_a_grown_file_mends_itself_after_a_crash(tmp_path: Path, damage: str):
    """What is right stays, what is torn or foreign is cut, what is missing is added."""
    out = tmp_path / "out"
    with begun(out) as work:
        append(work, [record(o) for o in range(5)])
        finish(work, fed=True)
    whole = out.read_bytes()
    match damage:
        case "torn":
            os.truncate(out, len(whole) - 30)
        case "longer":
            out.write_bytes(whole + b"tail\n")
        case "other":
            out.write_bytes(whole.replace(b"request 3", b"request X"))
        case "gone":
            out.unlink()
    inode = out.stat().st_ino if out.exists() else None
    with Work.open(out) as work:
        work.resume()
        grower = Grower(work)
        grower.step()
        append(work, [record(5)])
        finish(work, fed=True, grower=grower)
        grower.close()
    assert out.read_bytes() == whole + entry("j", record(5)).line
    assert inode in (None, out.stat().st_ino)


def test_what_lies_behind_the_last_line_is_cut_at_the_end(tmp_path: Path):
    """An older, longer OUT, or a torn line that was written before a crash."""
    out = tmp_path / "out"
    with begun(out) as work:
        append(work, [record(0)])
        finish(work, fed=True)
    whole = out.read_bytes()
    out.write_bytes(whole + b'{"id":"j-1","cust')
    with Work.open(out) as work:
        work.resume()
        finish(work, fed=True)
    assert out.read_bytes() == whole


def test_an_equal_start_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Going on after a crash reads OUT instead of rewriting it."""
    out = tmp_path / "out"
    with begun(out) as work:
        append(work, [record(o) for o in range(3)])
        finish(work, fed=True)
    written: list[int] = []
    monkeypatch.setattr("gristmill.outlet.assemble.pwrite_all", lambda fd, data, offset: written.append(offset))
    with Work.open(out) as work:
        work.resume()
        finish(work, fed=True)
    assert written == []


def test_lines_that_never_ran_are_passed_over_at_the_end(tmp_path: Path):
    """A cancelled job leaves what it has, in order."""
    out = tmp_path / "out"
    with begun(out) as work:
        append(work, [record(5), record(1)])
        finish(work, fed=True)
    assert ordinals(out) == [1, 5]


def test_no_lines_at_all_make_an_empty_file(tmp_path: Path):
    """An empty INPUT is a finished job."""
    out = tmp_path / "out"
    with begun(out) as work:
        finish(work, fed=True)
    assert out.read_bytes() == b""


def test_an_old_file_to_be_overwritten_stays_until_the_first_result(tmp_path: Path):
    """A wrong key found at the start must not cost the old file."""
    out = tmp_path / "out"
    out.write_bytes(b"old and foreign\n" * 100)
    with begun(out, overwrite=True) as work:
        grower = Grower(work)
        grower.step()
        assert out.read_bytes().startswith(b"old")
        append(work, [record(0)])
        grower.step()
        assert out.read_bytes() == entry("j", record(0)).line
        grower.close()


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


def test_a_stream_gives_lines_in_order_as_they_become_ready(tmp_path: Path):
    """`-o -`: nothing is given twice, gaps only at the end."""
    with Work.open(None, folder=tmp_path / "w") as work:
        work.begin("j")
        stream = LineStream(work)
        append(work, [record(0), record(2)])
        assert b"".join(stream.ready()) == entry("j", record(0)).line
        assert b"".join(stream.ready()) == b""
        assert stream.next_ordinal == 1
        assert b"".join(stream.ready(gaps=True)) == entry("j", record(2)).line
        stream.close()
        assert b"".join(ordered_lines(work, gaps=True)).count(b"\n") == 2


def test_a_source_that_shrank_is_an_error_and_the_old_out_stands(tmp_path: Path):
    """Somebody cut OUT while we worked."""
    out = tmp_path / "out"
    finished_file(out, ["a", "b"])
    work, _ = plan_and_begin(out, "two", ["b", "a"])
    os.truncate(out, 10)
    with work, pytest.raises(DiskError, match="become shorter"):
        finish(work, fed=True)


def test_results_go_on_over_their_own_file(tmp_path: Path):
    """`results JOB -o OUT` a second time: what was collected before stays, and is not asked for again."""
    out = tmp_path / "out"
    with begun(out, "job") as work:
        append(work, [record(0), record(2)])
        finish(work, fed=True)
        work.remove()
    with begun(out, "job") as work:
        assert adopt(work) == 2
        assert adopt(work) == 2
        append(work, [record(1)])
        assert finish(work, fed=True).outcome is Outcome.REPLACED
    assert ordinals(out) == [0, 1, 2]


def test_results_refuse_the_file_of_another_job(tmp_path: Path):
    """Its ordinals mean other requests; nothing is touched or left behind."""
    out = tmp_path / "out"
    finished_file(out, ["a"])
    old = out.read_bytes()
    with begun(out, "job") as work, pytest.raises(OutRefusedError, match="line 1: from another job than job"):
        adopt(work)
    assert out.read_bytes() == old
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_adopting_is_done_as_a_whole_or_again(tmp_path: Path):
    """Killed in the middle, the next call does it."""
    out = tmp_path / "out"
    finished_file(out, ["a", "b"], job="job")
    with begun(out, "job") as work:
        (work.folder / "carried.new").write_bytes(b"half")
    with Work.open(out) as work:
        work.resume()
        assert adopt(work) == 2
