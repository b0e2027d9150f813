"""The frame: one encoded request as it lies in the store, or the refusal of one that could not be encoded.

A frame is one version byte and a msgpack array. A request's body is kept as the bytes that will be sent, cut where a
picture's base64 belongs: ``pieces[0] + b64(images[0]) + pieces[1] + ... + pieces[-1]``. So the worker never parses
or dumps JSON on the way out, and a picture is stored as raw bytes (a quarter less than base64).

Formats are versioned by the first byte; `decode` refuses what it does not know. Golden files in tests/contract hold the
bytes of every version.
"""

from __future__ import annotations

import msgspec

from gristmill.contract.failure import FailureClass

VERSION = 2
_VERSION_BYTE = bytes([VERSION])


class FormatError(ValueError):
    """Bytes from the store that this version cannot read: another version wrote them, or they are damaged."""


class Image(msgspec.Struct, frozen=True, array_like=True):
    """One picture of a request.

    Attributes:
        digest: hash of the bytes to send (`gristmill.contract.digest`); names the field ``i:<digest>`` of the run.
        size: how many bytes will be sent, before base64.
        path: where the bytes lie, when they are sent by reference; None when they lie in the run.
        mtime_ns, ctime_ns, inode: of the file when it was read (by reference only). While a file has the same four, it
            is taken to be the same, and is not hashed again; with others its hash decides.
    """

    digest: str
    size: int
    path: str | None = None
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0


class Request(msgspec.Struct, frozen=True, array_like=True, tag="q"):
    """One HTTP call to make.

    Attributes:
        ordinal: the line's place in INPUT, from 0 (a resumed job sends only some of them, so it may exceed the index).
        custom_id: the caller's id, or None.
        fingerprint: 16 bytes, see `gristmill.intake.fingerprint`.
        path: the URL path below the endpoint's base, e.g. ``/chat/completions``.
        pieces: the body's bytes around the pictures; always one more than `images`.
        images: the pictures, in body order.
        wants_json: the caller asked for JSON output, so an answer that is no JSON is `invalid_output`.
        line: 1-based line number in INPUT, for messages.
    """

    ordinal: int
    custom_id: str | None
    fingerprint: bytes
    path: str
    pieces: list[bytes]
    images: list[Image]
    wants_json: bool = False
    line: int = 0

    @property
    def text_bytes(self) -> int:
        """Length of the body without its pictures, bytes."""
        return sum(map(len, self.pieces))


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag="x"):
    """A line or picture that cannot be sent: sealed all the same, and committed without a slot or an attempt.

    Attributes:
        ordinal: as in `Request`.
        custom_id: as far as it could be read.
        fingerprint: 16 bytes; of the raw line where no body could be made.
        cls: `bad_input` or `bad_image`.
        message: which line, what is wrong, how to fix it.
        line: 1-based line number in INPUT.
    """

    ordinal: int
    custom_id: str | None
    fingerprint: bytes
    cls: FailureClass
    message: str
    line: int = 0


Frame = Request | Refusal


def version_error(what: str, data: bytes, version: int) -> FormatError:
    """What to raise when the first byte of `data` is not `version`."""
    seen = data[:1].hex() or "none"
    return FormatError(f"{what} of version {seen}, this program reads {version}: run one minor version everywhere")


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Request | Refusal] = msgspec.msgpack.Decoder(Request | Refusal)


def encode(frame: Frame) -> bytes:
    return _VERSION_BYTE + _encoder.encode(frame)


def decode(data: bytes) -> Frame:
    """The frame in `data`.

    Raises:
        FormatError: unknown version, or damaged bytes.
    """
    if data[:1] != _VERSION_BYTE:
        raise version_error("frame", data, VERSION)
    try:
        return _decoder.decode(memoryview(data)[1:])
    except msgspec.MsgspecError as error:
        raise FormatError(f"damaged frame of {len(data)} bytes") from error
