"""`gristmilld up` as the chaos tier starts it: its children leave their pids, and a planted text can kill a worker.

``python -m tests.support.chaos_daemon FOLDER up ...`` runs the daemon's own command. Each worker writes an empty file
``FOLDER/worker.PREFIX.pid.PID`` when it starts, and the control child ``FOLDER/control.DAEMON.pid.PID``. A worker that
is about to run a request with `POISON` in it writes ``FOLDER/poison.PREFIX.pid.PID`` and kills itself.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from gristmilld import cli
from gristmilld.config import WorkerSpec
from gristmilld.control import main as control_main

POISON = "this text kills whoever reads it"


def main(folder: Path) -> None:
    """Run the command on the rest of argv, with the children watched."""
    work, control = cli._work, control_main.run_control

    def watched_work(spec: WorkerSpec) -> int:
        _sign(folder, "worker", spec.token_prefix)
        _take_poison(folder, spec.token_prefix)
        return work(spec)

    def watched_control(spec: Any, **options: Any) -> int:
        _sign(folder, "control", spec.daemon_id)
        return control(spec, **options)

    cli._work, control_main.run_control = watched_work, watched_control
    cli.main()


def _sign(folder: Path, role: str, who: str) -> None:
    (folder / f"{role}.{who}.pid.{os.getpid()}").touch()


def _take_poison(folder: Path, prefix: str) -> None:
    """Make this worker vulnerable."""
    from gristmilld.worker.attempt import Caller

    run, poison = Caller.run, POISON.encode()

    async def vulnerable(self: Caller, claimed: Any, request: Any, *rest: Any) -> Any:
        if any(poison in piece for piece in request.pieces):
            _sign(folder, "poison", prefix)
            os.kill(os.getpid(), signal.SIGKILL)
        return await run(self, claimed, request, *rest)

    Caller.run = vulnerable


if __name__ == "__main__":
    where = Path(sys.argv.pop(1))
    main(where)
