"""PURE: reads HTTP/1.x responses from bytes, one at a time, in whatever pieces they come.

Nearly every response comes in one piece with a Content-Length: for it, the head is matched, checked and split in one
go, and the body is a slice. Everything else takes the long way: heads in pieces, chunks, bodies that end with the
connection, interim responses (1xx), compressed bodies that nobody asked for.

Reading is strict where two readers could differ on where a response ends (lengths, chunk sizes, control bytes), since
then the next response on the connection could be taken for another request's; it is lenient where they can't (lines
that end without a carriage return, any reason phrase). Bytes after a response are never kept: a connection on which
they came is not used again.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

import msgspec

MAX_HEAD_BYTES = 1 << 16
"""Heads above this size are no sane server's."""
_MAX_LINE_BYTES = 1 << 12
"""Likewise lines between chunks, and trailers."""

_HEAD = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?:[ \t][^\r\n\0]*)?\r?\n((?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[^\r\n\0]*\r?\n)*)\r?\n"
)
_START = b"HTTP/1."
_HEAD_END = re.compile(rb"\n\r?\n")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")
_LINE_END = re.compile(rb"\r?\n")
_TRAILER = re.compile(rb"(?:[^\r\n]+\r?\n)*\r?\n")
_INTERIM = frozenset(b"%d" % status for status in range(100, 200) if status != 101)
_NO_BODY = frozenset({101, 204, 304})
_MAX_LENGTH_DIGITS = 15
_AT_HEAD, _BY_LENGTH, _BY_CHUNKS, _UNTIL_END = range(4)
_DUE_LINE_END, _IN_TRAILER = -1, -2
_DUE = {0: _CHUNK, _DUE_LINE_END: _LINE_END, _IN_TRAILER: _TRAILER}
"""What must stand next in a chunked body where no data of a chunk does."""
_LISTS = frozenset({"connection", "transfer-encoding"})
"""Headers whose repetition means a list."""


class NotHttpError(Exception):
    """What came is no HTTP response, or one that can't be read safely."""


class TooLargeError(Exception):
    """The body is above the cap.

    Attributes:
        status: of the response.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class BrokenBodyError(Exception):
    """The body came whole but can't be unpacked."""


