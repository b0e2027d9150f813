"""OUT.gm: one writer, what is refused, and which job it belongs to."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.outlet import append, begun, entry, record

from gristmill.outlet.errors import OutRefusedError, WorkBusyError
from gristmill.outlet.finished import FinishedPlan
from gristmill.outlet.lock import OutLock
from gristmill.outlet.workdir import Work, read_current, work_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_second_writer_is_told_which_job_and_process_writes(tmp_path: Path):
    """Two runs into one OUT would mix their lines."""
    out = tmp_path / "out.jsonl"
    with begun(out, "job7"):
        sentence = f"job job7, pid {os.getpid()}, is writing this; `producer watch job7`"
        with pytest.raises(WorkBusyError, match=sentence) as caught:
            Work.open(out)
    assert (caught.value.job, caught.value.pid) == ("job7", os.getpid())
    Work.open(out).close()


def test_a_writer_without_a_job_yet_is_told_too(tmp_path: Path):
    """The lock is held before the job exists."""
    with (
        Work.open(tmp_path / "out"),
        pytest.raises(WorkBusyError, match=f"pid {os.getpid()} is preparing this; wait for it"),
    ):
        Work.open(tmp_path / "out")


def test_the_lock_goes_with_its_process(tmp_path: Path):
    """kill -9 leaves no stale lock."""
    out = tmp_path / "out"
    code = f"""
from gristmill.outlet.lock import OutLock
from gristmill.outlet.workdir import Work
from pathlib import Path
work = Work.open(Path({str(out)!r})); work.begin("j")
print("held", flush=True); input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(WorkBusyError, match=f"pid {process.pid}"):
            Work.open(out)
        process.kill()
    with Work.open(out) as work:
        assert work.previous is not None
        assert work.previous.job == "j"


def test_a_lock_on_a_file_that_was_just_removed_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The writer before removes its folder between our open and our flock: then a third could hold the new file."""
    path = tmp_path / "lock"
    flock, removed = fcntl.flock, []

    def late(fd: int, how: int) -> None:
        if not removed:
            removed.append(fd)
            path.unlink()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    lock = OutLock(path, tmp_path / "out")
    with pytest.raises(WorkBusyError):
        OutLock(path, tmp_path / "out")
    lock.release()


def test_the_folder_is_private(tmp_path: Path):
    """It holds answers."""
    with begun(tmp_path / "out") as work:
        append(work, [record(0)])
        assert stat.S_IMODE(work.folder.stat().st_mode) == 0o700
        modes = {stat.S_IMODE(path.stat().st_mode) for path in work.folder.iterdir()}
    assert modes == {0o600}


def test_links_are_followed_so_that_all_names_of_a_file_share_a_folder(tmp_path: Path):
    """A rename over a link would replace the link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "out")
    with begun(tmp_path / "link", "j"):
        assert read_current(tmp_path / "real" / "out") == read_current(tmp_path / "link")
        assert work_folder(tmp_path / "link") == tmp_path / "real" / "out.gm"


@pytest.mark.parametrize(
    "content", [b"precious\n", b'{"custom_id":"a","response":{}}\n', b"\n", entry("j", record(0)).line[:50]]
)
def test_a_file_without_our_lines_is_refused_untouched(tmp_path: Path, content: bytes):
    """Somebody's data must survive a mistyped -o."""
    out = tmp_path / "out"
    out.write_bytes(content)
    with pytest.raises(OutRefusedError, match=r"line 1: not written by producer.*--overwrite"):
        Work.open(out)
    assert out.read_bytes() == content
    assert names(tmp_path) == ["out"]


def test_a_foreign_line_further_down_is_refused_when_the_plan_is_built(tmp_path: Path):
    """The whole file is read before anything is sent."""
    out = tmp_path / "out"
    out.write_bytes(entry("j", record(0)).line + b"mine\n")
    with Work.open(out) as work, pytest.raises(OutRefusedError, match="line 2: not written by producer"):
        FinishedPlan.build(work)
    assert out.read_bytes().endswith(b"mine\n")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, make):
    """A rename over a folder or a pipe makes no sense."""
    make(tmp_path / "out")
    with pytest.raises(OutRefusedError, match=r"not a regular file.*-o -"):
        Work.open(tmp_path / "out")


def test_an_empty_or_absent_file_grows_and_a_filled_one_is_the_base(tmp_path: Path):
    """`touch OUT` is no earlier run."""
    (tmp_path / "empty").touch()
    (tmp_path / "old").write_bytes(entry("j", record(0)).line)
    for name, base in (("absent", False), ("empty", False), ("old", True)):
        with begun(tmp_path / name) as work:
            assert work.base is base
            assert work.current is not None
            assert work.current.base is base


def test_the_kind_of_out_is_remembered_over_a_crash(tmp_path: Path):
    """A partly grown OUT holds our lines too, and still is only a copy."""
    out = tmp_path / "out"
    with begun(out) as work:
        append(work, [record(0)])
    out.write_bytes(entry("j", record(0)).line[:20])
    with Work.open(out) as work:
        assert not work.base


def test_a_new_job_begins_a_generation_of_its_own(tmp_path: Path):
    """Ordinals of the job before mean something else."""
    out = tmp_path / "out"
    with begun(out, "one") as work:
        append(work, [record(0)])
    with Work.open(out) as work:
        work.resume()
        assert work.ledger.new == 1
        append(work, [record(1)])
        work.begin("two", epoch="e2", store="unix:/s")
        assert work.ledger.new == 0
        append(work, [record(0, text="other")])
    current = read_current(out)
    assert current is not None
    assert (current.job, current.epoch, current.store, current.generation) == ("two", "e2", "unix:/s", 3)


def test_overwriting_forgets_lines_only_when_a_job_begins(tmp_path: Path):
    """Until then a typing mistake costs nothing."""
    out = tmp_path / "out"
    with begun(out, "one") as work:
        append(work, [record(0)])
    Work.open(out, overwrite=True).close()
    with Work.open(out) as work:
        assert work.segments == [1]
    with begun(out, "two", overwrite=True) as work:
        assert work.segments == []
        assert work.ledger.new == 0
        assert not work.base


def test_removing_leaves_nothing_and_lets_the_next_one_in(tmp_path: Path):
    """After success only OUT is there."""
    out = tmp_path / "out"
    with begun(out) as work:
        append(work, [record(0)])
        work.remove()
        assert names(tmp_path) == []
        with begun(out):
            assert names(tmp_path) == ["out.gm"]


def test_a_stream_works_in_the_folder_it_is_given(tmp_path: Path):
    """Standard output has no place beside it."""
    with pytest.raises(ValueError, match="give a folder"):
        Work.open(None)
    with Work.open(None, folder=tmp_path / "w") as work:
        work.begin("j")
        assert not work.base
        assert work.previous is None


def test_a_damaged_job_file_is_an_error_with_a_way_out(tmp_path: Path):
    """It is written in one step, so damage means a broken disk or a stranger."""
    with begun(tmp_path / "out") as work:
        folder = work.folder
    (folder / "job.json").write_bytes(b"{")
    with pytest.raises(OutRefusedError, match=r"job.json: damaged .*move the folder"):
        Work.open(tmp_path / "out")
