"""The gate `.ci/run`: what it runs, what it prints last, and that no failure passes it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLOSING = "1 failed, 41 passed, 2 skipped in 75.03s (0:01:15)"


def gate(folder: Path, failing: str | None) -> subprocess.CompletedProcess[str]:
    """Run the gate with a `make` that notes its targets, says what pytest would, and fails at one of them."""
    make = folder / "make"
    make.write_text(
        f'#!/bin/sh\nfor target; do :; done\necho "$target" >> {folder}/targets\n'
        f'[ "$target" = test ] && echo "{CLOSING}" && echo "make: *** a word of make itself"\n'
        f'[ "$target" != "{failing}" ]\n'
    )
    make.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(["bash", ".ci/run"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=30)


def test_the_gate_runs_every_check_and_ends_with_pytests_line(tmp_path: Path) -> None:
    """Rules, types, import contracts, tests, in this order; the last line is pytest's own."""
    done = gate(tmp_path, failing=None)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "targets").read_text().split() == ["lint", "types", "imports", "test"]
    assert done.stdout.splitlines()[-1] == CLOSING


@pytest.mark.parametrize("step", ["lint", "types", "imports", "test"])
def test_no_failing_check_passes_the_gate(step: str, tmp_path: Path) -> None:
    """Whichever check fails, the gate's exit code is not 0; failing tests still get their closing line."""
    done = gate(tmp_path, failing=step)
    assert done.returncode != 0
    assert (CLOSING in done.stdout.splitlines()[-1]) == (step == "test")
