"""From durable lines to OUT: growing, streaming, and going on over its own file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tests.support.outlet import (
    append,
    begun,
    entry,
    finished_file,
    ordinals,
    plan_and_begin,
    record,
)

from gristmill.outlet.adopt import adopt
from gristmill.outlet.assemble import Grower, Outcome, finish
from gristmill.outlet.errors import DiskError, OutRefusedError
from gristmill.outlet.reading import LineStream, ordered_lines
from gristmill.outlet.workdir import Work


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
