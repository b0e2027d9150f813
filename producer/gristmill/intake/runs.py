"""Entries collected into one payload run, and the cursor that is sealed with it."""

from __future__ import annotations

import msgspec

from gristmill.contract.keys import image_field
from gristmill.intake.encode import Entry
from gristmill.intake.pipeline import Start

RUN_BYTES = 4 << 20
RUN_REQUESTS = 256
FIRST_RUN_REQUESTS = 16
FIELD_OVERHEAD_BYTES = 100


class Cursor(msgspec.Struct, frozen=True):
    """Where the feeder stands: everything before is sealed or carried. Opaque JSON to the queue.

    Attributes:
        line: lines read, blank ones too.
        offset: bytes of the uncompressed input read.
        place: lines read that are not blank.
        ordinal: lines that are part of the job: sealed or carried.
        index: of these, sealed.
        carried: of these, carried.
    """

    line: int = 0
    offset: int = 0
    place: int = 0
    ordinal: int = 0
    index: int = 0
    carried: int = 0

    @property
    def start(self) -> Start:
        return Start(self.offset, self.line, self.place)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Cursor:
        """The cursor in `data`; the beginning where there is none."""
        return _decoder.decode(data) if data else cls()


_decoder = msgspec.json.Decoder(Cursor)


class RunBuilder:
    """One run in the making. Each distinct picture is held once."""

    def __init__(self, run: int, first: int, *, begun_at_s: float) -> None:
        self.run = run
        self.first = first
        self.count = 0
        self.bytes = 0
        self.begun_at_s = begun_at_s
        self.fields: dict[bytes | str, bytes] = {}

    def add(self, entry: Entry, ordinal: int) -> None:
        data = entry.frame(ordinal)
        self.fields[b"%d" % (self.first + self.count)] = data
        self.bytes += len(data) + FIELD_OVERHEAD_BYTES
        self.count += 1
        for digest, blob in entry.blobs.items():
            field = image_field(digest).encode()
            if field not in self.fields:
                self.fields[field] = blob
                self.bytes += len(blob) + FIELD_OVERHEAD_BYTES

    @property
    def full(self) -> bool:
        return self.count >= (RUN_REQUESTS if self.run else FIRST_RUN_REQUESTS) or self.bytes >= RUN_BYTES
