"""Commands that the documents name exist, and every command explains itself."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "bench/README.md", *(ROOT / "docs").glob("*.md")]
VERBS = (
    "run",
    "submit",
    "ls",
    "status",
    "watch",
    "top",
    "results",
    "cancel",
    "pause",
    "resume",
    "retry",
    "stragglers",
    "rm",
    "check",
)
CONTRACT = {"producer": VERBS, "gristmilld": ("up", "doctor", "standin")}


@cache
def help_of(*argv: str) -> str:
    done = subprocess.run([str(BIN / argv[0]), *argv[1:], "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def documented() -> list[tuple[str, str, str]]:
    """(document, line, program) for each code line of the documents that starts one of our programs."""
    found = []
    for document in DOCUMENTS:
        for line in document.read_text(encoding="utf-8").splitlines():
            command = re.match(r"^\s*(?:\$ )?(producer|gristmilld) .*", line)
            if command:
                found.append((document.name, line.strip().removeprefix("$ "), command[1]))
    return found


def test_make_alone_lists_the_targets() -> None:
    """The default target explains every other one."""
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, timeout=20).stdout
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    assert [target for target in phony[1].split() if not re.search(rf"make {target}\b", shown)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_targets_that_a_document_names_exist(document: Path) -> None:
    """`make X` in a document is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z]+)|^\s*(?:\$ )?make ([a-z]+)", document.read_text("utf-8"), re.MULTILINE))
    assert {a or b for a, b in named} - targets == set()


@pytest.mark.parametrize(("program", "verb"), [(p, v) for p, verbs in CONTRACT.items() for v in verbs])
def test_every_command_explains_itself(program: str, verb: str) -> None:
    """`--help` works, starts with the usage, and says in words what the command does."""
    text = help_of(program, verb)
    assert text.lower().startswith("usage:")
    assert len(text.split()) > 15


@pytest.mark.parametrize("program", CONTRACT)
def test_a_program_lists_its_commands(program: str) -> None:
    """`--help` of the program names each of its commands."""
    text = help_of(program)
    assert [verb for verb in CONTRACT[program] if not re.search(rf"^\s+{verb}\b", text, re.MULTILINE)] == []


def test_documented_commands_exist_with_their_options() -> None:
    """Each `producer ...` or `gristmilld ...` line of a document uses a verb and options that exist."""
    lines = documented()
    assert lines
    wrong = []
    for document, line, program in lines:
        words = line.split("#")[0].split()
        verb = words[1] if len(words) > 1 and not words[1].startswith("-") else None
        text = help_of(program, verb) if verb else help_of(program)
        options = [w.split("=")[0] for w in words if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", w)]
        wrong += [f"{document}: {line}: {o}" for o in options if not re.search(rf"(^|\W){re.escape(o)}\b", text)]
    assert wrong == []
