"""Look into JPEG, PNG and WebP files without decoding them: may these bytes be sent as they are?

A server ignores EXIF orientation, chokes on CMYK, and answers a truncated file with a 500 that looks like its own
fault. So bytes are passed through only when their *structure* proves them whole and plain:

- JPEG: every segment up to a scan is walked, and each scan's entropy-coded data must run on to the next marker, the
  last one to EOI. A cut file has no EOI there (one inside its thumbnail does not count). Where the first scan holds
  every component and is not progressive, nothing but its data can follow it, and no such data holds an EOI: if the file
  ends with one, it is the picture's own, and the data need not be searched.
- PNG: every chunk with its CRC, IDAT among them, up to IEND.
- WebP: the RIFF size and every chunk must lie within the file, picture data among them.

Whatever is odd but might be good (no EOI, CMYK, arithmetic coding, an orientation in XMP) goes to the encoder, whose
full decode decides. This module runs no decoder, so it is safe to run where a crash would hurt.
"""

from __future__ import annotations

import re
import struct
import zlib
from enum import Enum, auto
from typing import NamedTuple

import msgspec

from gristmill.intake.errors import PictureError

JPEG, PNG, WEBP = "image/jpeg", "image/png", "image/webp"


class Verdict(Enum):
    PLAIN = auto()
    """Whole, RGB or grey with 8 bits, upright, one frame."""
    ENCODE = auto()
    """Needs the encoder, or only a full decode can tell whether it is whole."""


class Look(msgspec.Struct, frozen=True):
    """What the structure says; mime, width and height are those of the file (0 x 0 where it is not known)."""

    verdict: Verdict
    mime: str = ""
    width: int = 0
    height: int = 0


Bytes = bytes | bytearray | memoryview

_UNKNOWN = Look(Verdict.ENCODE)
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def look(data: Bytes, *, allow_truncated: bool = False) -> Look:
    """What `data` is.

    Raises:
        PictureError: empty, or a PNG or WebP that is certainly cut or damaged (unless `allow_truncated`).
    """
    if not data:
        raise PictureError("the file is empty")
    head = bytes(data[:12])
    try:
        if head.startswith(b"\xff\xd8\xff"):
            return _jpeg(memoryview(data))
        if head.startswith(_PNG_MAGIC):
            return _png(memoryview(data))
        if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
            return _webp(memoryview(data))
    except PictureError:
        if not allow_truncated:
            raise
    except (IndexError, struct.error):
        return _UNKNOWN  # cut inside a header: the decoder has the last word
    return _UNKNOWN


# JPEG

_NEXT_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_SOS, _EOI, _APP1, _SOF0, _SOF1, _SOF2 = 0xDA, 0xD9, 0xE1, 0xC0, 0xC1, 0xC2
_BARE = frozenset({0x01, *range(0xD0, 0xD8)})
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_LEAD = 0xFF
_END = b"\xff\xd9"


class _Frame(NamedTuple):
    """What the frame header says; `fit` when a server can be expected to read such a picture."""

    width: int
    height: int
    components: int
    fit: bool
    sequential: bool


class _Jpeg:
    """What the segments have told so far."""

    __slots__ = ("frame", "plain", "scanned")

    def __init__(self) -> None:
        self.frame: _Frame | None = None
        self.plain = True
        self.scanned = False


def _jpeg(data: memoryview) -> Look:
    at, told = 2, _Jpeg()
    while True:
        if data[at] != _LEAD:
            return _UNKNOWN
        marker = data[at + 1]
        if marker == _EOI:
            break
        if marker == _LEAD:  # a fill byte
            at += 1
        elif marker in _BARE:
            at += 2
        else:
            at = _jpeg_segment(data, at, marker, told)
    frame = told.frame
    if frame is None or not told.scanned:
        return _UNKNOWN
    plain = told.plain and frame.width > 0 and frame.height > 0
    return Look(Verdict.PLAIN if plain else Verdict.ENCODE, JPEG, frame.width, frame.height)


def _jpeg_segment(data: memoryview, at: int, marker: int, told: _Jpeg) -> int:
    """Take in the segment at `at`; returns where the next marker is.

    Raises:
        IndexError, struct.error: it is cut, or there is none.
    """
    begin = at + 4
    end = at + 2 + (data[at + 2] << 8 | data[at + 3])
    if not begin <= end <= len(data):
        raise IndexError
    if marker == _APP1:
        told.plain = told.plain and _upright_app1(bytes(data[begin:end]))
    elif marker == _SOS:
        only = not told.scanned and _only_scan(told.frame, data[begin:end])
        told.scanned = True
        return _jpeg_scan_end(data, end, only)
    elif marker in _SOF:
        told.frame = _jpeg_frame(marker, data[begin:end])
        told.plain = told.plain and told.frame.fit
    return end


def _jpeg_scan_end(data: memoryview, at: int, only: bool) -> int:
    """The marker behind the scan that begins at `at`; `only` when no other can follow it.

    Raises:
        IndexError: there is none.
    """
    if only and data[at:][-2:] == _END:
        return len(data) - 2
    found = _NEXT_MARKER.search(data, at)
    if found is None:
        raise IndexError
    return found.start()


