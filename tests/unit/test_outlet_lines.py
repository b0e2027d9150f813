"""The output line: its layout, the body's bytes, and reading it back."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.support.outlet import fingerprint, record

from gristmill.contract.failure import FailureClass
from gristmill.outlet.lines import (
    NotOurLineError,
    body_json,
    encode_line,
    number_of_id,
    parse_line,
    renumber,
    request_key,
    result_number,
    tokens,
)

NASTY = b'{"choices":[],"error":null,"gristmill":{"index":9,"status":"x"},"response":{"custom_id":",\\"error\\":"}}'
"""A body that has our own keys inside."""


def test_an_ok_line_has_exactly_the_documented_keys_in_their_order():
    """Scripts may rely on the layout, so it is compared byte for byte."""
    line = encode_line("job1", record(5, text="hi", body=b'{"choices": [1]}', flags=["truncated"]))
    assert line == (
        b'{"id":"job1-5","custom_id":"c-hi","response":{"status_code":200,"request_id":"r","body":{"choices": [1]}},'
        b'"error":null,"gristmill":{"index":5,"fingerprint":"%b","status":"ok","class":"ok","flags":["truncated"],'
        b'"attempts":1,"latency_ms":7,"endpoint":"e0"}}\n' % fingerprint("hi").hex().encode()
    )


def test_a_failed_line_without_a_response_has_null_there_and_the_class_in_error():
    """A failure never sits where an answer belongs."""
    line = json.loads(encode_line("j", record(0, cls=FailureClass.BAD_INPUT)))
    assert line["response"] is None
    assert line["error"] == {"code": "bad_input", "message": "it went wrong as bad_input"}
    assert (line["gristmill"]["status"], line["gristmill"]["class"]) == ("failed", "bad_input")


def test_a_failed_line_keeps_the_servers_response_beside_its_error():
    """What the server said stays readable, and the error says that it is no answer."""
    refusal = record(0, cls=FailureClass.BAD_REQUEST, status_code=400, body=b'{"error":{"message":"no"}}')
    line = json.loads(encode_line("j", refusal))
    assert line["response"] == {"status_code": 400, "request_id": None, "body": {"error": {"message": "no"}}}
    assert line["error"]["code"] == "bad_request"


@pytest.mark.parametrize(
    ("body", "written"),
    [
        (b'{"a": 1.50, "b":"\\u00e9"}', b'{"a": 1.50, "b":"\\u00e9"}'),
        (b'{"a":\n1}', b'{"a": 1}'),
        (b'{"a":NaN}', b'{"a":NaN}'),
        (b'{"a":"\\ud83d"}', b'{"a":"\\ud83d"}'),
        (b"<html>\n502</html>", b'"<html>\\n502</html>"'),
        (b'{"a":"\xff"}', '"{\\"a\\":\\"\ufffd\\"}"'.encode()),
        (b'{"a":1} {', b'"{\\"a\\":1} {"'),
        (b"", b'""'),
    ],
)
def test_a_body_is_kept_byte_for_byte_and_what_is_no_json_becomes_a_string(body: bytes, written: bytes):
    """The raw body is kept whole, and a line stays one line of JSON whatever a server sends."""
    assert body_json(body) == written
    assert json.loads(written) is not None


@pytest.mark.parametrize("custom_id", [None, "", "plain", 'quo"te,"response":', "é\n\u2028"])
@pytest.mark.parametrize("body", [NASTY, b'{"a":NaN}', b'{"a":"\\ud83d"}', None])
@pytest.mark.parametrize("cls", [None, FailureClass.TRANSIENT])
def test_a_line_is_read_back_as_it_was_written(custom_id: str | None, body: bytes | None, cls: FailureClass | None):
    """Whatever ids, bodies and messages hold, our own keys are found."""
    message = 'said ,"gristmill":{"index":1' if cls else None
    line = encode_line("j", record(3, cls=cls, custom_id=custom_id, body=body, status_code=200, message=message))
    parsed = parse_line(line)
    assert (parsed.id, parsed.custom_id, parsed.ok) == ("j-3", custom_id, cls is None)
    assert (parsed.gristmill.index, parsed.gristmill.attempts) == (3, 1)
    assert parsed.key == request_key(custom_id, fingerprint("request 3"))
    assert (parsed.error.message if parsed.error else None) == message
    assert (body or b"null") in bytes(parsed.response)


def test_a_line_that_another_tool_has_rewritten_is_still_ours():
    """`jq` or a script may change blanks and the order of keys."""
    line = json.loads(encode_line("j", record(4)))
    rewritten = json.dumps(dict(reversed(line.items())), indent=None).encode()
    assert parse_line(rewritten).key == parse_line(encode_line("j", record(4))).key
    assert json.loads(renumber(rewritten, 8)) == line | {"gristmill": line["gristmill"] | {"index": 8}}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"not json",
        b"[]",
        b'{"custom_id":"a","response":{"body":{}},"error":null}',
        b'{"id":"x","custom_id":null,"response":null,"error":null,"gristmill":{"index":-1,"fingerprint":"","status":"ok","class":"ok"}}',
        b'{"id":"x","custom_id":null,"response":null,"error":null,"gristmill":{"index":1,"fingerprint":"","status":"done","class":"ok"}}',
        b'{"id":"x","custom_id":null,"response":null,"error":null,"gristmill":{"index":1,"fingerprint":"zz","status":"ok","class":"ok"}}',
        encode_line("j", record(1))[:-4],
        encode_line("j", record(1))[40:],
        encode_line("j", record(1)).replace(b'"body":', b'"body":\0', 1),
        b"\xef\xbb\xbf" + encode_line("j", record(1)),
    ],
)
def test_what_is_not_ours_or_torn_is_refused(line: bytes):
    """A foreign file must not be taken for one of ours, nor half a line for a whole one."""
    with pytest.raises(NotOurLineError):
        parse_line(line)


def test_a_carried_line_gets_its_new_index_and_nothing_else_changes():
    """The body holds our own keys, and stays as it is."""
    line = encode_line("j", record(3, body=NASTY))
    assert renumber(line, 12_345) == encode_line("j", record(3, body=NASTY)).replace(
        b'"gristmill":{"index":3,', b'"gristmill":{"index":12345,'
    )


def test_an_absent_id_and_an_empty_one_are_two_keys():
    """custom_id null and "" are different requests."""
    print_ = fingerprint("x")
    keys = {request_key(None, print_), request_key("", print_), request_key("a", print_), request_key("a", b"0" * 16)}
    assert len(keys) == 4


def test_a_result_has_one_number_however_it_is_come_by():
    """From the record when it is collected, from the line's id when it is read back; also from a strange id."""
    assert number_of_id("j-o-b-12") == result_number("j-o-b", 12)
    assert (
        len({result_number("j", 1), result_number("j", 2), result_number("k", 1), number_of_id("j"), number_of_id("")})
        == 5
    )
    assert all(0 <= result_number(f"job{i}", 1 << 40) < 1 << 63 for i in range(100))


@pytest.mark.parametrize(
    ("response", "counts"),
    [
        (b'{"status_code":200,"body":{"usage":{"prompt_tokens":5,"completion_tokens":6}}}', (5, 6)),
        (b'{"status_code":200,"body":{"usage":{"input_tokens":7,"output_tokens":8}}}', (7, 8)),
        (b'{"status_code":200,"body":{"usage":null}}', (0, 0)),
        (b'{"status_code":200,"body":{"usage":{"prompt_tokens":-5,"completion_tokens":1%b}}}' % (b"0" * 99), (0, 0)),
        (b'{"status_code":200,"body":"<html>"}', (0, 0)),
        (b'{"status_code":200,"body":{"usage":{"prompt_tokens":"many"}}}', (0, 0)),
        (b"null", (0, 0)),
    ],
)
def test_tokens_are_read_under_both_names_and_strange_bodies_count_nothing(response: bytes, counts: tuple[int, int]):
    """Totals come from what the lines hold."""
    assert tokens(msgspec.Raw(response)) == counts
