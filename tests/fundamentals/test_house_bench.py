"""The measurements measure what they say, and never make a figure up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench import __main__ as bench_main
from bench import inputs
from bench.run import Sample, median
from bench.scenarios import KEYS, SCENARIOS

ROOT = Path(__file__).resolve().parents[2]
BURN = "import time\nwhile time.process_time() < 0.3: pass"


def measured(result: Path, *argv: str) -> dict[str, float]:
    subprocess.run([sys.executable, "-m", "bench.reaper", str(result), "--", *argv], cwd=ROOT, check=True, timeout=60)
    return json.loads(result.read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
def test_the_cpu_of_orphans_is_counted(tmp_path: Path) -> None:
    """A process whose parent leaves at once, in a session of its own, is waited for and counted."""
    leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BURN!r}], start_new_session=True)"
    figures = measured(tmp_path / "r.json", sys.executable, "-c", leave)
    assert figures["user_s"] + figures["sys_s"] >= 0.3


def test_the_exit_code_of_a_client_is_reported(tmp_path: Path) -> None:
    """A client that fails is seen, so that its run is no figure."""
    assert measured(tmp_path / "r.json", sys.executable, "-c", "raise SystemExit(3)")["code"] == 3


def test_without_nginx_every_figure_is_null(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing measured, nothing claimed: the closing line has every key, and null for each."""

    def missing() -> None:
        raise LookupError("nginx with lua is not installed")

    monkeypatch.setattr(bench_main, "Endpoint", missing)
    monkeypatch.setattr(sys, "argv", ["bench"])
    assert bench_main.main() == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[-1]) == dict.fromkeys(KEYS)
    assert "nginx with lua is not installed" in shown.err


def test_every_figure_is_explained() -> None:
    """bench/README.md has a row for each key of the closing line, and each scenario says what it is."""
    text = (ROOT / "bench/README.md").read_text(encoding="utf-8")
    assert [key for key in KEYS if f"`{key}`" not in text] == []
    assert all(scenario.__doc__ for scenario in SCENARIOS.values())


def test_medians_are_taken_figure_by_figure() -> None:
    """One slow run moves nothing."""
    assert median([Sample(1, 1, 9), Sample(2, 9, 2), Sample(9, 2, 1)]) == Sample(2, 2, 2)


def test_no_two_pictures_are_alike(tmp_path: Path) -> None:
    """Each request has its own picture of about 300 KB, so that no client gains by storing one once."""
    lines = [json.loads(line) for line in inputs.pictures(tmp_path, 3).read_text().splitlines()]
    data = {Path(line["image"]).read_bytes() for line in lines}
    assert len(data) == 3
    assert all(250_000 < len(d) < 350_000 for d in data)
