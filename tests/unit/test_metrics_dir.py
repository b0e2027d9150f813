"""The folder of the value files: made, named, tidied, removed."""

from __future__ import annotations

import subprocess
import sys

from gristmilld import metricsdir
from gristmilld.metricsdir import MetricsDir, Supervision, read_supervision


def test_a_folder_is_private_and_goes_with_its_daemon(tmp_path, monkeypatch):
    """0700, named in the environment while it lasts; `remove` may be called twice."""
    monkeypatch.delenv(metricsdir.ENV, raising=False)
    folder = MetricsDir.create(str(tmp_path), "d1")
    folder.enter()
    assert metricsdir.current() == folder.path
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.remove()
    folder.remove()
    assert not folder.path.exists()
    assert metricsdir.current() is None


def test_the_folder_of_a_killed_daemon_is_removed_by_the_next(tmp_path):
    """Its lock went with it; that of a living daemon is held, and its folder stays."""
    living = MetricsDir.create(str(tmp_path), "living")
    code = (
        "import os, sys; from gristmilld.metricsdir import MetricsDir;"
        "MetricsDir.create(sys.argv[1], 'dead'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60)
    assert (tmp_path / "metrics" / "dead").is_dir()
    third = MetricsDir.create(str(tmp_path), "third")
    assert sorted(p.name for p in (tmp_path / "metrics").iterdir() if p.is_dir()) == ["living", "third"]
    living.remove()
    third.remove()


def test_without_a_state_dir_it_lies_among_the_temporary_files(tmp_path, monkeypatch):
    """And leaves nothing behind there."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = MetricsDir.create("", "d1")
    assert tmp_path in folder.path.parents
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_death_takes_the_gauges_of_that_process_alone(tmp_path):
    """worker-1 is not worker-11, and counters stay."""
    folder = MetricsDir.create(str(tmp_path), "d1")
    names = ["gauge_livesum_worker-1.db", "gauge_livesum_worker-11.db", "counter_worker-1.db"]
    for name in names:
        (folder.path / name).write_bytes(b"x")
    folder.forget("worker-1")
    assert sorted(p.name for p in folder.path.glob("*.db")) == sorted(names[1:])
    folder.remove()


def test_a_value_file_has_its_place_on_the_disk(tmp_path):
    """All of it is really there, and one that stands is left alone."""
    file = tmp_path / "counter_worker-0.db"
    metricsdir.reserve(file, 1 << 20)
    assert file.stat().st_blocks * 512 >= 1 << 20
    file.write_bytes(b"counts")
    metricsdir.reserve(file, 1 << 20)
    assert file.read_bytes() == b"counts"
    assert metricsdir.value_files(tmp_path) == [str(file)]


def test_nothing_of_a_file_stays_that_did_not_fit(tmp_path):
    """The disk is full (here: files may not grow beyond 4 KB): an error, and no torn file for a scrape to read."""
    code = (
        "import resource, signal, sys; from pathlib import Path; from gristmilld import metricsdir;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "metricsdir.reserve(Path(sys.argv[1]), 1 << 20)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.db")], capture_output=True, timeout=60)
    assert b"OSError" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_supervisors_word_is_read_whole_or_not_at_all(tmp_path):
    """Before it has spoken the daemon is starting; afterwards the last word counts."""
    folder = MetricsDir.create(str(tmp_path), "d1")
    assert read_supervision(folder.path) == Supervision(stage="starting")
    for said in (Supervision(up=["worker-0"]), Supervision("draining", ["worker-0"], {"worker-0": 2})):
        folder.publish(said)
        assert read_supervision(folder.path) == said
    assert not list(folder.path.glob("*.new"))
    folder.remove()


def test_nothing_is_written_when_nothing_has_changed(tmp_path):
    """The supervisor publishes after each step; the disk is not asked each time."""
    folder = MetricsDir.create(str(tmp_path), "d1")
    folder.publish(Supervision(up=["worker-0"]))
    (folder.path / "supervision.json").unlink()
    folder.publish(Supervision(up=["worker-0"]))
    assert not (folder.path / "supervision.json").exists()
    folder.remove()
