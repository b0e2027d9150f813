"""The record: the one terminal result of an index.

Layout: a header of fixed width that Lua can read without knowing the rest, then a msgpack array.

======  ====  =============================================================
offset  size  header field (big-endian)
======  ====  =============================================================
0       1     format version
1       1     status: ``K`` ok, ``F`` failed
2       1     failure class code (`failure.CODES`), 0 when ok
3       1     reserved, 0
4       4     attempts made, all of them
8       4     prompt tokens
12      4     completion tokens
======  ====  =============================================================
"""

from __future__ import annotations

import struct

import msgspec

from gristmill.contract.failure import CLASSES, CODES, FailureClass
from gristmill.contract.frame import FormatError, version_error

VERSION = 1
_HEADER = struct.Struct(">BcBxIII")
HEADER_BYTES = _HEADER.size
_MAX_U32 = 0xFFFFFFFF


class DamagedRecordError(FormatError):
    """A record of our version that is not as it was written."""


class Detail(msgspec.Struct, frozen=True, array_like=True):
    """What the collector writes about a result, beside the header.

    Attributes:
        ordinal: the line's place in INPUT, from 0.
        custom_id: the caller's id, or None.
        fingerprint: 16 bytes.
        status_code: of the last response, or None where none came.
        request_id: the server's id of the last response (header ``x-request-id``), or None.
        body: the response body, one line of JSON, kept whole; None where none came.
        message: why it failed; None when ok.
        flags: e.g. ``truncated``.
        latency_ms: of the last attempt.
        endpoint: name of the endpoint that gave the last response, or None.
    """

    ordinal: int
    custom_id: str | None
    fingerprint: bytes
    status_code: int | None = None
    request_id: str | None = None
    body: bytes | None = None
    message: str | None = None
    flags: list[str] = []
    latency_ms: int = 0
    endpoint: str | None = None


class Record(msgspec.Struct, frozen=True):
    """Header and detail of one terminal result; `cls` is None when ok."""

    cls: FailureClass | None
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    detail: Detail

    @property
    def ok(self) -> bool:
        return self.cls is None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Detail)


def encode(record: Record) -> bytes:
    header = _HEADER.pack(
        VERSION,
        b"K" if record.cls is None else b"F",
        0 if record.cls is None else CODES[record.cls],
        min(record.attempts, _MAX_U32),
        min(record.prompt_tokens, _MAX_U32),
        min(record.completion_tokens, _MAX_U32),
    )
    return header + _encoder.encode(record.detail)


def decode(data: bytes) -> Record:
    """The record in `data`.

    Raises:
        FormatError: unknown version.
        DamagedRecordError: damaged bytes.
    """
    if data and data[0] != VERSION:
        raise version_error("record", data, VERSION)
    if len(data) < HEADER_BYTES:
        raise DamagedRecordError(f"damaged record of {len(data)} bytes")
    _, status, code, attempts, prompt_tokens, completion_tokens = _HEADER.unpack_from(data)
    try:
        detail = _decoder.decode(memoryview(data)[HEADER_BYTES:])
        cls = None if status == b"K" else CLASSES[code]
    except (msgspec.MsgspecError, KeyError) as error:
        raise DamagedRecordError(f"damaged record of {len(data)} bytes") from error
    return Record(cls, attempts, prompt_tokens, completion_tokens, detail)
