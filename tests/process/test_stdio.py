"""Commands whose standard descriptors are closed, gone or full: talk may be lost, results and exit codes may not."""

from __future__ import annotations

import os
import pty
import signal
import subprocess

import pytest
from tests.support.cli import Background, command, environment, write_requests
from tests.support.desk import Desk, desk, shared_standin, standin
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until_sync

__all__ = ["desk", "shared_standin", "standin"]


def in_shell(redirection: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirection}', "bash", *words],
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("redirection", ["<&- >&- 2>&-", "2>/dev/full", "2> >(head -n 1)"])
def test_a_run_that_nobody_hears_answers_every_line(desk: Desk, standin: StandinProcess, redirection: str):
    """Closed descriptors and a stderr that takes nothing more end no run; OUT is whole and the exit code is 0."""
    write_requests(desk.input, 30)
    assert in_shell(redirection, *command(*desk.argv())).returncode == 0
    assert len(desk.lines) == 30


def test_data_that_cannot_be_written_is_told(desk: Desk, standin: StandinProcess):
    """A full or closed stdout is exit 3 and one sentence, whether Python keeps a buffer or not."""
    write_requests(desk.input, 10)
    for redirection, unbuffered, why in ((">/dev/full", "1", "No space left"), (">&-", "", "Bad file descriptor")):
        told = in_shell(redirection, *command("check", desk.input), PYTHONUNBUFFERED=unbuffered)
        assert told.returncode == 3
        assert told.stderr.startswith(f"Error: standard output can't be written: {why}")
        assert "Traceback" not in told.stderr


def test_results_that_cannot_be_written_are_kept(desk: Desk, standin: StandinProcess):
    """`run -o - >/dev/full` pauses with exit 3, and nothing that was paid for is asked again."""
    write_requests(desk.input, 40)
    words = [w if w != str(desk.out) else "-" for w in command(*desk.argv())]
    full = in_shell(">/dev/full", *words)
    assert full.returncode == 3
    assert "standard output: No space left on device" in full.stderr
    again = in_shell("", *words)
    assert (again.returncode, len(again.stdout.splitlines())) == (0, 40)
    assert standin.stats["requests"] == 40


def test_a_closed_terminal_is_an_interruption(desk: Desk, standin: StandinProcess):
    """A run whose terminal goes away ends in order with 130, though its display can't be drawn any more."""
    write_requests(desk.input, 400)
    standin.control(latency="0.2")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command(*desk.argv("--concurrency", 10)),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm"),
        start_new_session=True,
    ) as process:
        os.close(theirs)
        wait_until_sync(lambda: standin.stats["requests"] > 10, description="the run works", timeout_s=30)
        os.close(ours)  # writing fails from now on
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == 130


def test_a_daemon_with_closed_descriptors_works(desk: Desk, standin: StandinProcess):
    """`gristmilld` started without any, as by some daemons' wrappers, does its work."""
    write_requests(desk.input, 10)
    state = ("--state-dir", str(desk.state))
    up = [word.replace("gristmill", "gristmilld") if word == "gristmill" else word for word in command("up")]
    argv = [*up, "-e", standin.url, "--no-metrics", "--workers", "1", *state]
    with Background(["bash", "-c", '"$@" <&- >&- 2>&-', "bash", *argv], environment()):
        submit = ("submit", desk.input, "--wait", "-o", desk.out, "-m", "standin", *state)
        assert in_shell("", *command(*submit)).returncode == 0
    assert len(desk.lines) == 10
