"""PURE: reads the error bodies of many servers into one value.

Seen: ``{"error": {"message", "type", "code"}}`` (OpenAI, vLLM, llama.cpp), ``{"error": "..."}`` (Ollama, TGI),
``{"object": "error", "message", ...}`` (SGLang, older vLLM), ``{"detail": ...}`` (FastAPI), a list around any of them
(Gemini), HTML and plain text (proxies). Seconds to wait come in a header, a field, or words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from gristmilld.upstream.sanitise import safe_code

MAX_TEXT_CHARS = 20_000
MAX_RETRY_AFTER_S = 86_400.0

_CODE_FIELDS = ("code", "type", "error_type", "status")
_DELAY_FIELDS = ("retry_after", "retryAfter", "retry_after_seconds", "retryDelay")
_AGAIN_IN = re.compile(
    r"(?:try again|retry)(?: after| in)\s+((?:\d+(?:\.\d+)?\s*(?:ms|[hms])[a-z]*\s*)+|\d+(?:\.\d+)?)"
)
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|h|m|s)?")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


class ErrorBody(msgspec.Struct, frozen=True):
    """What an error body says.

    Attributes:
        is_json: whether it was JSON.
        text: all of its words, lower case and cut, for matching only: it may echo the prompt.
        code: its code or type, when safe to show (see `sanitise`).
        status: an HTTP status that it holds as its code, else None.
        retry_after_s: the wait that it asks for, seconds.
    """

    is_json: bool
    text: str
    code: str | None
    status: int | None
    retry_after_s: float | None


def read(body: bytes) -> ErrorBody:
    """The error in `body`; anything can be read."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = body[:MAX_TEXT_CHARS].decode("utf-8", "replace").lower()
        return ErrorBody(is_json=False, text=text, code=None, status=None, retry_after_s=_delay_in_words(text))
    objects = list(_objects(value))
    text = body[:MAX_TEXT_CHARS].decode("utf-8", "replace").lower()
    delays = (d for o in objects for f in _DELAY_FIELDS if (d := _delay(o.get(f))))
    codes = (c for o in objects for f in _CODE_FIELDS if (c := safe_code(o.get(f))))
    statuses = (s for o in objects if (s := _status(o.get("code"))))
    return ErrorBody(
        is_json=True,
        text=text,
        code=next(codes, None),
        status=next(statuses, None),
        retry_after_s=next(delays, None) or _delay_in_words(text),
    )


def retry_after_s(headers: Mapping[str, str], error: ErrorBody) -> float | None:
    """The wait that the server asks for, from its headers or else its body, seconds.

    A date is taken against the response's own ``Date``, so neither clock need be right.
    """
    exact = _number(headers.get("retry-after-ms"))
    if exact is not None:
        return _bounded(exact / 1000)
    value = headers.get("retry-after")
    if value is None:
        return error.retry_after_s
    seconds = _number(value)
    if seconds is None:
        seconds = _until(value, headers.get("date"))
    return error.retry_after_s if seconds is None else _bounded(seconds)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """The objects that may hold code and delay, innermost error first."""
    if isinstance(value, list):
        for item in value[:4]:
            yield from _objects(item)
    elif isinstance(value, dict):
        for field in ("error", "detail", "errors", "details"):
            yield from _objects(value.get(field))
        yield value


def _status(code: Any) -> int | None:
    if isinstance(code, str) and code.isascii() and code.isdigit():
        code = int(code[:4])
    return code if isinstance(code, int) and 400 <= code <= 599 else None


def _delay(value: Any) -> float | None:
    """Seconds of a field: a number, or text such as ``"30s"``."""
    if isinstance(value, str):
        return _span_s(value.strip().lower())
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return _bounded(float(value))
    return None


def _delay_in_words(text: str) -> float | None:
    found = _AGAIN_IN.search(text)
    return _span_s(found[1]) if found else None


def _span_s(text: str) -> float | None:
    """Seconds of ``20s``, ``1m20.5s``, ``200ms``, ``20``."""
    parts = _SPAN.findall(text)
    if not parts or not text[:1].isdigit():
        return None
    return _bounded(sum(float(n) * _UNIT_S[unit] for n, unit in parts))


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value is not None else None
    except ValueError:
        return None
    return number if number is not None and math.isfinite(number) else None


def _until(date: str, now: str | None) -> float | None:
    try:
        return (parsedate_to_datetime(date) - parsedate_to_datetime(now or "")).total_seconds()
    except (ValueError, TypeError):
        return None


def _bounded(seconds: float) -> float | None:
    return min(seconds, MAX_RETRY_AFTER_S) if seconds > 0 else None
