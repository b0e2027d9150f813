"""Boots the control child that the supervisor forked: this daemon's registration, its reaper, its janitor.

It lives through outages of the store, waiting visibly. It ends with exit code 0 when the supervisor says that no notice
will follow, and at once when the supervisor is dead; stop requests by signal are the supervisor's business. A store
that cannot be used as it is set up ends it with `EXIT_USAGE`, one that refuses us with `EXIT_SETUP`, and with it the
daemon.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import msgspec
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, AuthorizationError, RedisError

from gristmill import __version__
from gristmill.queue import registry
from gristmill.queue.cluster import each_primary
from gristmill.queue.errors import StoreError
from gristmill.queue.registry import DaemonInfo
from gristmill.queue.store import OUTAGES, check_store, connect
from gristmilld import logs
from gristmilld.clock import monotonic_s, wall_ms
from gristmilld.config import EXIT_SETUP, EXIT_USAGE, ControlSpec
from gristmilld.control.janitor import Janitor
from gristmilld.control.notices import NoticeStream
from gristmilld.control.reaper import Reaper
from gristmilld.control.reconciler import Reconciler
from gristmilld.control.roots import Roots
from gristmilld.control.storewatch import TROUBLE, Revive, StoreWatch
from gristmilld.control.watchdog import Watchdog
from gristmilld.lifeline import beat_forever, watch_parent

log = logging.getLogger(__name__)

REGISTER_INTERVAL_S = 5.0
REGISTER_TTL_S = 30.0
ROUND_INTERVAL_S = 3.0
SWEEP_INTERVAL_S = 30.0
RECONCILE_INTERVAL_S = 1.0
JITTER = 0.3
"""Intervals vary by this share, up and down, so that daemons do not keep step."""
GOODBYE_S = 2.0
CRASH_WINDOW_S = 60.0


def run_control(spec: ControlSpec, revive: Revive | None = None) -> int:
    """Look after the daemon's and the store's housekeeping until told to leave; the process's exit code.

    Args:
        spec: what the supervisor gives.
        revive: starts the embedded store again; None for a store of somebody else.
    """
    logs.set_up("control", log_format=spec.config.log_format, level=spec.config.log_level)
    return asyncio.run(_Control(spec, revive).run())


class _Control:
    def __init__(self, spec: ControlSpec, revive: Revive | None) -> None:
        self._spec = spec
        self._revive = revive
        self._crashes_s: deque[float] = deque(maxlen=1000)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, lambda: None)
        watch_parent(self._spec.parent_fd, lambda: os._exit(0))
        heart = asyncio.create_task(beat_forever(self._spec.heartbeat_fd))
        try:
            redis = connect(self._spec.config.redis, name=f"{self._spec.daemon_id}.control")
            async with redis:
                return await self._serve(redis)
        except StoreError as error:
            log.error("%s", error)  # noqa: TRY400  # the sentence is the message
            return EXIT_SETUP if isinstance(error.__cause__, RedisError) else EXIT_USAGE
        finally:
            heart.cancel()

    async def _serve(self, redis: Redis) -> int:
        watch = StoreWatch(monotonic_s, self._revive)
        reaper = Reaper(redis, monotonic_s)
        config = self._spec.config
        watchdog = Watchdog(redis, config.pool, config.stalled_after_s)
        janitor = Janitor(redis, reaper, watch, config.lease_ttl_s, monotonic_s, watchdog)
        # before the check of the store: notices must be read however long the store takes
        burying = asyncio.create_task(self._bury_all(reaper, watch))
        keeping = asyncio.create_task(self._keep_house(redis, watch, janitor))
        try:
            done, _ = await asyncio.wait({burying, keeping}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._say_goodbye(redis)
        finally:
            for task in (burying, keeping):
                task.cancel()
            await asyncio.gather(burying, keeping, return_exceptions=True)
        return 0

    async def _bury_all(self, reaper: Reaper, watch: StoreWatch) -> None:
        """Act on every notice; ends with the stream."""
        notices = NoticeStream(self._spec.notices_fd, self._spec.acks_fd)
        async for notice in notices:
            if notice.crashed:
                self._crashes_s.append(monotonic_s())
            await watch.insist(partial(reaper.bury, notice.prefix, crashed=notice.crashed))
            notices.acknowledge(notice)

    async def _keep_house(self, redis: Redis, watch: StoreWatch, janitor: Janitor) -> None:
        """Check the store, then do every chore at its interval, for good."""
        await watch.insist(lambda: _check(redis, watch))
        info = self._info()

        async def register() -> None:
            crashes = sum(monotonic_s() - at_s < CRASH_WINDOW_S for at_s in self._crashes_s)
            now = msgspec.structs.replace(info, recent_crashes=crashes)
            await registry.register_daemon(redis, now, REGISTER_TTL_S)

        reconciler = self._reconciler(redis)
        async with asyncio.TaskGroup() as chores:
            chores.create_task(_repeat(watch, REGISTER_INTERVAL_S, register))
            chores.create_task(_repeat(watch, ROUND_INTERVAL_S, janitor.round))
            chores.create_task(_repeat(watch, SWEEP_INTERVAL_S, janitor.sweep))
            if reconciler is not None:
                chores.create_task(_repeat(watch, RECONCILE_INTERVAL_S, reconciler.round))
                chores.create_task(_repeat(watch, SWEEP_INTERVAL_S, reconciler.sweep))

    def _reconciler(self, redis: Redis) -> Reconciler | None:
        """None where the control plane is left to other daemons."""
        config = self._spec.config
        if not config.control:
            return None
        from gristmilld.control.jobs import TIMEOUTS_S
        from gristmilld.control.rqdesk import RqDesk
        from gristmilld.control.rqstore import control_connection, control_url

        desk = RqDesk(control_connection(control_url(config), f"{self._spec.daemon_id}.reconciler"), TIMEOUTS_S)
        return Reconciler(redis, desk, Roots(config.allowed_roots), monotonic_s)

    def _info(self) -> DaemonInfo:
        config = self._spec.config
        return DaemonInfo(
            daemon_id=self._spec.daemon_id,
            host=socket.gethostname(),
            pid=os.getppid(),
            version=__version__,
            pool=config.pool,
            workers=config.workers,
            slots=config.workers * config.concurrency,
            started_at_ms=wall_ms(),
        )

    async def _say_goodbye(self, redis: Redis) -> None:
        """Nobody has to wait for our registration to run out; without a store it does so by itself."""
        with suppress(TimeoutError, *TROUBLE):
            async with asyncio.timeout(GOODBYE_S):
                await registry.forget_daemon(redis, self._spec.daemon_id)


async def _check(redis: Redis, watch: StoreWatch) -> None:
    """Refuse a store that is unfit; one that is merely away raises what it raised.

    Raises:
        StoreError: it can't be used as it is set up, or refuses us.
        One of `OUTAGES`.
    """
    try:
        store = await check_store(redis)
    except StoreError as error:
        cause = error.__cause__
        if isinstance(cause, OUTAGES) and not isinstance(cause, AuthenticationError | AuthorizationError):
            raise cause from None
        raise
    uptimes = [(await server.info("server")).get("uptime_in_seconds", 0) for _, server in await each_primary(redis)]
    watch.up_since(float(min(uptimes)))
    log.info("connected to the store", extra=logs.fields(product=store.product, version=store.version))


async def _repeat(watch: StoreWatch, interval_s: float, chore: Callable[[], Awaitable[object]]) -> None:
    while True:
        await watch.attempt(chore)
        await asyncio.sleep(interval_s * random.uniform(1 - JITTER, 1 + JITTER))
