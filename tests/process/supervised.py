"""A supervisor over toy children, run as a process of its own by the tests: ``python -m tests.process.supervised``.

argv: a folder, and JSON with `workers`, `worker` (the toy's name), `rules` (of the policy), `exit_with_parent`.
Children write what happens to them as lines into ``FOLDER/events``: `up KIND SLOT GENERATION PID`, and what they were
told.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from gristmilld import logs
from gristmilld.config import ControlSpec, DaemonConfig, WorkerSpec
from gristmilld.supervisor.loop import Entries, Supervisor
from gristmilld.supervisor.terms import Rules


def open_fds() -> set[int]:
    """This process's descriptors, without the one that the listing itself takes."""
    listed = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    return {fd for fd in listed if Path(f"/proc/self/fd/{fd}").exists()}


class Toys:
    """What the children run; `events` is opened by each for itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tell(self, *words: object) -> None:
        fd = os.open(self.folder / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, (" ".join(map(str, words)) + "\n").encode())
        os.close(fd)

    def up(self, spec: WorkerSpec) -> None:
        os.write(spec.heartbeat_fd, b".")
        self.tell("up", "worker", spec.slot, spec.generation, os.getpid())

    def steady(self, spec: WorkerSpec) -> int:
        """Beats; the first SIGTERM drains until FOLDER/drained exists, the second or SIGINT leaves at once."""
        asked: list[int] = []
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda number, _: asked.append(number))
        self.up(spec)
        while True:
            os.write(spec.heartbeat_fd, b".")
            if signal.SIGINT in asked or len(asked) > 1:
                self.tell("quick", spec.slot)
                return 0
            if asked and (self.folder / "drained").exists():
                self.tell("drained", spec.slot)
                return 0
            time.sleep(0.02)  # the toy's own pace

    def hung(self, spec: WorkerSpec) -> int:
        """The first child of its slot is silent and deaf to SIGABRT; the next are steady."""
        if spec.generation:
            return self.steady(spec)
        self.up(spec)
        signal.signal(signal.SIGABRT, lambda *_: self.tell("aborted", spec.slot))
        while True:
            signal.pause()

    def stubborn(self, spec: WorkerSpec) -> int:
        """Beats, and ignores every request to stop."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda number, _: self.tell("ignored", signal.Signals(number).name))
        self.up(spec)
        while True:
            os.write(spec.heartbeat_fd, b".")
            time.sleep(0.02)  # the toy's own pace

    def stillborn(self, spec: WorkerSpec) -> int:
        """Dies before its first beat."""
        raise RuntimeError("the toy can't start")

    def unfit(self, spec: WorkerSpec) -> int:
        """Says that it can't run as set up."""
        return 3

    def open_files(self, spec: WorkerSpec) -> int:
        """Tells which descriptors it has, then is steady."""
        given = {0, 1, 2, spec.heartbeat_fd, spec.parent_fd}
        self.tell("extra", *sorted(open_fds() - given))
        self.tell("stdin", Path("/proc/self/fd/0").readlink())
        return self.steady(spec)

    def control(self, spec: ControlSpec) -> int:
        """Notes every notice; acknowledges it unless FOLDER/no-acks exists; leaves at the end of the stream."""
        os.write(spec.heartbeat_fd, b".")
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, signal.SIG_IGN)
        self.tell("up", "control", spec.generation, os.getpid())
        os.set_blocking(spec.notices_fd, False)
        buffer = b""
        while True:
            os.write(spec.heartbeat_fd, b".")
            try:
                data = os.read(spec.notices_fd, 65536)
            except BlockingIOError:
                time.sleep(0.02)  # the toy's own pace
                continue
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                notice = json.loads(line)
                crashed = "crashed" if notice["crashed"] else "unharmed"
                self.tell("notice", notice["prefix"], crashed, "by", spec.generation)
                if not (self.folder / "no-acks").exists():
                    os.write(spec.acks_fd, b"%d\n" % notice["number"])
            if not data:
                self.tell("finished", spec.generation)
                return 0


def main() -> int:
    folder, spec = Path(sys.argv[1]), json.loads(sys.argv[2])
    logs.set_up("supervisor", level="debug")
    toys = Toys(folder)
    entries = Entries(worker=getattr(toys, spec["worker"]), control=toys.control)
    config = DaemonConfig(redis="unix:///nowhere", endpoints=[], workers=spec["workers"])
    rules = Rules(**spec["rules"])
    supervisor = Supervisor(config, "d1", entries, rules=rules, exit_with_parent=spec["exit_with_parent"])
    before = open_fds()
    code = supervisor.run()
    toys.tell("leaked", *sorted(open_fds() - before))
    return code


if __name__ == "__main__":
    raise SystemExit(main())
