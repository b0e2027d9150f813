"""One request, from its frame to its outcome: where the queue's words and the upstream's meet.

A request keeps its slot while it waits for an endpoint or for a short retry, and gives it up for a long one. Whatever
happens it ends in exactly one `Outcome`: a record to commit, or a return to the queue. An error of our own code ends
in an outcome too, so no request is ever left hanging in a worker that lives.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from gristmill.contract import record as records
from gristmill.contract.failure import Failure, FailureClass
from gristmill.contract.frame import Refusal, Request
from gristmill.contract.manifest import Manifest, Timeouts
from gristmill.queue.replies import Claimed, Finished, Returned
from gristmilld.logs import fields
from gristmilld.meter import WorkerMetrics
from gristmilld.metrics import OK
from gristmilld.upstream.body import Body
from gristmilld.upstream.client import UpstreamClient
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.failures import looks_like_configuration
from gristmilld.upstream.outcome import TRUNCATED, Answer, FailedCall
from gristmilld.upstream.pool import EndpointPool
from gristmilld.upstream.retry import CAP_S, Action, decide

log = logging.getLogger(__name__)

Loader = Callable[[], Awaitable[Body | Failure]]
"""Makes the body of a request for one attempt, or says why it cannot be sent."""

_LOOK_AGAIN_S = 1.0
"""Longest sleep of a request that waits for an endpoint."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of one claimed request in this worker.

    Attributes:
        claimed: which one.
        record: its terminal record, or None when it goes back to the queue.
        charged: attempts that count, made since it was claimed.
        delay_s: for a return, how long it should wait.
        failure: the last failed call, or None.
        pause: why the job must pause for a person, or None.
        missing: its payload was not in the store.
        endpoint: that of the last call, for the metrics; None when none was made.
    """

    claimed: Claimed
    record: bytes | None = None
    charged: int = 0
    delay_s: float = 0.0
    failure: Failure | None = None
    pause: str | None = None
    missing: bool = False
    endpoint: str | None = None

    @property
    def ok(self) -> bool:
        return self.record is not None and self.failure is None

    def finished(self) -> Finished:
        assert self.record is not None
        return Finished(self.claimed.index, self.claimed.run, self.record)

    def returned(self) -> Returned:
        return Returned(self.claimed.index, self.claimed.claim, int(self.delay_s * 1000), self.charged, self.missing)

    def uncharged(self) -> Outcome:
        """The same request, put back as if it had not been tried."""
        return Outcome(self.claimed)


class Terms(msgspec.Struct, frozen=True):
    """What a job says about its calls."""

    endpoints: list[str]
    max_attempts: int
    timeouts: Timeouts
    keep_truncated: bool
    max_backoff_s: float = CAP_S
    deadline_s: float = 0.0
    """A request without an answer so long after its first claim is failed; 0 is never."""

    @classmethod
    def of(cls, manifest: Manifest) -> Terms:
        return cls(
            manifest.endpoints,
            manifest.max_attempts,
            manifest.timeouts,
            manifest.on_truncated == "keep",
            manifest.max_backoff_s or CAP_S,
            manifest.request_deadline_ms / 1000,
        )

    def left_s(self, claimed: Claimed) -> float:
        """How long a request may still take from the moment of this claim."""
        return self.deadline_s - claimed.age_ms / 1000 if self.deadline_s else float("inf")


def refuse(claimed: Claimed, refusal: Refusal) -> Outcome:
    """The outcome of a line or picture that could not be encoded: failed without a call."""
    detail = records.Detail(refusal.ordinal, refusal.custom_id, refusal.fingerprint, message=refusal.message)
    return Outcome(claimed, records.encode(records.Record(refusal.cls, 0, 0, 0, detail)))


def poisoned(claimed: Claimed, request: Request) -> Outcome:
    """The outcome of a request that kills whoever runs it: failed, and never run again."""
    failure = Failure(FailureClass.POISON, "each process that ran this request alone died of it; it is not run again")
    return Outcome(claimed, failed_record(request, failure, claimed.attempts))


def overdue(claimed: Claimed, request: Request, terms: Terms, made: int = 0) -> Outcome:
    """The outcome of a request whose own deadline has passed, `made` attempts after this claim."""
    failure = Failure(FailureClass.DEADLINE, f"no answer within {terms.deadline_s:g} s of its first start")
    return Outcome(claimed, failed_record(request, failure, claimed.attempts + made), failure=failure)


def failed_record(request: Request, failure: Failure, attempts: int) -> bytes:
    """The record of `request`, failed for good after `attempts`."""
    call = failure if isinstance(failure, FailedCall) else None
    detail = records.Detail(
        request.ordinal,
        request.custom_id,
        request.fingerprint,
        status_code=failure.status_code,
        request_id=call.request_id if call else None,
        body=call.body if call else None,
        message=failure.message,
        latency_ms=call.latency_ms if call else 0,
        endpoint=call.endpoint if call else None,
    )
    prompt, completion = (call.prompt_tokens, call.completion_tokens) if call else (0, 0)
    return records.encode(records.Record(failure.cls, attempts, prompt, completion, detail))


class _Made(msgspec.Struct):
    """Attempts of one request that were begun since it was claimed."""

    count: int = 0


class Caller:
    """Makes the calls of requests until each has its outcome.

    Args:
        client: posts.
        pool: picks the endpoint, and knows which ones are worth trying.
        meter: counts attempts.
    """

    def __init__(self, client: UpstreamClient, pool: EndpointPool, meter: WorkerMetrics) -> None:
        self._client = client
        self._pool = pool
        self._meter = meter

    def run(
        self, claimed: Claimed, request: Request, load: Loader, terms: Terms, recall: asyncio.Event
    ) -> Coroutine[Any, Any, Outcome]:
        """The outcome of `request`; see the module's head.

        Args:
            claimed: its place in the queue.
            request: what to call.
            load: makes the body for one attempt.
            terms: of its job.
            recall: set when requests that only wait should go back to the queue (drain, pause, cancel).
        """
        if not terms.deadline_s:
            return self._call(claimed, request, load, terms, recall, _Made())
        return self._within(claimed, request, load, terms, recall)

    async def _within(
        self, claimed: Claimed, request: Request, load: Loader, terms: Terms, recall: asyncio.Event
    ) -> Outcome:
        """As `_call`, for a request with a deadline of its own."""
        made, due_s = _Made(), time.monotonic() + terms.left_s(claimed)
        try:
            async with asyncio.timeout(due_s - time.monotonic()) as limit:
                outcome = await self._call(claimed, request, load, terms, recall, made)
        except TimeoutError:
            if not limit.expired():
                raise
            return overdue(claimed, request, terms, made.count)
        left_s = max(0.0, due_s - time.monotonic())  # it is failed in time, not when its delay has passed
        return msgspec.structs.replace(outcome, delay_s=min(outcome.delay_s, left_s))

    async def _call(
        self, claimed: Claimed, request: Request, load: Loader, terms: Terms, recall: asyncio.Event, made: _Made
    ) -> Outcome:
        charged = 0
        fresh = False
        while True:
            endpoint = self._pool.pick(terms.endpoints) or await self._endpoint_later(terms, recall)
            if endpoint is None:
                return Outcome(claimed, charged=charged)
            with endpoint.begin() as call:
                body = await load()
                if isinstance(body, Failure):
                    return Outcome(claimed, failed_record(request, body, claimed.attempts + made.count), failure=body)
                made.count += 1
                with body:
                    call.outcome = await self._client.send(
                        endpoint, request.path, body, terms.timeouts, wants_json=request.wants_json, fresh=fresh
                    )
            result = call.outcome  # not what `send` gave: the endpoint may know better what a 5xx was
            self._count(endpoint.name, result)
            if isinstance(result, Answer):
                return _answered(claimed, request, result, terms, claimed.attempts + made.count)
            decision = decide(
                result, claimed.attempts + charged, terms.max_attempts, random.random(), terms.max_backoff_s
            )
            charged += decision.charged
            fresh = decision.action is Action.RETRY_NOW
            if decision.action is Action.FINAL:
                record = failed_record(request, result, claimed.attempts + made.count)
                return Outcome(claimed, record, charged=charged, failure=result, endpoint=endpoint.name)
            if decision.action is Action.PAUSE_JOB:
                why = looks_like_configuration(result) or result.message
                return Outcome(claimed, charged=charged, failure=result, pause=why)
            if decision.action is Action.PUT_BACK or await _recalled(recall, decision.delay_s):
                return Outcome(claimed, charged=charged, delay_s=decision.delay_s, failure=result)

    def _count(self, endpoint: str, result: Answer | FailedCall | Failure) -> None:
        if isinstance(result, (Answer, FailedCall)):
            outcome = OK if isinstance(result, Answer) else result.cls
            self._meter.attempt(
                endpoint,
                outcome,
                result.latency_ms,
                result.first_byte_ms,
                result.prompt_tokens,
                result.completion_tokens,
            )

    async def _endpoint_later(self, terms: Terms, recall: asyncio.Event) -> Endpoint | None:
        """An endpoint that may be called, waited for as long as it takes; None when recalled meanwhile."""
        while True:
            ready_in_s = self._pool.next_ready_in_s(terms.endpoints)
            wait_s = _LOOK_AGAIN_S if ready_in_s is None else min(max(ready_in_s, 0.01), _LOOK_AGAIN_S)
            if await _recalled(recall, wait_s * (0.5 + random.random() / 2)):
                return None
            endpoint = self._pool.pick(terms.endpoints)
            if endpoint is not None:
                return endpoint


async def _recalled(recall: asyncio.Event, wait_s: float) -> bool:
    """Wait for `wait_s`; True at once when recalled before or meanwhile."""
    if recall.is_set() or wait_s <= 0:
        return recall.is_set()
    try:
        async with asyncio.timeout(wait_s):
            await recall.wait()
    except TimeoutError:
        return False
    return True


def _answered(claimed: Claimed, request: Request, answer: Answer, terms: Terms, attempts: int) -> Outcome:
    cls = None
    message = None
    if not terms.keep_truncated and TRUNCATED in answer.flags:
        cls, message = FailureClass.TRUNCATED, "the answer was cut by its token limit"
    detail = records.Detail(
        request.ordinal,
        request.custom_id,
        request.fingerprint,
        answer.status_code,
        answer.request_id,
        answer.body,
        message,
        answer.flags,
        answer.latency_ms,
        answer.endpoint,
    )
    record = records.Record(cls, attempts, answer.prompt_tokens, answer.completion_tokens, detail)
    return Outcome(claimed, records.encode(record), endpoint=answer.endpoint)


def broken(claimed: Claimed, request: Request, terms: Terms, error: Exception) -> Outcome:
    """The outcome of a request that an error of our own code ended: one charged attempt, and a log line."""
    log.error("a request failed inside the worker", exc_info=error, extra=fields(index=claimed.index))
    if claimed.attempts + 1 < terms.max_attempts:
        return Outcome(claimed, charged=1, delay_s=1.0)
    failure = Failure(FailureClass.TRANSIENT, f"the worker failed while running it: {type(error).__name__}")
    return Outcome(claimed, failed_record(request, failure, claimed.attempts + 1), charged=1)
