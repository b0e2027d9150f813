"""What the feeder and its encoder processes say to each other: msgpack, each message behind its length in 4 bytes."""

from __future__ import annotations

import struct

import msgspec

from gristmill.intake.options import ImageOptions

LENGTH = struct.Struct(">I")


class Task(msgspec.Struct, frozen=True, array_like=True):
    """Encode this picture."""

    data: bytes
    options: ImageOptions


class Done(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    data: bytes
    width: int
    height: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """It is no good; `reason` as in `PictureError`."""

    reason: str


Reply = Done | Failed
_encoder = msgspec.msgpack.Encoder()
task_decoder = msgspec.msgpack.Decoder(Task)
reply_decoder: msgspec.msgpack.Decoder[Done | Failed] = msgspec.msgpack.Decoder(Done | Failed)


def pack(message: Task | Done | Failed) -> tuple[bytes, bytes]:
    """Length and message, to be written one after the other."""
    data = _encoder.encode(message)
    return LENGTH.pack(len(data)), data
