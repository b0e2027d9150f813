"""Results tell answers and failures apart; dicts are found in what models write."""

from __future__ import annotations

import json

import pytest

from gristmill.contract.failure import FailureClass
from gristmill.contract.record import Detail, Record
from gristmill.sdk.errors import RequestFailedError
from gristmill.sdk.parsing import find_dict
from gristmill.sdk.result import Error, Result, from_record


def answered(message: object, **more: object) -> Result:
    return Result(index=3, body=json.dumps({"choices": [{"message": message}], **more}).encode())


def test_text_reasoning_and_usage_of_an_answer():
    """Text as a string or in parts; reasoning under either of its names."""
    result = answered({"content": "hi", "reasoning_content": "hm"}, usage={"total_tokens": 5})
    assert (result.text, result.reasoning, result.usage) == ("hi", "hm", {"total_tokens": 5})
    assert answered({"content": "x", "reasoning": "so", "reasoning_content": ""}).reasoning == "so"
    assert answered({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}).text == "ab"
    assert Result(index=0, body=b'{"choices":[{"text":"old style"}]}').text == "old style"


@pytest.mark.parametrize("body", [None, b"", b"nonsense", b"[]", b'{"choices":[]}', b'{"choices":[{"message":null}]}',
                                  b'{"choices":{"0":1}}', b'{"choices":[3]}'])  # fmt: skip
def test_an_answer_of_another_shape_has_no_text(body):
    """Never an exception where an answer is read."""
    result = Result(index=0, body=body)
    assert (result.text, result.reasoning, result.message, result.usage) == ("", "", {}, {})


def test_what_only_pythons_json_reads_is_read():
    """Servers in Python write NaN."""
    assert Result(index=0, body=b'{"choices":[{"message":{"content":"x","logprob":NaN}}]}').text == "x"


def test_a_failure_has_no_text_and_can_be_raised():
    """Even when the server's body looks like an answer."""
    failed = Result(index=7, error=Error("bad_request", "no"), body=b'{"choices":[{"message":{"content":"x"}}]}')
    assert (failed.ok, failed.text, failed.message) == (False, "", {})
    assert failed.response["choices"]
    with pytest.raises(RequestFailedError, match=r"request 7 failed \(bad_request\): no") as caught:
        failed.require()
    assert (caught.value.index, caught.value.code) == (7, "bad_request")
    good = Result(index=1)
    assert good.require() is good


def test_no_answer_shows_in_a_repr():
    """Logs are full of reprs."""
    assert repr(answered({"content": "SECRET"})) == "Result(index=3, ok)"
    assert repr(Result(index=1, error=Error("timeout", "m"))) == "Result(index=1, failed: timeout)"


def test_a_record_becomes_a_result():
    """With everything that the output line has, and the request's place as its index."""
    detail = Detail(5, "id", bytes(16), 400, "req", b"{}", "why", ["truncated"], 12, "e")
    result = from_record(Record(FailureClass.BAD_REQUEST, 2, 0, 0, detail))
    assert result == Result(
        index=5, custom_id="id", error=Error("bad_request", "why"), status_code=400, body=b"{}",
        flags=("truncated",), attempts=2, latency_ms=12, endpoint="e",
    )  # fmt: skip
    assert from_record(Record(None, 1, 0, 0, Detail(0, None, bytes(16)))).ok


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', {"a": 1}),
        ('  {"a": {"b": [1]}}\n', {"a": {"b": [1]}}),
        ('Here it is:\n```json\n{"a": 1}\n```\nDone.', {"a": 1}),
        ('```\n{"a": 1}\n```', {"a": 1}),
        ("```python\n{'a': True, 'b': None}\n```", {"a": True, "b": None}),
        ("{'a': 'x'}", {"a": "x"}),
        ('The answer is {"a": 1}, I think.', {"a": 1}),
        ('A set {x} and then {"a": "}"} and more }', {"a": "}"}),
        ("So: {'a': True}, I think.", {"a": True}),
        ('```json{"a": 1}```', {"a": 1}),
        ('```json\n{"a": "```sh\\nls\\n```"}\n```', {"a": "```sh\nls\n```"}),
        ('```\n{"a": 1}\n```\n```\n{"b": 2}\n```', {"a": 1}),
        ('<think>{"draft": 1}</think>\n{"a": 1}', {"a": 1}),
        ('<think>{"draft": 1}</think> none', None),
        ('{"a": "</think>"}', {"a": "</think>"}),
        ("{}", {}),
        ("[1, 2]", None),
        ("no object", None),
        ("{", None),
        ("", None),
        ("{" * 100_000, None),
    ],
)
def test_a_dict_is_found_in_what_a_model_wrote(text, found):
    """Bare, fenced, in Python's spelling, or between other words; not in its thoughts."""
    assert find_dict(text) == found
