"""What one call comes back with: an `Answer`, or a `FailedCall`, which is a `Failure` with what was seen on the way.

Both keep the server's body whole, since the record of a finished request carries it; neither shows it in its repr.
A failed call's `message` is made of our own words only (see `gristmilld.upstream.sanitise`): a server may echo the
prompt in its error, and that echo stays in the body.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from gristmill.contract.failure import Failure

TRUNCATED = "truncated"
"""Flag of an answer that its token limit cut."""
FILTERED = "content_filter"
"""Flag of an answer of which some, but not all, choices were withheld."""


class Clock(StrEnum):
    """Which of the four clocks of an attempt ran out."""

    CONNECT = "connect"
    FIRST_BYTE = "first_byte"
    IDLE = "idle"
    TOTAL = "total"


class Shape(StrEnum):
    """What a failure looks like beyond its class, where it may come from a wrong setup."""

    UNKNOWN_MODEL = "unknown_model"
    WRONG_URL = "wrong_url"
    WRONG_METHOD = "wrong_method"
    AUTH = "auth"
    BALANCE = "balance"
    TLS = "tls"
    REDIRECT = "redirect"
    NOT_HTTP = "not_http"
    PROXY = "proxy"
    NO_IMAGES = "no_images"
    CONTEXT = "context"
    FILES = "files"
    DNS = "dns"
    STREAM = "stream"
    NOT_AN_ANSWER = "not_an_answer"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A good answer.

    Attributes:
        status_code: the HTTP status, 2xx.
        body: the whole response body as one line of JSON.
        request_id: the server's ``x-request-id``, or None.
        prompt_tokens: as the server counted them; 0 where it did not say.
        completion_tokens: likewise.
        flags: `TRUNCATED`, `FILTERED`.
        latency_ms: from the start of the call to its last byte.
        first_byte_ms: from the start of the call to the response's headers.
        endpoint: name of the endpoint.
    """

    status_code: int
    body: bytes
    request_id: str | None
    prompt_tokens: int
    completion_tokens: int
    flags: list[str]
    latency_ms: int
    first_byte_ms: int
    endpoint: str

    def __repr__(self) -> str:
        return f"Answer({self.status_code}, {len(self.body)} bytes, {self.flags}, {self.endpoint!r})"

    def __rich_repr__(self) -> Any:  # msgspec's own shows every field to rich, the body too
        yield self.status_code


class FailedCall(Failure, frozen=True, kw_only=True):
    """A failure of one call, with what the record of a finished request keeps of it.

    Attributes:
        body: the response body as one line of JSON (a body that is no JSON becomes one JSON string); None where none
            came whole.
        request_id: the server's ``x-request-id``, or None.
        latency_ms: from the start of the call to the failure.
        first_byte_ms: to the response's headers, or None where none came.
        endpoint: name of the endpoint.
        clock: the clock that ran out, for `timeout`.
        shape: what it looks like, where that hints at a wrong setup.
        prompt_tokens: of an answer that was refused for its content (`invalid_output`, `content_filter`).
        completion_tokens: likewise.
    """

    body: bytes | None = None
    request_id: str | None = None
    latency_ms: int = 0
    first_byte_ms: int | None = None
    endpoint: str | None = None
    clock: Clock | None = None
    shape: Shape | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __repr__(self) -> str:
        return f"FailedCall({self.cls.value}, {self.message!r}, status_code={self.status_code}, {self.endpoint!r})"

    def __rich_repr__(self) -> Any:
        yield self.cls.value
        yield self.message
