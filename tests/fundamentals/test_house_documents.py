"""Documents agree with the code and with each other."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import msgspec
import pytest

from gristmill.contract.failure import TABLE
from gristmilld.settings import Flags, _File, load

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    """Each relative link of a document is a file of this checkout."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_each_guarantee_names_tests_that_exist() -> None:
    """docs/guarantees.md promises nothing without a test: each row of its tables ends with tests, and each is there."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs/guarantees.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("|") and not line.startswith("|--")
    ]
    promises = [row for row in rows if row[-1] != "test"]
    assert len(promises) > 40
    wrong = []
    for row in promises:
        named = re.findall(r"`([a-z]+/test_\w+\.py)::(test_\w+)`", row[-1])
        leftover = re.sub(r"`[^`]*`", "", row[-1]).strip()
        if not named or leftover or len(named) != row[-1].count("::"):
            wrong.append(f"{row[0]}: its last cell is not a list of tests")
        for file, test in named:
            path = ROOT / "tests" / file
            if not path.is_file() or not re.search(rf"^(async )?def {test}\(", path.read_text("utf-8"), re.MULTILINE):
                wrong.append(f"{file} has no {test}")
    assert wrong == []


def test_the_table_of_failures_is_the_one_in_code() -> None:
    """docs/failures.md has each class once, with the same word on whether it costs an attempt."""
    text = (ROOT / "docs/failures.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\| (yes|no) \|$", text, re.MULTILINE)
    assert rows == [(cls.value, "yes" if rule.costs_attempt else "no") for cls, rule in TABLE.items()]


def test_the_example_of_settings_is_complete_and_true() -> None:
    """examples/gristmill.toml is accepted, names every setting, and shows the default where it claims one."""
    path = ROOT / "examples/gristmill.toml"
    config = load(Flags(config=path), {"HOSTED_KEY": "secret", "HOOK_SECRET": "secret"})
    assert [e.name for e in config.endpoints] == ["local", "hosted"]
    written = tomllib.loads(path.read_text(encoding="utf-8"))
    defaults = {f.name: f.default for f in msgspec.structs.fields(_File)}
    assert set(written) == set(defaults)
    own_words = {
        "redis",
        "workers",
        "metrics_port",
        "state_dir",
        "endpoints",
        "allowed_roots",
        "control_redis",
        "webhooks",
    }
    assert {k: v for k, v in written.items() if k not in own_words and v != defaults[k]} == {}


@pytest.mark.parametrize(
    ("version", "words"),
    [("3.9.2", "Gristmill needs Python 3.11 or newer"), (None, "Install Python 3.11 or newer")],
    ids=["too old", "missing"],
)
def test_make_says_which_python_it_needs(version: str | None, words: str, tmp_path: Path) -> None:
    """Without a fit Python, make ends with one sentence that says what to do, before it touches anything."""
    python = tmp_path / "python"
    if version:
        python.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "Python {version}" && exit 0\nexit 1\n')
        python.chmod(0o755)
    argv = ["make", "-B", f"PYTHON={python}", f"VENV={tmp_path}/venv", "test"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert done.returncode != 0
    assert words in done.stderr
    assert not (tmp_path / "venv").exists()
