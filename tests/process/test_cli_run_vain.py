"""A run whose INPUT is refused before anything was sent says one thing, and leaves nothing behind."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from tests.support.cli import producer, write_requests
from tests.support.desk import Desk, desk, shared_standin, standin
from tests.support.standin import StandinProcess

__all__ = ["desk", "shared_standin", "standin"]

GOOD = '{"custom_id":"a","prompt":"x"}\n'


def utf16(path: Path) -> None:
    path.write_bytes(GOOD.encode("utf-16"))


def cut_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress((GOOD * 50).encode())[:-20])


def repeated(path: Path) -> None:
    path.write_text(GOOD * 2)


def bad_line(path: Path) -> None:
    path.write_text("no json\n" + GOOD)


@pytest.mark.parametrize(
    ("write", "options", "words"),
    [
        (utf16, [], "is UTF-16 text"),
        (cut_gzip, [], "is damaged or cut short"),
        (repeated, ["--strict"], "lines 1 and 2 have the same custom_id"),
        (bad_line, ["--on-bad-line", "fail"], "line 1 is not JSON"),
    ],
    ids=["utf-16", "cut gzip", "--strict", "--on-bad-line fail"],
)
def test_a_refused_input_leaves_nothing_behind(desk: Desk, standin: StandinProcess, write, options, words: str):
    """Exit code 2, one sentence, no OUT, no work folder, nothing sent."""
    standin.reset_stats()
    write(desk.input)
    done = desk.run(*options)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count(words) == 1
    assert "goes on" not in done.stderr
    assert "kept" not in done.stderr
    assert not desk.out.exists()
    assert not Path(f"{desk.out}.gm").exists()
    assert standin.stats["requests"] == 0


def test_after_mending_the_same_command_works(desk: Desk):
    """Nothing of the vain run is in the way; no job of it is in the store either."""
    repeated(desk.input)
    assert desk.run("--strict").returncode == 2
    assert producer("ls", "--json", "--state-dir", desk.state).stdout == "[]\n"
    write_requests(desk.input, 5)
    assert desk.run("--strict").returncode == 0
    desk.assert_complete(5)


def test_an_old_out_outlives_a_refused_input(desk: Desk):
    """Lines of an earlier run are at stake: they stay, and the same command goes on from them."""
    write_requests(desk.input, 5)
    assert desk.run().returncode == 0
    before = desk.out.read_bytes()
    repeated(desk.input)
    done = desk.run("--strict")
    assert done.returncode == 2
    assert desk.out.read_bytes() == before


def test_an_empty_file_of_the_user_is_left_alone(desk: Desk):
    """OUT was not made by this run, so it is not taken away."""
    desk.out.touch()
    utf16(desk.input)
    assert desk.run().returncode == 2
    assert desk.out.exists()
