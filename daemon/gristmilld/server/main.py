"""Boots the server of metrics and health in the child that the supervisor forked.

SIGTERM or SIGINT ends it; so does the end of the supervisor. The port belongs to the supervisor: a server that is
killed comes back on it, and whoever connects meanwhile waits a moment.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Coroutine
from typing import Any

from aiohttp import web

from gristmill.queue.errors import StoreError
from gristmill.queue.store import connect
from gristmilld import lifeline, logs, metricsdir
from gristmilld.config import EXIT_USAGE, ServerSpec
from gristmilld.server.app import Pages
from gristmilld.server.look import StoreLook

log = logging.getLogger(__name__)

_STORE_TIMEOUT_S = 2.0
_SHUTDOWN_S = 1.0
_CANCEL_AGAIN_S = 0.05


def run_server(spec: ServerSpec) -> int:
    """Serve until told to stop; the process's exit code. The folder of the metrics is in the environment."""
    logs.set_up("server", log_format=spec.config.log_format, level=spec.config.log_level)
    try:
        return asyncio.run(_serve(spec))
    except StoreError as error:
        log.error("%s", error)  # noqa: TRY400  # the sentence is the message
        return EXIT_USAGE


async def _serve(spec: ServerSpec) -> int:
    folder = metricsdir.current()
    assert folder is not None, "the server is started only where metrics are on"
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    lifeline.watch_parent(spec.parent_fd, lambda: os._exit(1))
    redis = connect(
        spec.config.redis,
        name=f"{spec.daemon_id}.server",
        timeout_s=_STORE_TIMEOUT_S,
        connect_timeout_s=_STORE_TIMEOUT_S,
        max_connections=2,
    )
    look = StoreLook(redis, stalled_after_s=spec.config.stalled_after_s)
    runner = web.AppRunner(Pages(folder, look, spec.daemon_id).app(), access_log=None, shutdown_timeout=_SHUTDOWN_S)
    try:
        await runner.setup()
        await web.SockSite(runner, socket.socket(fileno=spec.listen_fd)).start()
        await _until(stop, lifeline.beat_forever(spec.heartbeat_fd), look.run())
    finally:
        await runner.cleanup()
        await redis.aclose()
    return 0


async def _until(stop: asyncio.Event, *forever: Coroutine[Any, Any, Any]) -> None:
    """Run `forever` until `stop`; a fault in one of them is ours, and ends this process."""
    tasks = {asyncio.create_task(each) for each in (stop.wait(), *forever)}
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    while pending:
        for task in pending:
            task.cancel()  # again and again: before Python 3.12 a call of redis-py can swallow it
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN_S)
    for task in done:
        task.result()
