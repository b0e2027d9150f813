"""`make demo`, smaller: the whole way from INPUT to OUT with real processes, pictures and broken lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_finds_everything_as_it_should_be(tmp_path: Path) -> None:
    """Each text and picture comes back at its place, each broken line is named, and the exit code says so."""
    out = tmp_path / "out"
    argv = [sys.executable, str(ROOT / "examples/demo.py"), "--out", str(out), "--requests", "150", "--pictures", "45"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "150 of 150 arrived as they were" in done.stdout
    assert "45 of 45: right size, upright, right colour" in done.stdout
    assert len((out / "answers.jsonl").read_bytes().splitlines()) == 150


def test_the_demo_fails_when_a_run_does(tmp_path: Path) -> None:
    """It is no show: when `producer run` can't do its work, the demo ends with exit code 1 and says what was wrong."""
    blocked = tmp_path / "demo.py"
    source = (ROOT / "examples/demo.py").read_text(encoding="utf-8")
    blocked.write_text(source.replace('"-m", "standin", "-e", url', '"-m", "standin", "-e", "http://127.0.0.1:9"'))
    argv = [sys.executable, str(blocked), "--out", str(tmp_path / "out"), "--requests", "12", "--pictures", "3"]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "examples"), "HOME": str(tmp_path)}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 1
    assert "exit code 3, not 0" in done.stdout
