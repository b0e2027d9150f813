"""The systemd unit: systemd accepts it, and it stops the daemon as the daemon wants to be stopped."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from gristmilld.cli import main as gristmilld
from gristmilld.config import BOOT_FAILURES, DaemonConfig

UNIT = Path(__file__).resolve().parents[2] / "ops/systemd/gristmilld.service"
TEXT = UNIT.read_text(encoding="utf-8")
EXTRA_DRAIN_S = 8
"""The supervisor waits this much longer than `drain_s` before it kills."""
MOST_EXPOSURE = 2.0

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


def setting(name: str) -> str:
    (value,) = re.findall(rf"^{name}=(.*)$", TEXT, re.MULTILINE)
    return value


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with a program that is there."""
    path = tmp_path / UNIT.name
    path.write_text(TEXT.replace("/opt/gristmill/bin/gristmilld", "/bin/true"), encoding="utf-8")
    return path


@needs_systemd
def test_systemd_accepts_it(unit: Path) -> None:
    """Nothing is unknown or wrong."""
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
def test_it_is_hardened(unit: Path) -> None:
    """systemd's own measure of what the service could reach: 0 is nothing, 10 everything."""
    argv = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert float(re.findall(r"exposure level for \S+: ([\d.]+)", done.stdout)[0]) <= MOST_EXPOSURE


def test_a_stop_drains() -> None:
    """SIGTERM to the supervisor alone, and time enough for requests in flight."""
    assert setting("KillMode") == "mixed"
    default = DaemonConfig(redis="", endpoints=[]).drain_s
    assert int(setting("TimeoutStopSec")) > default + EXTRA_DRAIN_S


def test_what_no_restart_mends_is_not_restarted() -> None:
    """The exit codes that ask for a person, and no others."""
    assert {int(code) for code in setting("RestartPreventExitStatus").split()} == BOOT_FAILURES


def test_its_command_is_one_of_ours() -> None:
    """`gristmilld up`, with options that it has."""
    program, verb, *rest = shlex.split(setting("ExecStart"))
    assert Path(program).name == "gristmilld"
    command = gristmilld.get_command(click.Context(gristmilld), verb)
    assert command is not None
    known = {option for param in command.params for option in param.opts}
    assert {word for word in rest if word.startswith("--")} <= known
