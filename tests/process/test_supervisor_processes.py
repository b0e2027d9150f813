"""The supervisor with real forked children, real signals and real deaths."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.wait import wait_until_sync

RULES = {"back_off_s": 0.01, "back_off_max_s": 0.05, "again_s": 0.05, "hang_s": 30.0}


class Supervised:
    """One supervisor process and what its children told."""

    def __init__(self, folder: Path, worker="steady", workers=1, exit_with_parent=False, stdin=None, **rules) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        spec = {"worker": worker, "workers": workers, "exit_with_parent": exit_with_parent, "rules": RULES | rules}
        argv = [sys.executable, "-m", "tests.process.supervised", str(folder), json.dumps(spec)]
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(argv, stdin=stdin, stdout=log, stderr=log, start_new_session=True)

    def events(self) -> list[list[str]]:
        path = self.folder / "events"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, *words: object) -> list[str]:
        """Wait for an event that starts with `words`, and return it."""
        wanted = [str(w) for w in words]

        def found() -> bool:
            return any(e[: len(wanted)] == wanted for e in self.events())

        wait_until_sync(found, description=f"{wanted} in {self.events()}; log: {self.log.read_text()[-2000:]}")
        return next(e for e in self.events() if e[: len(wanted)] == wanted)

    def pid_of(self, *words: object) -> int:
        return int(self.wait_for("up", *words)[-1])

    def allow_drain(self) -> None:
        (self.folder / "drained").touch()

    def stop(self) -> int:
        """Drain, and return the exit code."""
        self.allow_drain()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def child_pids(self) -> list[int]:
        return [int(e[-1]) for e in self.events() if e[0] == "up"]


@pytest.fixture
def supervised(tmp_path):
    """Starts supervisors; at the end none of their processes is left alive."""
    started: list[Supervised] = []

    def start(**options) -> Supervised:
        one = Supervised(tmp_path / str(len(started)), **options)
        started.append(one)
        return one

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait(20)
        if one.process.stdin:
            one.process.stdin.close()
        wait_until_sync(lambda one=one: not any(map(alive, one.child_pids())), description="children that die")


def alive(pid: int) -> bool:
    """Whether `pid` runs; a zombie that waits for its new parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_killed_worker_is_reported_as_crashed_and_started_again(supervised):
    """kill -9: one notice with its token prefix, and the next generation in the same slot."""
    daemon = supervised(workers=2)
    daemon.pid_of("worker", 1, 0)
    os.kill(daemon.pid_of("worker", 0, 0), signal.SIGKILL)
    daemon.wait_for("notice", "d1.0.0", "crashed")
    assert daemon.pid_of("worker", 0, 1)
    assert daemon.stop() == 0
    daemon.wait_for("notice", "d1.0.1", "unharmed")
    daemon.wait_for("notice", "d1.1.0", "unharmed")


def test_a_stop_request_drains_the_workers_and_lets_control_go_last(supervised):
    """SIGTERM: workers finish what they have; the control child leaves after their notices; exit code 0."""
    daemon = supervised(workers=2)
    daemon.pid_of("worker", 0, 0), daemon.pid_of("worker", 1, 0), daemon.pid_of("control", 0)
    assert daemon.stop() == 0
    words = [e[0] for e in daemon.events()]
    assert words.count("drained") == 2
    assert words[-2:] == ["finished", "leaked"]
    assert words.count("notice") == 2


def test_a_second_stop_request_makes_workers_leave_at_once(supervised):
    """Whoever asks twice does not want to wait for requests in flight."""
    daemon = supervised()
    daemon.pid_of("worker", 0, 0)
    daemon.process.send_signal(signal.SIGTERM)
    wait_until_sync(lambda: "SIGTERM to 1 worker" in daemon.log.read_text(), description="the first request is seen")

    def again() -> bool:
        daemon.process.send_signal(signal.SIGTERM)
        return daemon.process.poll() is not None

    wait_until_sync(again, description="the supervisor ends")
    assert daemon.process.wait(20) == 0
    daemon.wait_for("quick", 0)


def test_a_worker_that_ignores_every_request_is_killed_in_the_end(supervised):
    """TERM, INT, KILL, each after its budget; it is reported as stopped, not as crashed."""
    daemon = supervised(worker="stubborn", drain_s=0.2, hurry_s=0.2)
    daemon.pid_of("worker", 0, 0)
    assert daemon.stop() == 0
    daemon.wait_for("ignored", "SIGTERM")
    daemon.wait_for("ignored", "SIGINT")
    daemon.wait_for("notice", "d1.0.0", "unharmed")


def test_a_hung_worker_is_aborted_then_killed_and_not_called_crashed(supervised):
    """A silent loop is ended by the supervisor; its requests are not to blame."""
    daemon = supervised(worker="hung", hang_s=1.0, abort_s=0.3)
    daemon.pid_of("worker", 0, 1)
    assert daemon.wait_for("aborted", 0)
    daemon.wait_for("notice", "d1.0.0", "unharmed")
    assert "worker-0 hangs" in daemon.log.read_text()
    assert daemon.stop() == 0


def test_a_stopped_worker_is_found_hung_although_it_never_answers(supervised):
    """SIGSTOP is the deepest hang there is; SIGKILL ends even that."""
    daemon = supervised(hang_s=1.0, abort_s=0.2)
    os.kill(daemon.pid_of("worker", 0, 0), signal.SIGSTOP)
    daemon.wait_for("notice", "d1.0.0", "unharmed")
    assert daemon.pid_of("worker", 0, 1)
    assert daemon.stop() == 0


