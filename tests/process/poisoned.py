"""The daemon with workers that die of a text: ``python -m tests.process.poisoned up ...``, as `gristmilld`.

Everything is real but two things. A worker that is about to send a request that holds `MARKER` kills itself with
SIGKILL, as a fault in a native library would. And the supervisor waits less before it starts a worker again.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

from gristmilld.supervisor import loop
from gristmilld.supervisor.terms import Rules

MARKER = b"KILLS ITS WORKER"


def arm() -> None:
    """Make workers of this process's daemon mortal."""
    from gristmilld.worker.attempt import Caller

    run = Caller.run

    async def deadly(self: Caller, claimed: Any, request: Any, *args: Any) -> Any:
        if any(MARKER in piece for piece in request.pieces):
            os.kill(os.getpid(), signal.SIGKILL)
        return await run(self, claimed, request, *args)

    Caller.run = deadly  # type: ignore[method-assign]  # that is the point
    quick = Rules(back_off_s=0.02, back_off_max_s=0.1)
    loop.Supervisor = partial(loop.Supervisor, rules=quick)  # type: ignore[assignment,misc]  # as above


if __name__ == "__main__":
    from gristmilld.cli import main

    arm()
    main()