class Reply(msgspec.Struct):
    """A whole response. A mapping of ours has its names in lower case; an aiohttp one is asked in any case.

    Attributes:
        answered_s: when its head had come, monotonic seconds; set by who received it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    answered_s: float = 0.0

    def __repr__(self) -> str:
        return f"Reply({self.status}, {len(self.body)} bytes)"


class Reader:
    """Reads the responses of one connection. After an error it is of no more use.

    Attributes:
        status: of the response that is being read; 0 while its head has not come whole.
        begun: whether a byte of it has come.
        reusable: whether the connection may carry another call after the last whole response.
    """

    __slots__ = (
        "_chunk",
        "_chunks",
        "_headers",
        "_held",
        "_max_bytes",
        "_mode",
        "_size",
        "begun",
        "reusable",
        "status",
    )

    def __init__(self, max_body_bytes: int) -> None:
        self._max_bytes = max_body_bytes
        self.reusable = False
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.begun = False
        self._headers: dict[str, str] = {}
        self._held = b""
        self._chunks: list[bytes] = []
        self._size = 0
        self._chunk = 0
        self._mode = _AT_HEAD

    def feed(self, data: bytes) -> Reply | None:
        """Take in what came; the response once it is whole.

        Raises:
            NotHttpError, TooLargeError, BrokenBodyError.
        """
        if self._mode == _AT_HEAD:
            return self._feed_head(data)
        if self._mode == _BY_LENGTH:
            return self._feed_length(data)
        if self._mode == _BY_CHUNKS:
            return self._feed_chunks(data)
        self._keep(data)
        return None

    def feed_end(self) -> Reply | None:
        """The connection ended in an orderly way: the response, if that is how its body ends.

        Raises:
            BrokenBodyError, TooLargeError.
        """
        return self._whole() if self._mode == _UNTIL_END else None

    # -- the head -------------------------------------------------------------------------------------------------

    def _feed_head(self, data: bytes) -> Reply | None:
        self.begun = True
        if self._held:
            seen, data = len(self._held), self._held + data
            if _HEAD_END.search(data, max(0, seen - 2)) is None:  # else a dripping head would be read from its start
                self._hold_head(data, ended=False)  # with each byte
                return None
        found = _HEAD.match(data)
        while found is not None and found[2] in _INTERIM:
            data = data[found.end() :]
            found = _HEAD.match(data)
        if found is None:
            self._hold_head(data, ended=_HEAD_END.search(data) is not None)
            return None
        end, status, headers = found.end(), int(found[2]), _headers(found[3])
        self._held = b""
        self.status = status
        self._headers = headers
        self.reusable = _keeps_alive(found[1], headers.get("connection")) and status != 101
        length = self._framing(status, headers)
        if length == len(data) - end:  # all that came is this response
            if "content-encoding" in headers:
                self._keep(data[end:])
                return self._whole()
            self._reset()
            return Reply(status, headers, data[end:])
        return self.feed(data[end:]) if len(data) > end else None

    def _hold_head(self, data: bytes, *, ended: bool) -> None:
        """Keep a head that may still become whole."""
        if ended or len(data) > MAX_HEAD_BYTES or not data.startswith(_START[: len(data)]):
            raise NotHttpError
        self._held = data

    def _framing(self, status: int, headers: dict[str, str]) -> int:
        """Set the mode of reading the body; its length, or -1 where the head doesn't say."""
        encoding, text = headers.get("transfer-encoding"), headers.get("content-length")
        if status in _NO_BODY:
            self._mode, self._chunk = _BY_LENGTH, 0
            return 0
        if encoding is not None:
            if encoding.lower() != "chunked":
                raise NotHttpError
            self._mode, self._chunk = _BY_CHUNKS, 0
            self.reusable = self.reusable and text is None
            return -1
        if text is None:
            self._mode = _UNTIL_END
            self.reusable = False
            return -1
        if not text.isdecimal() or len(text) > _MAX_LENGTH_DIGITS:
            raise NotHttpError
        length = int(text)
        if length > self._max_bytes:
            raise TooLargeError(status)
        self._mode, self._chunk = _BY_LENGTH, length
        return length

    # -- the body -------------------------------------------------------------------------------------------------

    def _feed_length(self, data: bytes) -> Reply | None:
        missing = self._chunk - self._size
        if len(data) > missing:
            self.reusable = False
            data = data[:missing]
        self._keep(data)
        return self._whole() if self._size == self._chunk else None

    def _feed_chunks(self, data: bytes) -> Reply | None:
        """`_chunk`: what a chunk still lacks; 0 before a size, `_DUE_LINE_END` behind it, `_IN_TRAILER` at the end."""
        if self._held:
            data, self._held = self._held + data, b""
        at = 0
        while at < len(data):
            if self._chunk > 0:
                part = data[at : at + self._chunk]
                self._keep(part)
                at += len(part)
                self._chunk = self._chunk - len(part) or _DUE_LINE_END
                continue
            found = _DUE[self._chunk].match(data, at)
            if found is None:
                self._hold_line(data[at:])
                return None
            at = found.end()
            if self._chunk == _IN_TRAILER:
                self.reusable = self.reusable and at == len(data)
                return self._whole()
            self._chunk = 0 if self._chunk == _DUE_LINE_END else int(found[1], 16) or _IN_TRAILER
        return None

    def _hold_line(self, data: bytes) -> None:
        """Keep a line between chunks, or a trailer, that may still become whole."""
        if self._chunk == _IN_TRAILER:
            broken = len(data) > _MAX_LINE_BYTES or _HEAD_END.search(data) is not None
        elif self._chunk == _DUE_LINE_END:
            broken = data != b"\r"
        else:
            broken = len(data) > _MAX_LINE_BYTES or b"\n" in data
        if broken:
            raise NotHttpError
        self._held = data

    def _keep(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._max_bytes:
            raise TooLargeError(self.status)
        self._chunks.append(data)

    def _whole(self) -> Reply:
        """The response, which has come to its end."""
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        status, headers = self.status, self._headers
        encoding = headers.get("content-encoding")
        if encoding is not None and body:
            body = self._unpacked(body, encoding.lower())
        self._reset()
        return Reply(status, headers, body)

    def _unpacked(self, body: bytes, encoding: str) -> bytes:
        """`body` without its compression; an unknown one is left, and will be seen to be no JSON."""
        if encoding in {"gzip", "x-gzip"}:
            return self._inflated(body, 16 + zlib.MAX_WBITS)
        if encoding == "deflate":  # either of two forms in practice; the low bits of the first byte tell
            return self._inflated(body, zlib.MAX_WBITS if body[0] & 0xF == zlib.DEFLATED else -zlib.MAX_WBITS)
        return body

    def _inflated(self, body: bytes, form: int) -> bytes:
        parts, size = [], 0
        while body:
            unpacker = zlib.decompressobj(form)
            try:
                part = unpacker.decompress(body, self._max_bytes - size + 1)
            except zlib.error:
                raise BrokenBodyError from None
            size += len(part)
            if size > self._max_bytes:
                raise TooLargeError(self.status)
            if not unpacker.eof:
                raise BrokenBodyError
            parts.append(part)
            body = unpacker.unused_data.lstrip(b"\0")  # gzip allows several members, and padding behind them
        return b"".join(parts)


def _headers(fields: bytes) -> dict[str, str]:
    """The header lines `fields`, names in lower case."""
    lines = fields.decode("latin-1").replace("\r\n", "\n").split("\n")
    lines.pop()
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip(" \t")
    return headers if len(headers) == len(lines) else _merged(lines)


def _merged(lines: list[str]) -> dict[str, str]:
    """Headers of which some are repeated: lists are joined, of the others the first counts.

    Raises:
        NotHttpError: two lengths, which may be a way to smuggle a response.
    """
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if name in headers and name == "content-length":
            raise NotHttpError
        if name in headers and name in _LISTS:
            headers[name] += f", {value}"
        else:
            headers.setdefault(name, value)
    return headers


def _keeps_alive(minor_version: bytes, connection: str | None) -> bool:
    """Whether the server will keep the connection open after the response."""
    if connection is None:
        return minor_version == b"1"
    tokens = [token.strip() for token in connection.lower().split(",")]
    return "close" not in tokens and (minor_version == b"1" or "keep-alive" in tokens)