def test_a_worker_that_can_not_start_ends_the_daemon_with_a_sentence(supervised):
    """No endless respawn: exit code 1, and the reason is in the log once per death."""
    daemon = supervised(worker="stillborn", loop_deaths=3)
    assert daemon.process.wait(20) == 1
    log = daemon.log.read_text()
    assert "worker-0 died 3 times before it was up (last by exit code 70); the daemon stops" in log
    assert log.count("RuntimeError: the toy can't start") == 3


def test_an_unfit_worker_is_not_started_again(supervised):
    """Exit code 3 says that a person has to act: the daemon passes it on."""
    daemon = supervised(worker="unfit")
    assert daemon.process.wait(20) == 3
    assert "worker-0 can't run as set up" in daemon.log.read_text()


def test_a_killed_supervisor_leaves_no_child_alive(supervised):
    """kill -9 of the supervisor: the kernel ends its children."""
    daemon = supervised(workers=3)
    pids = [daemon.pid_of("worker", n, 0) for n in range(3)] + [daemon.pid_of("control", 0)]
    assert all(map(alive, pids))
    daemon.process.kill()
    daemon.process.wait(20)
    wait_until_sync(lambda: not any(map(alive, pids)), description="all children are gone")


def test_a_killed_control_child_is_started_again_and_gets_the_open_notices(supervised):
    """A notice that nobody acknowledged is sent to the next control child."""
    daemon = supervised()
    (daemon.folder / "no-acks").touch()
    control = daemon.pid_of("control", 0)
    os.kill(daemon.pid_of("worker", 0, 0), signal.SIGKILL)
    daemon.wait_for("notice", "d1.0.0", "crashed", "by", 0)
    (daemon.folder / "no-acks").unlink()
    os.kill(control, signal.SIGKILL)
    daemon.wait_for("notice", "d1.0.0", "crashed", "by", 1)
    assert daemon.stop() == 0
    assert "not reported as dead" not in daemon.log.read_text()


def test_the_end_of_stdin_is_a_stop_request_when_asked_for(supervised):
    """A private daemon ends with the command that started it, however that one dies."""
    daemon = supervised(exit_with_parent=True, stdin=subprocess.PIPE)
    daemon.pid_of("worker", 0, 0)
    daemon.allow_drain()
    daemon.process.stdin.close()
    assert daemon.process.wait(20) == 0
    daemon.wait_for("drained", 0)


def test_stdin_is_nothing_to_a_daemon_that_stands_for_itself(supervised):
    """Without the option an empty stdin (a service) stops nothing; a killed worker is still replaced."""
    daemon = supervised(stdin=subprocess.DEVNULL)
    os.kill(daemon.pid_of("worker", 0, 0), signal.SIGKILL)
    assert daemon.pid_of("worker", 0, 1)
    assert daemon.stop() == 0


def test_a_hang_up_is_ignored(supervised):
    """The daemon outlives its terminal."""
    daemon = supervised()
    daemon.pid_of("worker", 0, 0)
    daemon.process.send_signal(signal.SIGHUP)
    os.kill(daemon.pid_of("worker", 0, 0), signal.SIGKILL)
    assert daemon.pid_of("worker", 0, 1)
    assert daemon.stop() == 0


def test_a_terminals_interrupt_reaches_the_supervisor_alone(supervised):
    """Ctrl-C goes to the foreground group: the workers are told by the supervisor, once, to drain."""
    daemon = supervised(workers=2)
    daemon.pid_of("worker", 0, 0), daemon.pid_of("worker", 1, 0)
    os.killpg(daemon.process.pid, signal.SIGINT)
    wait_until_sync(lambda: "SIGTERM to 2 workers" in daemon.log.read_text(), description="they are asked to drain")
    daemon.allow_drain()
    assert daemon.process.wait(20) == 0
    assert [e[0] for e in daemon.events()].count("drained") == 2


def test_a_child_inherits_no_descriptor_but_its_own(supervised):
    """No worker holds another's pipe open, nor the supervisor's stdin."""
    daemon = supervised(worker="open_files", workers=2, exit_with_parent=True, stdin=subprocess.PIPE)
    daemon.pid_of("worker", 0, 0), daemon.pid_of("worker", 1, 0)
    assert [e[1:] for e in daemon.events() if e[0] == "extra"] == [[], []]
    assert [e[1:] for e in daemon.events() if e[0] == "stdin"] == [[os.devnull], [os.devnull]]
    daemon.allow_drain()
    daemon.process.stdin.close()
    assert daemon.process.wait(20) == 0


def test_the_forking_process_has_one_thread(supervised):
    """A fork of a process with threads can deadlock its child."""
    daemon = supervised()
    daemon.pid_of("worker", 0, 0)
    assert "Threads:\t1\n" in Path(f"/proc/{daemon.process.pid}/status").read_text()
    assert daemon.stop() == 0


def test_starting_and_stopping_leaves_no_descriptor_and_no_child(supervised):
    """Thirty quick lives, stopped at any moment of their start: each ends with 0, leaks nothing, leaves nobody."""
    supervisors = []
    for number in range(30):
        daemon = supervised(workers=2)
        supervisors.append(daemon)
        daemon.allow_drain()
        if number % 3 == 0:
            daemon.pid_of("control", 0)
        elif number % 3 == 1:
            daemon.pid_of("worker", 0, 0)
        else:
            wait_until_sync(lambda d=daemon: "control started" in d.log.read_text(), description="its first fork")
        daemon.process.send_signal(signal.SIGTERM)
    for daemon in supervisors:
        assert daemon.process.wait(20) == 0, daemon.log.read_text()
        assert daemon.wait_for("leaked") == ["leaked"]
        assert not any(map(alive, daemon.child_pids()))
