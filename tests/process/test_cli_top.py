"""`producer top` on a real terminal and off one."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis as SyncRedis
from tests.support.cli import command, environment, producer, write_requests
from tests.support.store import StoreProcess


def submitted(tmp_path: Path, url: str, n: int = 10) -> str:
    done = producer("submit", write_requests(tmp_path / "in.jsonl", n), "-m", "m", "--name", "mine", "--redis", url)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Terminal:
    """A command on a pseudo terminal of 100 x 20.

    Attributes:
        text: everything that it wrote.
    """

    def __init__(self, argv: list[str]) -> None:
        self.fd, self._theirs = pty.openpty()
        termios.tcsetwinsize(self.fd, (20, 100))
        self.before = termios.tcgetattr(self._theirs)
        self.process = subprocess.Popen(
            argv, stdin=self._theirs, stdout=self._theirs, stderr=self._theirs, start_new_session=True,
            env=environment(TERM="xterm-256color"),
        )  # fmt: skip
        self.text = ""

    def read_until(self, words: str) -> None:
        """Return once the command has written `words`."""
        deadline_s = time.monotonic() + 20
        while words not in self.text:
            assert time.monotonic() < deadline_s, f"no {words!r} in {self.text!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                self.text += os.read(self.fd, 65536).decode(errors="replace")

    def end(self) -> int:
        """Its exit code, once it has ended by itself; reads what it still says."""
        while self.process.poll() is None:
            if select.select([self.fd], [], [], 0.1)[0]:
                self.text += os.read(self.fd, 65536).decode(errors="replace")
        while select.select([self.fd], [], [], 0)[0]:
            self.text += os.read(self.fd, 65536).decode(errors="replace")
        return self.process.returncode

    def attributes(self) -> list[object]:
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.fd)
        os.close(self._theirs)


@contextmanager
def terminal(*words: object) -> Iterator[Terminal]:
    shown = Terminal(command(*words))
    try:
        yield shown
    finally:
        shown.close()


@pytest.fixture
def url(shared_store: StoreProcess) -> str:
    with SyncRedis.from_url(shared_store.url) as client:
        client.flushall()
    return shared_store.url


@pytest.mark.parametrize("words", [("--once",), ()], ids=["once", "in a pipe"])
def test_off_a_terminal_it_is_one_plain_table(tmp_path: Path, url: str, words: tuple[str, ...]):
    """It ends by itself, on stdout, without escape codes."""
    job = submitted(tmp_path, url)
    done = producer("top", "--redis", url, *words)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.startswith(job)]
    assert row.split() == [job, "waiting", "0/10", "0", "%", "mine"]
    assert "no daemon connected" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("how", ["q", "ctrl-c", signal.SIGTERM], ids=["q", "ctrl-c", "SIGTERM"])
def test_it_gives_the_terminal_back(tmp_path: Path, url: str, how: str | signal.Signals):
    """q, Ctrl-C and SIGTERM end it with 0, off the alternate screen, with the cursor and line editing back."""
    job = submitted(tmp_path, url)
    with terminal("top", "--redis", url) as shown:
        shown.read_until(job)
        shown.read_until("q quits")
        assert "\x1b[?1049h" in shown.text
        if how == "q":
            os.write(shown.fd, b"q")
        else:
            shown.process.send_signal(signal.SIGINT if how == "ctrl-c" else how)
        assert shown.end() == 0
        assert shown.text.rindex("\x1b[?1049l") > shown.text.rindex("\x1b[?1049h")
        assert shown.text.rindex("\x1b[?25h") > shown.text.rindex("\x1b[?25l")
        assert shown.attributes() == shown.before


def test_an_outage_is_lived_through(tmp_path: Path, own_store: StoreProcess):
    """The last look stays with a word on the store, and goes on when that is back."""
    job = submitted(tmp_path, own_store.url)
    with terminal("top", "--redis", own_store.url) as shown:
        shown.read_until(job)
        own_store.kill()
        shown.read_until("the store does not answer")
        shown.text = ""
        own_store.start()
        shown.read_until("0/10")
        while "does not answer" in shown.text:
            shown.text = ""
            shown.read_until("q quits")
        os.write(shown.fd, b"q")
        assert shown.end() == 0


def test_a_store_that_is_away_at_the_start_is_one_sentence(tmp_path: Path):
    """As with every other verb: exit code 2 and no half-drawn screen."""
    done = producer("top", "--redis", f"unix://{tmp_path}/none", timeout_s=30)
    assert done.returncode == 2
    assert "cannot be reached" in done.stderr
    assert done.stdout == ""