def _only_scan(frame: _Frame | None, header: memoryview) -> bool:
    """Whether a first scan with this header holds all of the picture."""
    return frame is not None and frame.sequential and len(header) > 0 and header[0] == frame.components


def _jpeg_frame(marker: int, segment: memoryview) -> _Frame:
    precision, height, width, components = struct.unpack_from(">BHHB", segment)
    fit = marker in (_SOF0, _SOF1, _SOF2) and precision == 8 and components in (1, 3)
    return _Frame(width, height, components, fit, marker in (_SOF0, _SOF1))


def _upright_app1(segment: bytes) -> bool:
    if segment.startswith(b"Exif\0\0"):
        return _upright_exif(segment[6:])
    return b"tiff:Orientation" not in segment


def _upright_exif(tiff: bytes) -> bool:
    """Whether EXIF data says "upright" (or nothing); what cannot be read counts as rotated: the encoder will see."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return False
    try:
        (first,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, first)
        for entry in range(count):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", tiff, first + 2 + 12 * entry)
            if tag == 0x0112:
                return kind == 3 and value in (0, 1)
    except struct.error:
        return False
    return True


# PNG

_PNG_GREY, _PNG_RGB = 0, 2
_PNG_DOUBTS = frozenset({b"tRNS", b"acTL"})
_PNG_XMP = b"XML:com.adobe.xmp"


def _png(data: memoryview) -> Look:
    at = len(_PNG_MAGIC)
    plain, pictured = True, False
    width = height = 0
    while True:
        if at + 12 > len(data):
            raise PictureError("the PNG is truncated")
        (length,) = struct.unpack_from(">I", data, at)
        kind, end = bytes(data[at + 4 : at + 8]), at + 12 + length
        if end > len(data):
            raise PictureError("the PNG is truncated")
        body = data[at + 8 : end - 4]
        if zlib.crc32(data[at + 4 : end - 4]) != struct.unpack_from(">I", data, end - 4)[0]:
            raise PictureError("the PNG is damaged: a checksum does not match")
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack_from(">IIBB", body)
            plain = depth == 8 and colour in (_PNG_GREY, _PNG_RGB)
        elif kind == b"IEND":
            break
        elif kind == b"IDAT":
            pictured = True
        else:
            plain = plain and _png_plain(kind, body)
        at = end
    if not pictured:
        raise PictureError("the PNG holds no picture data")
    return Look(Verdict.PLAIN if plain and width and height else Verdict.ENCODE, PNG, width, height)


def _png_plain(kind: bytes, body: memoryview) -> bool:
    if kind == b"eXIf":
        return _upright_exif(bytes(body))
    if kind in (b"iTXt", b"tEXt", b"zTXt"):  # XMP or an old "Raw profile type exif" can hold an orientation
        return not bytes(body[:17]).startswith((_PNG_XMP, b"Raw profile type "))
    return kind not in _PNG_DOUBTS


# WebP

_VP8X_ANIMATED, _VP8X_ALPHA = 0x02, 0x10


def _webp(data: memoryview) -> Look:
    (riff,) = struct.unpack_from("<I", data, 4)
    if riff + 8 > len(data):
        raise PictureError("the WebP is truncated")
    at, end = 12, riff + 8
    plain, size = True, (0, 0)
    pictured = False
    while at + 8 <= end:
        kind = bytes(data[at : at + 4])
        (length,) = struct.unpack_from("<I", data, at + 4)
        body = data[at + 8 : at + 8 + length]
        if at + 8 + length > end:
            raise PictureError("the WebP is truncated")
        if kind in (b"VP8 ", b"VP8L"):
            pictured = True
            size, fit = _webp_frame(kind, body)
            plain = plain and fit
        else:
            plain = plain and _webp_plain(kind, body)
        at += 8 + length + (length & 1)
    if not pictured:
        return _UNKNOWN  # animated files keep their frames in ANMF chunks
    return Look(Verdict.PLAIN if plain and all(size) else Verdict.ENCODE, WEBP, *size)


def _webp_frame(kind: bytes, body: memoryview) -> tuple[tuple[int, int], bool]:
    """Size, and whether it is opaque and well begun."""
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", body, 6)
        return (width & 0x3FFF, height & 0x3FFF), bytes(body[3:6]) == b"\x9d\x01\x2a"
    (bits,) = struct.unpack_from("<I", body, 1)
    alpha = bits >> 28 & 1
    return ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1), body[0] == 0x2F and not alpha


def _webp_plain(kind: bytes, body: memoryview) -> bool:
    if kind == b"VP8X":
        return not body[0] & (_VP8X_ANIMATED | _VP8X_ALPHA)
    if kind == b"EXIF":
        return _upright_exif(bytes(body).removeprefix(b"Exif\0\0"))
    return kind not in (b"ANIM", b"ANMF", b"ALPH") and not (kind == b"XMP " and b"tiff:Orientation" in bytes(body))
