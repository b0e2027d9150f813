"""One result: an answer or a failure, never one in the place of the other."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from gristmill.contract.record import Record
from gristmill.sdk.errors import RequestFailedError

_REASONING = ("reasoning", "reasoning_content")


class Error(msgspec.Struct, frozen=True):
    """Why a request has no answer.

    Attributes:
        code: the failure class, such as `bad_request`, `bad_image` or `timeout`.
        message: what was seen, in one sentence.
    """

    code: str
    message: str


class Result(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What became of one request.

    Attributes:
        index: its place among those given, from 0.
        custom_id: the id that it was given, or None.
        error: None when it was answered.
        status_code: of the last response, or None where none came.
        body: the server's answer, JSON, kept whole; None where none came.
        flags: e.g. ``truncated``.
        attempts: calls made.
        latency_ms: of the last call.
        endpoint: which server answered, or None.
    """

    index: int
    custom_id: str | None = None
    error: Error | None = None
    status_code: int | None = None
    body: bytes | None = None
    flags: tuple[str, ...] = ()
    attempts: int = 0
    latency_ms: int = 0
    endpoint: str | None = None

    @property
    def ok(self) -> bool:
        """Whether it was answered."""
        return self.error is None

    @cached_property
    def response(self) -> dict[str, Any]:
        """The server's answer; an empty dict where none came, or it is no JSON object."""
        import json

        if self.body is None:
            return {}
        try:  # Python's own parser: servers in Python write NaN and half surrogate pairs
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def message(self) -> dict[str, Any]:
        """The first choice's message; an empty dict where there is none."""
        return message_of(self.response) if self.ok else {}

    @property
    def text(self) -> str:
        """The text of the answer; empty where it failed, or the model gave none (a tool call, for example)."""
        return text_of(self.response) if self.ok else ""

    @property
    def reasoning(self) -> str:
        """What the model thought, under either of the two names that servers use; empty where they tell nothing."""
        return reasoning_of(self.response) if self.ok else ""

    @property
    def usage(self) -> dict[str, Any]:
        """Token counts as the server told them."""
        usage = self.response.get("usage")
        return usage if isinstance(usage, dict) else {}

    def require(self) -> Result:
        """The result itself when it was answered.

        Raises:
            RequestFailedError: it was not.
        """
        if self.error is not None:
            raise RequestFailedError(self.index, self.error.code, self.error.message)
        return self

    def __repr__(self) -> str:
        status = "ok" if self.error is None else f"failed: {self.error.code}"
        return f"Result(index={self.index}, {status})"  # no answer in a log by accident


def _choice(response: Mapping[str, Any]) -> dict[str, Any]:
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def message_of(response: Mapping[str, Any]) -> dict[str, Any]:
    """The message of a response's first choice; an empty dict where there is none."""
    message = _choice(response).get("message")
    return message if isinstance(message, dict) else {}


def text_of(response: Mapping[str, Any]) -> str:
    """The text of a response's first choice; empty where there is none."""
    content = message_of(response).get("content", _choice(response).get("text"))
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def reasoning_of(response: Mapping[str, Any]) -> str:
    """What the model thought, out of a response's first choice; empty where it tells nothing."""
    message = message_of(response)
    return next((value for name in _REASONING if isinstance(value := message.get(name), str) and value), "")


def from_record(record: Record) -> Result:
    """The result that a record of the store tells."""
    d = record.detail
    return Result(
        index=d.ordinal,
        custom_id=d.custom_id,
        error=None if record.cls is None else Error(record.cls.value, d.message or ""),
        status_code=d.status_code,
        body=d.body,
        flags=tuple(d.flags),
        attempts=record.attempts,
        latency_ms=d.latency_ms,
        endpoint=d.endpoint,
    )
