"""What an import costs, and which package may import which."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ["aiohttp", "PIL", "rq", "redis", "uvloop", "rich", "click"]


def python(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], cwd=ROOT, capture_output=True, text=True, timeout=60)


def modules_after(statement: str) -> set[str]:
    done = python("-W", "error", "-c", f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("package", ["gristmill", "gristmilld"])
def test_importing_a_package_is_silent_and_cheap(package: str) -> None:
    """No warning, and none of the big libraries is loaded before it is needed."""
    loaded = modules_after(f"import {package}")
    assert package in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_the_producer_loads_without_the_daemon() -> None:
    """The base install has no aiohttp, and the SDK never reaches for gristmilld."""
    loaded = modules_after("import gristmill, gristmill.cli")
    assert [name for name in ("gristmilld", "aiohttp", "PIL", "uvloop") if name in loaded] == []


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_a_feeder_is_started_before_the_large_imports(verb: str) -> None:
    """What the command needs until its feeder runs is small: the feeder imports the rest at the same time."""
    loaded = modules_after(f"import gristmill.cli.{verb}, gristmill.cli._session, gristmill.cli._early")
    assert [name for name in ("redis", "rich", "PIL", "gristmill.queue", "gristmill.outlet") if name in loaded] == []


def test_submitting_loads_neither_the_feeder_nor_the_outlet() -> None:
    """The feeder is a process of its own, and results are collected with --wait alone."""
    loaded = modules_after("import gristmill.cli._submitting")
    unused = ("gristmill.intake.feeder", "gristmill.outlet.collector", "sqlite3")
    assert [name for name in unused if name in loaded] == []


def test_public_names_exist() -> None:
    """`from gristmill import *` gives what __all__ names."""
    done = python("-W", "error", "-c", "import gristmill\nfor name in gristmill.__all__: getattr(gristmill, name)")
    assert done.returncode == 0, done.stderr


def test_the_import_contracts_hold() -> None:
    """Imports go one way, and pure modules stay pure: the contracts of pyproject.toml."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
