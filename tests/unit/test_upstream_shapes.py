"""Reading answers: tokens, flags, and what is no answer."""

from __future__ import annotations

import json

import pytest

from gristmill.contract.failure import FailureClass
from gristmilld.upstream.outcome import FailedCall
from gristmilld.upstream.shapes import Parsed, flatten, one_line, read_answer

CHAT = "/chat/completions"


def chat(*reasons: str | None, content: str | None = "hi", **more: object) -> bytes:
    message = {"role": "assistant", "content": content}
    choices = [{"index": i, "message": message, "finish_reason": r} for i, r in enumerate(reasons)]
    return json.dumps({"choices": choices, "usage": {"prompt_tokens": 7, "completion_tokens": 3}, **more}).encode()


def read(body: bytes, path: str = CHAT, *, wants_json: bool = False) -> Parsed | FailedCall:
    return read_answer(path, body, wants_json=wants_json)


@pytest.mark.parametrize(
    ("reasons", "flags"),
    [
        (["stop"], []),
        ([None], []),
        (["tool_calls"], []),
        (["length"], ["truncated"]),
        (["stop", "length"], ["truncated"]),
        (["stop", "content_filter"], ["content_filter"]),
    ],
)
@pytest.mark.parametrize("wants_json", [False, True])
def test_finish_reasons_become_flags(reasons, flags, wants_json):
    """A cut answer, and one that was withheld in part, are answers with a flag, on both ways of reading."""
    assert read(chat(*reasons, content="{}"), wants_json=wants_json) == Parsed(7, 3, flags)


@pytest.mark.parametrize(
    ("reasons", "cls"),
    [
        (["content_filter"], FailureClass.CONTENT_FILTER),
        (["content_filter", "content_filter"], FailureClass.CONTENT_FILTER),
        (["abort"], FailureClass.TRANSIENT),
        (["stop", "error"], FailureClass.TRANSIENT),
    ],
)
def test_some_finish_reasons_are_failures(reasons, cls):
    """An answer that was withheld wholly is `content_filter`; one that the server gave up is retried."""
    outcome = read(chat(*reasons))
    assert isinstance(outcome, FailedCall)
    assert outcome.cls is cls


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (None, (0, 0)),
        ({}, (0, 0)),
        ({"prompt_tokens": 7, "completion_tokens": None}, (7, 0)),
        ({"prompt_tokens": 7.0, "completion_tokens": 3.0}, (7, 3)),
        ({"prompt_tokens": -1, "completion_tokens": 3}, (0, 3)),
        ({"input_tokens": 5, "output_tokens": 6}, (5, 6)),
        ("many", (0, 0)),
    ],
)
def test_odd_usage_is_no_failure(usage, tokens):
    """Servers leave usage out, null it or count in floats; the answer is good all the same."""
    path = CHAT if usage is None or "input_tokens" not in usage else "/responses"
    body = json.dumps({"choices": [{"finish_reason": "stop"}], "output": [{}], "usage": usage}).encode()
    outcome = read(body, path)
    assert isinstance(outcome, Parsed)
    assert (outcome.prompt_tokens, outcome.completion_tokens) == tokens


def test_null_error_and_odd_finish_reason_are_no_failure():
    """``"error": null`` is no error, and a finish reason of another type is none."""
    assert read(chat("stop", error=None)) == Parsed(7, 3, [])
    assert read(chat("stop").replace(b'"stop"', b"2")) == Parsed(7, 3, [])


@pytest.mark.parametrize(
    ("path", "body", "good"),
    [
        ("/embeddings", b'{"data":[{"embedding":[1]}],"usage":{"prompt_tokens":2}}', True),
        ("/embeddings", b'{"data":[]}', False),
        ("/responses", b'{"output":[{"type":"message"}],"status":"completed"}', True),
        ("/responses", b'{"output":[{"type":"message"}],"status":"failed","error":{"code":"server_error"}}', False),
        ("/responses", b'{"choices":[{}]}', False),
        ("/completions", b'{"choices":[{"text":"x","finish_reason":"stop"}]}', True),
        ("/rerank", b'{"results":[]}', True),
        ("/rerank", b'{"error":"x"}', False),
        ("/rerank", b"[]", False),
    ],
)
def test_each_path_has_its_answer(path, body, good):
    """`choices`, `data` and `output` make the answers of the known paths; of others any object without `error`."""
    assert isinstance(read(body, path), Parsed) is good


def test_a_response_cut_by_its_budget_is_truncated():
    """The Responses API tells a cut by `incomplete_details`."""
    body = b'{"output":[{}],"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}'
    assert read(body, "/responses") == Parsed(0, 0, ["truncated"])
    filtered = read(body.replace(b"max_output_tokens", b"content_filter"), "/responses")
    assert isinstance(filtered, FailedCall)
    assert filtered.cls is FailureClass.CONTENT_FILTER


@pytest.mark.parametrize(
    ("content", "good"), [('{"a": 1}', True), ("[]", True), ("hello", False), ("", False), (None, False)]
)
def test_json_that_was_asked_for_is_checked(content, good):
    """An answer that is no JSON though the request asked for it is `invalid_output`, with its tokens counted."""
    outcome = read(chat("stop", content=content), wants_json=True)
    if good:
        assert outcome == Parsed(7, 3, [])
    else:
        assert isinstance(outcome, FailedCall)
        assert (outcome.cls, outcome.prompt_tokens) == (FailureClass.INVALID_OUTPUT, 7)


def test_a_cut_answer_is_truncated_not_invalid():
    """Asking again with the same budget would be cut again, so a cut answer is never re-asked as invalid."""
    assert read(chat("length", content='{"a": '), wants_json=True) == Parsed(7, 3, ["truncated"])


def test_tool_calls_have_no_text_to_check():
    """A choice that calls tools answers a request for JSON without content."""
    body = b'{"choices":[{"message":{"content":null,"tool_calls":[{"id":"1"}]},"finish_reason":"tool_calls"}]}'
    assert read(body, wants_json=True) == Parsed(0, 0, [])


def test_deep_nesting_is_a_failure_not_a_crash():
    """A body that nests without end is refused like any other that is no JSON."""
    assert isinstance(read(b'{"choices":' + b"[" * 100_000), FailedCall)


@pytest.mark.parametrize(
    "body",
    [b'{"a":\n 1,\r\n "b": "x\\ny"}', '{"ä": "\u2028"}'.encode(), b"<html>\n\xff</html>", b"", b'"\x01', b"{} {}"],
)
def test_a_kept_body_is_one_line_of_json(body):
    """A JSON body keeps its value on one line; any other becomes one JSON string."""
    line = one_line(body)
    assert b"\n" not in line
    assert b"\r" not in line
    try:
        expected = json.loads(body)
    except ValueError:
        expected = body.decode("utf-8", "replace")
    assert json.loads(line) == expected


def test_a_line_without_breaks_is_not_copied():
    """The usual answer comes as one line and is kept as it is."""
    body = chat("stop")
    assert flatten(body) is body
