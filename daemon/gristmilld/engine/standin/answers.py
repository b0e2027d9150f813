"""The bodies that the stand-in sends: answers of each call, errors, models and metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from gristmilld.engine.standin.content import Asked, Seen

MODEL = "standin"
_encode = msgspec.json.encode


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


def content_of(seen: Seen) -> str:
    return _encode(seen).decode()


def usage_of(seen: Seen, content: str) -> Usage:
    """A plausible count: a token for four characters, and for 750 pixels."""
    prompt = 8 + seen.text_len // 4 + sum(p.width * p.height // 750 for p in seen.images)
    completion = 1 + len(content) // 4
    return Usage(prompt, completion, prompt + completion)


def answer(call: str, number: int, asked: Asked, content: str, usage: Usage, finish: str) -> bytes:
    """The whole answer of `call` (the last segment of the path, ``chat`` for chat completions)."""
    match call:
        case "chat":
            message = {"role": "assistant", "content": content}
            choices = [{"index": i, "message": message, "finish_reason": finish} for i in range(asked.n or 1)]
            return _envelope("chat.completion", number, {"choices": choices, "usage": usage})
        case "completions":
            choices = [{"index": i, "text": content, "finish_reason": finish} for i in range(asked.n or 1)]
            return _envelope("text_completion", number, {"choices": choices, "usage": usage})
        case "embeddings":
            return _embeddings(asked, usage)
    return _response(number, content, usage, finish)


def _envelope(kind: str, number: int, fields: dict[str, Any]) -> bytes:
    head = {"id": f"standin-{number}", "object": kind, "created": int(time.time()), "model": MODEL}
    return _encode(head | fields)


def _embeddings(asked: Asked, usage: Usage) -> bytes:
    count = len(asked.input) if isinstance(asked.input, list) else 1
    vectors = [{"object": "embedding", "index": i, "embedding": [0.6, 0.8]} for i in range(count)]
    tokens = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
    return _encode({"object": "list", "model": MODEL, "data": vectors, "usage": tokens})


def _response(number: int, content: str, usage: Usage, finish: str) -> bytes:
    """Of the Responses API."""
    whole = finish == "stop"
    text = {"type": "output_text", "text": content, "annotations": []}
    reason = "max_output_tokens" if finish == "length" else finish
    fields = {
        "id": f"standin-{number}",
        "object": "response",
        "model": MODEL,
        "status": "completed" if whole else "incomplete",
        "incomplete_details": None if whole else {"reason": reason},
        "output": [{"type": "message", "role": "assistant", "content": [text]}],
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "output_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
        },
    }
    return _encode(fields)


def events(number: int, asked: Asked, content: str, usage: Usage, finish: str) -> Iterator[bytes]:
    """The answer of a chat as a stream of server-sent events."""
    size = max(1, len(content) // 4)
    for start in range(0, len(content), size):
        yield _event(number, [{"index": 0, "delta": {"content": content[start : start + size]}, "finish_reason": None}])
    yield _event(number, [{"index": 0, "delta": {}, "finish_reason": finish}])
    if (asked.stream_options or {}).get("include_usage"):
        yield _event(number, [], usage=usage)
    yield b"data: [DONE]\n\n"


def _event(number: int, choices: list[dict[str, Any]], **more: Any) -> bytes:
    fields = {"choices": choices, **more}
    return b"data: " + _envelope("chat.completion.chunk", number, fields) + b"\n\n"


def error(status: int, message: str, **more: Any) -> bytes:
    """An error as vLLM words it."""
    kind = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError", 429: "RateLimitError"}
    fields = {"message": message, "type": kind.get(status, "InternalServerError"), "param": None, "code": status}
    return _encode({"error": fields | more})


def models() -> bytes:
    card = {"id": MODEL, "object": "model", "created": 0, "owned_by": "gristmill", "max_model_len": 131_072}
    return _encode({"object": "list", "data": [card]})


def metrics(running: int, waiting: int) -> bytes:
    """In Prometheus' text format, by the names that vLLM uses."""
    lines = []
    for name, what, value in (("running", "in execution", running), ("waiting", "waiting for a place", waiting)):
        full = f"vllm:num_requests_{name}"
        lines += [f"# HELP {full} Number of requests {what}.", f"# TYPE {full} gauge"]
        lines.append(f'{full}{{model_name="{MODEL}"}} {value}.0')
    return "\n".join([*lines, ""]).encode()
