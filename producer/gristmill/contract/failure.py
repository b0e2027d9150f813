"""One table of failures: whose fault, what happens next, and whether it costs an attempt.

Every failure in Gristmill is a value of `FailureClass`. Foreign exceptions and status codes become one in exactly one
place (`gristmilld.upstream.failures`). No prompt, body or key ever reaches a `message`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class FailureClass(StrEnum):
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    ENDPOINT_DOWN = "endpoint_down"
    STALE_CONNECTION = "stale_connection"
    TRANSIENT = "transient"
    TIMEOUT = "timeout"
    BAD_REQUEST = "bad_request"
    CONTEXT_LENGTH = "context_length"
    CONTENT_FILTER = "content_filter"
    TRUNCATED = "truncated"
    INVALID_OUTPUT = "invalid_output"
    BAD_IMAGE = "bad_image"
    BAD_INPUT = "bad_input"
    CONFIG_ERROR = "config_error"
    POISON = "poison"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


class Fault(StrEnum):
    """Who has to change something for it to go away."""

    SERVER = "server"
    REQUEST = "request"
    SETUP = "setup"
    USER = "user"
    UNKNOWN = "unknown"


class Then(StrEnum):
    """What happens to the request."""

    RETRY_AT_ONCE = "retry_at_once"
    BACK_OFF = "back_off"
    WAIT = "wait"
    """Wait for the endpoint, however long the job's deadline allows."""
    PAUSE_JOB = "pause_job"
    FINAL = "final"


class Rule(msgspec.Struct, frozen=True):
    fault: Fault
    then: Then
    costs_attempt: bool
    """Whether a failed attempt of this class counts against the request's allowance."""


TABLE: dict[FailureClass, Rule] = {
    FailureClass.RATE_LIMITED: Rule(Fault.SERVER, Then.WAIT, costs_attempt=False),
    FailureClass.OVERLOADED: Rule(Fault.SERVER, Then.BACK_OFF, costs_attempt=False),
    FailureClass.ENDPOINT_DOWN: Rule(Fault.SERVER, Then.WAIT, costs_attempt=False),
    FailureClass.STALE_CONNECTION: Rule(Fault.SERVER, Then.RETRY_AT_ONCE, costs_attempt=False),
    FailureClass.TRANSIENT: Rule(Fault.SERVER, Then.BACK_OFF, costs_attempt=True),
    FailureClass.TIMEOUT: Rule(Fault.SERVER, Then.BACK_OFF, costs_attempt=True),
    FailureClass.BAD_REQUEST: Rule(Fault.REQUEST, Then.FINAL, costs_attempt=True),
    FailureClass.CONTEXT_LENGTH: Rule(Fault.REQUEST, Then.FINAL, costs_attempt=True),
    FailureClass.CONTENT_FILTER: Rule(Fault.REQUEST, Then.FINAL, costs_attempt=True),
    FailureClass.TRUNCATED: Rule(Fault.REQUEST, Then.FINAL, costs_attempt=True),
    FailureClass.INVALID_OUTPUT: Rule(Fault.SERVER, Then.BACK_OFF, costs_attempt=True),
    FailureClass.BAD_IMAGE: Rule(Fault.REQUEST, Then.FINAL, costs_attempt=False),
    FailureClass.BAD_INPUT: Rule(Fault.REQUEST, Then.FINAL, costs_attempt=False),
    FailureClass.CONFIG_ERROR: Rule(Fault.SETUP, Then.PAUSE_JOB, costs_attempt=False),
    FailureClass.POISON: Rule(Fault.UNKNOWN, Then.FINAL, costs_attempt=False),
    FailureClass.DEADLINE: Rule(Fault.USER, Then.FINAL, costs_attempt=False),
    FailureClass.CANCELLED: Rule(Fault.USER, Then.FINAL, costs_attempt=False),
}

CODES: dict[FailureClass, int] = {c: i for i, c in enumerate(FailureClass, start=1)}
"""Class codes of the record header; append only, a code is never given to another class."""

CLASSES: dict[int, FailureClass] = {i: c for c, i in CODES.items()}

MAX_MESSAGE_CHARS = 500
"""Messages are for people: longer ones are cut, so that no server's echo of a prompt fills a log."""


class Failure(msgspec.Struct, frozen=True):
    """One failed attempt or request, as a value.

    Attributes:
        cls: the class, which is also the metric label.
        message: what was seen, in one sentence; never a prompt, a body or a key.
        status_code: the HTTP status, where there was one.
        retry_after_s: the server's wish, seconds, from header or body.
    """

    cls: FailureClass
    message: str
    status_code: int | None = None
    retry_after_s: float | None = None

    @property
    def rule(self) -> Rule:
        return TABLE[self.cls]
