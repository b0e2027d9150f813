"""`--format conversations` on the command line: checked and run, as one array and as lines, also after a crash."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.support import pictures
from tests.support.cli import producer
from tests.support.standin import StandinProcess


@pytest.fixture(scope="module")
def standin():
    with StandinProcess() as process:
        yield process


def write(folder: Path, n: int, *, as_array: bool) -> Path:
    """`n` rows with a picture each; every tenth has a picture too few."""
    (folder / "media").mkdir()
    (folder / "media" / "p.png").write_bytes(pictures.saved(pictures.quarters(), "PNG"))
    rows = []
    for i in range(n):
        said = [{"from": "human", "value": f"<image>\nquestion {i}"}, {"from": "gpt", "value": "an answer"}]
        rows.append({"id": f"r{i}", "image": "p.png" if i % 10 else [], "conversations": said})
    path = folder / ("rows.json" if as_array else "rows.jsonl")
    path.write_text(json.dumps(rows, indent=1) if as_array else "\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("as_array", [True, False], ids=["array", "lines"])
def test_a_data_set_is_run(tmp_path: Path, standin: StandinProcess, as_array: bool):
    """Each row's question arrives with its picture and without the old answer; rows whose counts differ fail alone.

    The same command again sends only what failed.
    """
    path, out = write(tmp_path, 40, as_array=as_array), tmp_path / "out.jsonl"
    words = ["--format", "conversations", "--media-root", tmp_path / "media", "-e", standin.url]
    state = ["--state-dir", tmp_path / "state"]
    done = producer("run", path, "-o", out, *words, *state, "-m", "standin")
    assert done.returncode == 1, done.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["custom_id"] for line in lines] == [f"r{i}" for i in range(40)]
    for i, line in enumerate(lines):
        if i % 10 == 0:
            assert line["error"]["code"] == "bad_input"
            assert "1 <image> in its turns and 0 pictures" in line["error"]["message"]
            continue
        seen = json.loads(line["response"]["body"]["choices"][0]["message"]["content"])
        assert seen["text_sha256"] == hashlib.sha256(f"question {i}".encode()).hexdigest()
        assert (seen["images"][0]["width"], seen["images"][0]["height"]) == pictures.quarters().size
    standin.reset_stats()
    again = producer("run", path, "-o", out, *words, *state, "-m", "standin")
    assert again.returncode == 1
    assert standin.stats["requests"] == 0


def test_a_data_set_is_checked(tmp_path: Path):
    """`check` counts rows and pictures, names the bad ones by their place in the array, and exits with 2."""
    path = write(tmp_path, 20, as_array=True)
    done = producer("check", path, "--format", "conversations", "--media-root", tmp_path / "media", "-m", "m", "--json")
    assert done.returncode == 2
    report = json.loads(done.stdout)
    assert (report["lines"], report["sendable"], report["refused"], report["pictures"]) == (20, 18, 2, 18)
    assert [bad["line"] for bad in report["bad"]] == [1, 11]


def test_a_torn_array_is_an_error_of_the_input(tmp_path: Path):
    """Rows would be missing: exit 2 with a sentence."""
    path = tmp_path / "rows.json"
    path.write_text('[{"conversations": [{"from": "human", "value": "x"}]}, {"conv')
    done = producer("check", path, "--format", "conversations", "-m", "m")
    assert done.returncode == 2
    assert "rows.json is cut short: its array does not end" in done.stderr
