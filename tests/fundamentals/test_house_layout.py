"""The shape of the tree: what may lie where, how big it may be, and what it may not say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("producer", "daemon", "tests", "bench", "examples", "ops")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
TEXT_SUFFIXES = {".py", ".lua", ".md", ".toml", ".txt", ".sh", ".yml", ".yaml", ".jsonl", ".conf", ""}


def files(*suffixes: str) -> list[Path]:
    found = [p for root in SOURCE_ROOTS for p in (ROOT / root).rglob("*") if p.suffix in suffixes and p.is_file()]
    return [p for p in found if "__pycache__" not in p.parts and "out" not in p.relative_to(ROOT).parts]


def own_texts() -> list[Path]:
    """Every text file of the project itself: sources, documents, set-up."""
    top = [p for p in ROOT.iterdir() if p.is_file() and p.suffix in TEXT_SUFFIXES and p.name != "LICENSE"]
    below = [p for folder in ("docs", ".ci") for p in (ROOT / folder).rglob("*") if p.is_file()]
    return [*files(*TEXT_SUFFIXES), *top, *below]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_sources_are_found() -> None:
    """The scans below look at something: each side of the house has sources."""
    roots = {p.relative_to(ROOT).parts[0] for p in files(".py")}
    assert {"producer", "daemon", "tests", "bench", "examples"} <= roots
    assert {"README.md", "Makefile", "pyproject.toml"} <= {p.name for p in own_texts()}


@pytest.mark.parametrize("root", ["daemon", "producer"])
def test_a_source_root_is_no_package(root: str) -> None:
    """A package called `daemon` would overwrite python-daemon's, which other tools import."""
    assert (ROOT / root).is_dir()
    assert not (ROOT / root / "__init__.py").exists()


def test_no_file_is_a_giant() -> None:
    """A source file stays below 400 lines; one that needs more has two purposes."""
    lines = {relative(p): len(p.read_text(encoding="utf-8").splitlines()) for p in files(".py", ".lua", ".sh")}
    assert {name: n for name, n in lines.items() if n >= MAX_FILE_LINES} == {}


def test_no_function_is_a_giant() -> None:
    """A function, with its docstring, has at most 60 lines."""
    long = {}
    for path in files(".py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long[f"{relative(path)}:{node.lineno} {node.name}"] = lines
    assert long == {}


FORBIDDEN = {
    "a promise instead of work": re.compile(r"\b(TODO|FIXME|XXX|HACK)\b"),
    "a path of one machine": re.compile(r"(?<![\w.])/(work|home(?!/vllm\b)|Users)/\w"),  # vLLM's image has a home
    "the address of a package registry": re.compile(r"pypi\.org|pythonhosted|registry\.npmjs|proxy\.golang"),
    "an issue number that a reader can't look up": re.compile(r"\b[\w.-]+#\d{2,}\b|\b(issue|PR) #?\d+\b"),
    "a debugger call": re.compile(r"\bbreakpoint\(\)|\bpdb\.set_trace\("),
    "a mark of an unfinished merge": re.compile(r"^(<{7}|>{7}) ", re.MULTILINE),
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_no_text_holds(kind: str) -> None:
    """No text of the project has what belongs in no text of a finished project."""
    found = []
    for path in own_texts():
        if path == Path(__file__):
            continue  # the patterns themselves
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if FORBIDDEN[kind].search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()[:80]}")
    assert found == []


def test_every_photograph_has_its_licence_noted() -> None:
    """examples/LICENSES.md has one row for each picture and none for a picture that is not there."""
    noted = set(re.findall(r"^\| `(photos/[^`]+)`", (ROOT / "examples/LICENSES.md").read_text("utf-8"), re.MULTILINE))
    there = {f"photos/{p.name}" for p in (ROOT / "examples/photos").iterdir()}
    assert noted == there
    assert sum(p.stat().st_size for p in (ROOT / "examples/photos").iterdir()) < 3_000_000


def test_the_lock_is_exact_and_names_no_host() -> None:
    """Each line of ops/constraints.txt is one exact version, whatever index a machine uses."""
    lines = (ROOT / "ops/constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==([0-9]+!)?[A-Za-z0-9.]+", pin)] == []
