"""One request from its body to its outcome: in a worker, and in a suspect's own process."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from gristmill.contract.frame import Request
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import Claimed
from gristmill.queue.store import OUTAGES
from gristmilld.logs import fields
from gristmilld.worker.attempt import Caller, Outcome, Terms
from gristmilld.worker.payload import Payloads
from gristmilld.worker.stored import PayloadGoneError

log = logging.getLogger(__name__)


async def outcome_of(
    caller: Caller,
    payloads: Payloads,
    queue: LeaseQueue,
    claimed: Claimed,
    request: Request,
    terms: Terms,
    recall: asyncio.Event,
) -> Outcome:
    """Run `request`. A store that is away is an outcome as well; any other error is ours, and is passed on."""
    try:
        load = partial(payloads.body, queue, claimed.run, request)
        return await caller.run(claimed, request, load, terms, recall)
    except PayloadGoneError as error:
        log.warning("a picture is not in the store: %s", error, extra=fields(job=queue.job, index=claimed.index))
        return Outcome(claimed, missing=True)
    except OUTAGES:
        return Outcome(claimed, delay_s=1.0)  # its pictures could not be fetched
