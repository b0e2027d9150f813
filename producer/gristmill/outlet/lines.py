"""The output line: how a record becomes one, and how our own lines are read back.

A line is one JSON object with its keys always in this order, without blanks between them, and a newline at its end::

    {"id":"JOB-ORDINAL","custom_id":...,"response":null|{"status_code":...,"request_id":...,"body":BODY},
     "error":null|{"code":CLASS,"message":...},
     "gristmill":{"index":ORDINAL,"fingerprint":HEX,"status":"ok|failed","class":CLASS|"ok","flags":[...],
                  "attempts":N,"latency_ms":N,"endpoint":...}}

`id` names the job and the line that bought the answer, so it is unique, and it stays when a later run carries the line
over. BODY is the server's body byte for byte. It is never parsed here: the fixed order lets a line be cut at
``,"response":``, ``,"error":`` and ``,"gristmill":``, which cannot occur inside a JSON string (its quotes are escaped)
and of which the last occurrence is ours whatever the body holds. Only lines that another tool has rewritten are parsed
whole.
"""

from __future__ import annotations

import json
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from gristmill.contract.record import Detail, Record

OK = "ok"
FAILED = "failed"
RETRY_MARK = ".r"
"""A retry's id is its parent's, this, and some chance; so a line of OUT tells that a retry of its job answered it."""

_HEAD = b'{"id":'
_CUSTOM_ID = b',"custom_id":'
_RESPONSE = b',"response":'
_ERROR = b',"error":'
_TAIL = b',"gristmill":'
_TOO_MANY_TOKENS = 1 << 40
"""A server that counts so many for one answer is not believed."""
_INDEX = b',"gristmill":{"index":'
_LINE = b"".join(
    (
        b'{"id":"%b-%d","custom_id":%b',
        _RESPONSE,
        b"%b",
        _ERROR,
        b"%b",
        _INDEX,
        b'%d,"fingerprint":"%b","status":"%b","class":"%b","flags":%b,"attempts":%d,"latency_ms":%d,"endpoint":%b}}\n',
    )
)

_MASK = (1 << 63) - 1
_dump = msgspec.json.Encoder().encode
_raw = msgspec.json.Decoder(msgspec.Raw)


class NotOurLineError(ValueError):
    """A line that this program did not write."""


class Tail(msgspec.Struct, frozen=True):
    """What Gristmill says of a line, its `gristmill` object."""

    index: int
    fingerprint: str
    status: str
    cls: str = msgspec.field(name="class")
    attempts: int = 0


class Error(msgspec.Struct, frozen=True):
    code: str
    message: str


class Line(msgspec.Struct, frozen=True):
    """One of our lines, read back; `response` is JSON, not parsed."""

    id: str
    custom_id: str | None
    response: msgspec.Raw
    error: Error | None
    gristmill: Tail

    @property
    def ok(self) -> bool:
        return self.gristmill.status == OK

    @property
    def key(self) -> bytes:
        return request_key(self.custom_id, bytes.fromhex(self.gristmill.fingerprint))


class Result(NamedTuple):
    """What a line says of its result; `response` is JSON, not parsed, and not copied where that can be spared."""

    response: bytes | memoryview
    error: Error | None
    gristmill: Tail


class Usage(msgspec.Struct, frozen=True):
    """Token counts under either of the two names that servers use."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class _Body(msgspec.Struct, frozen=True):
    usage: Usage | None = None


class _Response(msgspec.Struct, frozen=True):
    body: _Body | None = None


_id = msgspec.json.Decoder(str)
_custom_id = msgspec.json.Decoder(str | None)
_error = msgspec.json.Decoder(Error | None)
_tail = msgspec.json.Decoder(Tail)
_response = msgspec.json.Decoder(_Response | None)


def request_key(custom_id: str | None, fingerprint: bytes) -> bytes:
    """16 bytes by which a request is found again: absent and empty ids differ."""
    name = b"\0" if custom_id is None else b"\1" + custom_id.encode()
    return blake2b(fingerprint + name, digest_size=16).digest()


def result_number(job: str, ordinal: int) -> int:
    """63 bits by which a result is known in whatever file its line lies; neighbours have neighbouring ones."""
    return (_job_number(job) + ordinal) & _MASK


def number_of_id(result_id: str) -> int:
    """The same number, from the line's `id`."""
    job, _, ordinal = result_id.rpartition("-")
    return result_number(job, int(ordinal)) if ordinal.isdecimal() else _job_number(result_id)


@lru_cache(maxsize=1024)
def _job_number(job: str) -> int:
    return int.from_bytes(blake2b(job.encode(), digest_size=8).digest()) & _MASK


def encode_line(job: str, record: Record) -> bytes:
    """The line of `record`, newline included."""
    d, cls = record.detail, record.cls
    return _LINE % (
        job.encode(),
        d.ordinal,
        b"null" if d.custom_id is None else _dump(d.custom_id),
        _response_json(d),
        b"null" if cls is None else _dump({"code": cls, "message": d.message or ""}),
        d.ordinal,
        d.fingerprint.hex().encode(),
        b"ok" if cls is None else b"failed",
        b"ok" if cls is None else cls.encode(),
        _dump(d.flags) if d.flags else b"[]",
        record.attempts,
        d.latency_ms,
        _name_json(d.endpoint),
    )


def _response_json(d: Detail) -> bytes:
    if d.status_code is None and d.body is None:
        return b"null"
    body = b"null" if d.body is None else body_json(d.body)
    request_id = b"null" if d.request_id is None else _dump(d.request_id)
    return b'{"status_code":%b,"request_id":%b,"body":%b}' % (_dump(d.status_code), request_id, body)


