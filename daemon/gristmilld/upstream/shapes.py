"""PURE: reads the body of a 2xx: is it an answer of its path, and what the record's header needs of it.

Only the few fields that matter are decoded; the rest is checked to be JSON and skipped, and the body is kept whole.
Content is looked at only when the request asked for JSON. Servers differ in the types of what we read, so a body that
the strict decoder refuses is read once more, generously.

An answer of ``.../completions`` has `choices`, of ``.../embeddings`` `data`, of ``.../responses`` `output`; of any
other path it is any object without `error`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gristmill.contract.failure import FailureClass
from gristmilld.upstream.outcome import FILTERED, TRUNCATED, FailedCall, Shape

_C = FailureClass

CUT = frozenset({"length", "max_tokens", "max_output_tokens"})
WITHHELD = frozenset({"content_filter", "safety"})
GIVEN_UP = frozenset({"abort", "error"})


class Parsed(msgspec.Struct, frozen=True):
    """Of a good answer: tokens as counted by the server, and flags (see `Answer`)."""

    prompt_tokens: int
    completion_tokens: int
    flags: list[str]


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None
    error: Any = None


_completion = msgspec.json.Decoder(_Completion)
_anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder()

_STOPPED = (["stop"], [None], ["tool_calls"])


def read_answer(path: str, body: bytes, *, wants_json: bool) -> Parsed | FailedCall:
    """Tokens and flags of an answer, or why `body` is none. The failure's status is for the caller to fill in."""
    if not wants_json and path.endswith("completions"):
        try:
            value = _completion.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _generously(path, body, wants_json=False)
        if value.error is None and value.choices:
            usage = value.usage
            tokens = (0, 0) if usage is None else (usage.prompt_tokens, usage.completion_tokens)
            return _judge([c.finish_reason for c in value.choices], *tokens)
    return _generously(path, body, wants_json=wants_json)


def one_line(body: bytes) -> bytes:
    """`body` as one line of JSON: as it is but for its line breaks, or as a JSON string when it is no JSON."""
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
        if not body.isascii():
            body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.encode(body.decode("utf-8", "replace"))
    return flatten(body)


def flatten(body: bytes) -> bytes:
    """JSON without line breaks; in valid JSON they stand only between tokens."""
    if b"\n" in body or b"\r" in body:
        body = body.replace(b"\r", b" ").replace(b"\n", b" ")
    return body


def _judge(reasons: list[str | None], prompt_tokens: int, completion_tokens: int) -> Parsed | FailedCall:
    """Flags from the finish reasons; a choice that the server withheld or gave up is no answer."""
    prompt_tokens, completion_tokens = max(0, prompt_tokens), max(0, completion_tokens)
    if reasons in _STOPPED:
        return Parsed(prompt_tokens, completion_tokens, [])
    if any(r in GIVEN_UP for r in reasons):
        return _failed(_C.TRANSIENT, "the server gave up in the middle of its answer")
    withheld = sum(r in WITHHELD for r in reasons)
    if withheld and withheld == len(reasons):
        return FailedCall(
            _C.CONTENT_FILTER,
            "the server's content filter withheld the answer",
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
        )
    flags = [TRUNCATED] if any(r in CUT for r in reasons) else []
    if withheld:
        flags.append(FILTERED)
    return Parsed(prompt_tokens, completion_tokens, flags)


# -- the generous reading: other paths, unusual types, and requests that asked for JSON ------------------------------


def _generously(path: str, body: bytes, *, wants_json: bool) -> Parsed | FailedCall:
    if not body.strip():
        return _failed(_C.TRANSIENT, "the answer is empty")
    try:
        value = _anything.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _not_json(body)
    if not isinstance(value, dict):
        return _no_answer("the answer is no JSON object")
    if value.get("error"):
        return _failed(_C.TRANSIENT, "the server sent an error in place of an answer")
    field = _field(path)
    if field and not (isinstance(value.get(field), list) and value[field]):
        return _no_answer(f"the answer has no {field}")
    prompt_tokens, completion_tokens = _tokens(value.get("usage"))
    outcome = _judge(list(_finish_reasons(value)), prompt_tokens, completion_tokens)
    if not wants_json or isinstance(outcome, FailedCall) or TRUNCATED in outcome.flags:
        return outcome  # a cut answer is cut, not malformed: the same request again would be cut again
    if all(_is_json(text) for text in _contents(value)):
        return outcome
    return FailedCall(
        _C.INVALID_OUTPUT,
        "the request asked for JSON and the answer is none",
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
    )


def _field(path: str) -> str | None:
    """The list that makes a body an answer of `path`."""
    match path.rpartition("/")[2]:
        case "completions":
            return "choices"
        case "embeddings":
            return "data"
        case "responses":
            return "output"
    return None


def _not_json(body: bytes) -> FailedCall:
    start = body.lstrip()[:16].lower()
    if start.startswith((b"data:", b"event:")):
        return _failed(_C.TRANSIENT, "the answer is a stream of events, and none was asked for", Shape.STREAM)
    if start.startswith(b"<"):
        return _no_answer("the answer is a web page")
    return _failed(_C.TRANSIENT, "the answer is broken off or no JSON")


def _failed(cls: FailureClass, message: str, shape: Shape | None = None) -> FailedCall:
    return FailedCall(cls, message, shape=shape)


def _no_answer(message: str) -> FailedCall:
    return _failed(_C.TRANSIENT, message, Shape.NOT_AN_ANSWER)


def _tokens(usage: Any) -> tuple[int, int]:
    if not isinstance(usage, dict):
        return 0, 0
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return (
        _count(usage.get("input_tokens") if prompt is None else prompt),
        _count(usage.get("output_tokens") if completion is None else completion),
    )


def _count(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < 1 << 53 else 0


def _finish_reasons(value: dict[str, Any]) -> Iterator[str | None]:
    """Of each choice; of a response (Responses API) the reason why it is incomplete."""
    details = value.get("incomplete_details")
    if isinstance(details, dict):
        yield str(details.get("reason"))
    elif value.get("status") == "failed":
        yield "error"
    for choice in _dicts(value.get("choices")):
        reason = choice.get("finish_reason")
        yield reason if isinstance(reason, str) else None


def _contents(value: dict[str, Any]) -> Iterator[str | None]:
    """The text of each choice; a choice that calls tools has none to check."""
    for choice in _dicts(value.get("choices")):
        message = choice.get("message")
        if not isinstance(message, dict):
            yield choice.get("text")
        elif not message.get("tool_calls"):
            yield message.get("content")
    for item in _dicts(value.get("output")):
        for part in _dicts(item.get("content")):
            if part.get("type") == "output_text":
                yield part.get("text")


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        yield from (v for v in value if isinstance(v, dict))


def _is_json(text: Any) -> bool:
    try:
        _anything.decode(text)
    except (msgspec.DecodeError, TypeError, UnicodeError, RecursionError):
        return False
    return True
