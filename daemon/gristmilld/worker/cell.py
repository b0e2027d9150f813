"""A suspect's own process: it fetches one request, runs it, says what came of it, and ends.

Nothing of the request is read outside of it, so whatever in it kills (a fault in a native library while it is decoded,
memory without end while its answer is read) kills this process and no other.
"""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial

import msgspec

from gristmill import loops
from gristmill.contract import frame as frames
from gristmill.contract.frame import FormatError, Request
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import Claimed
from gristmill.queue.store import OUTAGES, connect
from gristmilld import logs
from gristmilld.config import WorkerSpec
from gristmilld.meter import WorkerMetrics
from gristmilld.upstream.client import UpstreamClient
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.pool import EndpointPool
from gristmilld.worker.attempt import Caller, Outcome, Terms, broken
from gristmilld.worker.payload import Payloads
from gristmilld.worker.running import outcome_of


def run_cell(spec: WorkerSpec, job: str, claimed: Claimed, reply_fd: int, lifeline_fd: int) -> int:
    """Run one request; the process's exit code.

    Args:
        spec: of the worker.
        job: the request's.
        claimed: the request.
        reply_fd: the outcome is written to it.
        lifeline_fd: reads end of file when there is nobody left to hear of the outcome.
    """
    logs.set_up(f"cell-{spec.slot}", log_format=spec.config.log_format, level=spec.config.log_level)
    outcome = loops.run(_outcome(spec, job, claimed, lifeline_fd))
    with open(reply_fd, "wb", closefd=False) as reply:
        reply.write(msgspec.msgpack.encode(outcome))
    return 0


async def _outcome(spec: WorkerSpec, job: str, claimed: Claimed, lifeline_fd: int) -> Outcome:
    recall = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, recall.set)
    loop.add_reader(lifeline_fd, partial(os._exit, 1))
    redis = connect(spec.config.redis, name=f"{spec.token_prefix}.cell")
    try:
        return await _run(spec, await LeaseQueue.attach(redis, job), claimed, recall)
    except JobNotFoundError:
        return Outcome(claimed)
    except OUTAGES:
        return Outcome(claimed, delay_s=1.0)
    except FormatError:
        return Outcome(claimed, delay_s=10.0)  # of another version; the worker says so when it joins the job
    finally:
        await redis.aclose()


async def _run(spec: WorkerSpec, queue: LeaseQueue, claimed: Claimed, recall: asyncio.Event) -> Outcome:
    config = spec.config
    terms = Terms.of(await queue.manifest())
    (data,) = await queue.fetch([claimed])
    request = None if data is None else frames.decode(data)
    if not isinstance(request, Request):
        return Outcome(claimed, missing=data is None)  # a refusal never comes here
    async with UpstreamClient(1) as client:
        caller = Caller(client, EndpointPool(Endpoint(e) for e in config.endpoints), WorkerMetrics())
        payloads = Payloads(config.allowed_roots, config.in_flight_bytes)
        try:
            return await outcome_of(caller, payloads, queue, claimed, request, terms, recall)
        except Exception as error:  # noqa: BLE001 - as in a worker: an error is no death
            return broken(claimed, request, terms, error)