@lru_cache(maxsize=256)
def _name_json(name: str | None) -> bytes:
    """Endpoints are few, and named in every line."""
    return _dump(name)


def body_json(body: bytes) -> bytes:
    """`body` itself where it is JSON (newlines between tokens become blanks), else its text as a JSON string."""
    try:
        if not body.isascii():
            body.decode()
        _raw.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        if not _lenient_json(body):
            return _dump(body.decode(errors="replace"))
    if b"\n" in body or b"\r" in body:
        return body.replace(b"\n", b" ").replace(b"\r", b" ")
    return body


def _lenient_json(body: bytes) -> bool:
    """Whether Python's parser takes it: servers in Python write NaN and half surrogate pairs, which msgspec refuses."""
    try:
        json.loads(body.decode())
    except (ValueError, RecursionError):
        return False
    return True


def parse_line(line: bytes) -> Line:
    """One of our lines, with or without its newline.

    Raises:
        NotOurLineError: this program did not write it.
    """
    line = line.rstrip(b"\r\n")
    if b"\0" in line:  # what a torn write or a bad disk leaves; the answer's own JSON is not looked into below
        raise NotOurLineError(f"a line of {len(line)} bytes that is damaged: it has zero bytes")
    try:
        parsed = _cut(line) or _parse_whole(line)
        bytes.fromhex(parsed.gristmill.fingerprint)
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotOurLineError(f"a line of {len(line)} bytes that gristmill did not write") from error
    _require_sane(parsed.gristmill)
    return parsed


def parse_result(line: bytes) -> Result:
    """What one of our lines says of its result; as `parse_line`, but its ids are not looked at, and it is quicker.

    Raises:
        NotOurLineError: this program did not write it.
    """
    tail = line.rfind(_TAIL)
    error = line.rfind(_ERROR, 0, tail)
    response = line.find(_RESPONSE)
    if not line.startswith(_HEAD) or not line.endswith(b"}}\n") or not 0 < response < error < tail:
        parsed = parse_line(line)
        return Result(bytes(parsed.response), parsed.error, parsed.gristmill)
    text = line[error + len(_ERROR) : tail]
    try:
        failure = None if text == b"null" else _error.decode(text)
        said = _tail.decode(line[tail + len(_TAIL) : -2])
    except msgspec.MsgspecError as damage:
        raise NotOurLineError(f"a line of {len(line)} bytes that gristmill did not write") from damage
    _require_sane(said)
    return Result(memoryview(line)[response + len(_RESPONSE) : error], failure, said)


def _require_sane(tail: Tail) -> None:
    if tail.status not in (OK, FAILED) or tail.index < 0:
        raise NotOurLineError("a line with a status or an index that gristmill does not write")


def _cut(line: bytes) -> Line | None:
    """The line cut at its known places; None where it is not laid out as we write it."""
    tail = line.rfind(_TAIL)
    error = line.rfind(_ERROR, 0, tail)
    response = line.find(_RESPONSE)
    custom_id = line.find(_CUSTOM_ID, 0, response)
    if not line.startswith(_HEAD) or not line.endswith(b"}}") or not 0 < custom_id < response < error < tail:
        return None
    return Line(
        _id.decode(line[len(_HEAD) : custom_id]),
        _custom_id.decode(line[custom_id + len(_CUSTOM_ID) : response]),
        msgspec.Raw(line[response + len(_RESPONSE) : error]),
        _error.decode(line[error + len(_ERROR) : tail]),
        _tail.decode(line[tail + len(_TAIL) : -1]),
    )


def _parse_whole(line: bytes) -> Line:
    """A line of ours that another tool has written anew (blanks, other order of keys)."""
    value = json.loads(line.decode())  # of bytes it would let a BOM pass, which must not get into the middle of OUT
    head = {k: value[k] for k in ("id", "custom_id", "error", "gristmill")}
    head["response"] = msgspec.Raw(json.dumps(value["response"]).encode())
    return msgspec.convert(head, Line)


def renumber(line: bytes, ordinal: int) -> bytes:
    """The same line (newline included) with another `gristmill.index`; nothing else is touched."""
    start = line.rfind(_INDEX)
    if start >= 0:
        start += len(_INDEX)
        return line[:start] + b"%d" % ordinal + line[line.index(b",", start) :]
    value = json.loads(line)
    value["gristmill"]["index"] = ordinal
    return json.dumps(value).encode() + b"\n"


def take_place(line: bytes, old: Tail) -> bytes:
    """`line`, the answer of a retry, with the index and fingerprint of the line whose place it takes.

    So OUT stays in order, and the same command finds the line finished although the retry changed its body.
    """
    parsed = parse_line(line)
    fresh = b'"fingerprint":"%b"' % parsed.gristmill.fingerprint.encode()
    head, mark, tail = renumber(line, old.index).rpartition(_TAIL)
    return head + mark + tail.replace(fresh, b'"fingerprint":"%b"' % old.fingerprint.encode(), 1)


def tokens(response: bytes | memoryview | msgspec.Raw) -> tuple[int, int]:
    """Prompt and completion tokens that a response's body tells of; 0 where it tells nothing that can be."""
    try:
        answer = _response.decode(response)
    except msgspec.MsgspecError:
        return 0, 0
    if answer is None or answer.body is None or answer.body.usage is None:
        return 0, 0
    usage = answer.body.usage
    return _count(usage.prompt_tokens or usage.input_tokens), _count(usage.completion_tokens or usage.output_tokens)


def _count(told: int) -> int:
    return told if 0 <= told < _TOO_MANY_TOKENS else 0
