"""Boots a worker process in the child that the supervisor forked, and takes it down in stages.

SIGTERM drains: nothing more is claimed, calls in flight have the drain budget, the rest goes back to the queue. A
second SIGTERM, or SIGINT, ends the budget. The end of the supervisor (end of file on its pipe) ends the worker at
once: its leases are reaped by whoever watches.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from gristmill import loops
from gristmill.contract.manifest import Manifest
from gristmill.memory import keep_freed_blocks, look_rarely_for_cycles
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.store import connect
from gristmilld import logs
from gristmilld.clock import monotonic_s
from gristmilld.config import DaemonConfig, WorkerSpec
from gristmilld.meter import EndpointState, WorkerMetrics, WorkerState
from gristmilld.upstream.client import UpstreamClient
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.pool import EndpointPool
from gristmilld.worker.attempt import Caller
from gristmilld.worker.keeper import Keeper
from gristmilld.worker.mill import Mill
from gristmilld.worker.notices import Notices
from gristmilld.worker.payload import Payloads
from gristmilld.worker.roster import Roster
from gristmilld.worker.session import Session
from gristmilld.worker.ward import Ward

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.5
QUICK_S = 0.0


def run_worker(spec: WorkerSpec) -> int:
    """Work until told to stop; the process's exit code."""
    keep_freed_blocks()
    look_rarely_for_cycles()
    logs.set_up(f"worker-{spec.slot}", log_format=spec.config.log_format, level=spec.config.log_level)
    ward = _open_ward(spec)
    return loops.run(_Worker(spec, ward).run())


def _open_ward(spec: WorkerSpec) -> Ward | None:
    """The ward of this worker; None when there is no memory for it: then the worker runs lone suspects itself."""
    try:
        return Ward.open(spec)
    except OSError as error:
        log.warning("requests under suspicion get no process of their own: %s", error.strerror)
        return None


def session_opener(
    pool: EndpointPool, token_prefix: str, lease_ttl_s: float, meter: WorkerMetrics
) -> Callable[[LeaseQueue, Manifest], Session]:
    """Makes the session of a job; a job whose endpoints are all unknown here is paused with a sentence."""

    def open_session(queue: LeaseQueue, manifest: Manifest) -> Session:
        session = Session(queue, manifest, token_prefix, int(lease_ttl_s * 1000), monotonic_s, meter)
        if not pool.among(manifest.endpoints):
            wanted, known = ", ".join(manifest.endpoints) or "any", ", ".join(e.name for e in pool.endpoints) or "none"
            session.object_to(
                f"this daemon has no endpoint {wanted} (it has: {known}): add it to the daemon's config, then resume"
            )
        return session

    return open_session


class _Worker:
    def __init__(self, spec: WorkerSpec, ward: Ward | None) -> None:
        self._spec = spec
        self._ward = ward
        self._stop = asyncio.Event()
        self._quick = asyncio.Event()

    async def run(self) -> int:
        config = self._spec.config
        self._watch()
        redis = connect(config.redis, name=self._spec.token_prefix)
        renewals = connect(config.redis, name=f"{self._spec.token_prefix}.renew")
        try:
            async with UpstreamClient(config.concurrency) as client:
                pool = EndpointPool(Endpoint(e) for e in config.endpoints)
                meter = WorkerMetrics.open(f"worker-{self._spec.slot}", [e.name for e in config.endpoints])
                opener = session_opener(pool, self._spec.token_prefix, config.lease_ttl_s, meter)
                roster = Roster(redis, config.pool, opener, monotonic_s)
                payloads = Payloads(config.allowed_roots, config.in_flight_bytes)
                mill = Mill(
                    roster,
                    payloads,
                    Caller(client, pool, meter),
                    slots=config.concurrency,
                    max_bytes=config.in_flight_bytes,
                    clock=monotonic_s,
                    meter=meter,
                    quarantine=self._spec.slot == 0,
                    ward=self._ward,
                )
                keeper = Keeper(renewals, lambda: list(roster.sessions.values()), lambda: mill.heart_age_s,
                                config.lease_ttl_s)  # fmt: skip
                notices = Notices(renewals, config.pool, self._spec.token_prefix, pool)
                saying = asyncio.create_task(notices.run())
                counting = asyncio.create_task(meter.run(lambda: _standing(config, mill, payloads, pool)))
                await self._work(mill, keeper)
                counting.cancel()
                saying.cancel()
        finally:
            if self._ward is not None:
                self._ward.close()
            await redis.aclose()
            await renewals.aclose()
        return 0

    async def _work(self, mill: Mill, keeper: Keeper) -> None:
        log.info("ready", extra=logs.fields(slots=self._spec.config.concurrency))
        heart = asyncio.create_task(_beat(self._spec.heartbeat_fd))
        renewing = asyncio.create_task(keeper.run())
        pumping = asyncio.create_task(mill.run())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            ends: set[asyncio.Task[Any]] = {pumping, stopping, renewing, heart}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in ends:
                if task.done():
                    task.result()  # a fault of ours: let it end the process, the supervisor starts another
            mill.stop()
            await pumping
            await self._drain(mill)
        finally:
            for task in (renewing, heart, pumping, stopping):
                task.cancel()

    async def _drain(self, mill: Mill) -> None:
        """Drain within the budget; a second signal ends the budget."""
        log.info("draining", extra=logs.fields(in_flight=mill.in_flight))
        draining = asyncio.create_task(mill.drain(self._spec.config.drain_s))
        hurry = asyncio.create_task(self._quick.wait())
        await asyncio.wait((draining, hurry), return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not draining.done():
            draining.cancel()
            with suppress(asyncio.CancelledError):
                await draining
            await mill.drain(QUICK_S)
        else:
            draining.result()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_term)
        loop.add_signal_handler(signal.SIGINT, self._on_int)
        loop.add_reader(self._spec.parent_fd, partial(self._on_parent, self._spec.parent_fd))

    def _on_term(self) -> None:
        if self._stop.is_set():
            self._quick.set()
        self._stop.set()

    def _on_int(self) -> None:
        self._stop.set()
        self._quick.set()

    @staticmethod
    def _on_parent(parent_fd: int) -> None:
        if not os.read(parent_fd, 1):
            os._exit(1)


def _standing(config: DaemonConfig, mill: Mill, payloads: Payloads, pool: EndpointPool) -> WorkerState:
    """How this worker stands, for the metrics; of endpoints those that the configuration names."""
    slots = config.concurrency
    endpoints = [EndpointState(e.name, e.outstanding, int(min(e.limits.limit, slots)), e.state) for e in pool.endpoints]
    return WorkerState(
        slots, mill.in_flight, mill.text_bytes, payloads.gate.inside_bytes, config.in_flight_bytes, endpoints
    )


async def _beat(heartbeat_fd: int) -> None:
    """Tell the supervisor that this loop turns."""
    while True:
        with suppress(BlockingIOError):
            os.write(heartbeat_fd, b".")
        await asyncio.sleep(HEARTBEAT_S)
