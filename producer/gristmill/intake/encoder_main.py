"""One encoder process: pictures in on stdin, JPEGs out on stdout, until stdin ends.

It may die of a crafted picture at any time (that is its purpose): it holds no state, no connection and no key. It is
niced, so that encoding never starves the requests that are already running, and has an address-space limit, so that a
picture can't take the machine with it. Its first message, an empty `Done`, says that it has started.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from typing import IO

from gristmill.intake import encoder_wire as wire
from gristmill.intake.errors import PictureError

ADDRESS_SPACE_BYTES = 3 << 30
NICENESS = 10


def main() -> None:
    _settle()
    import gristmill.intake.images  # noqa: F401 -- Pillow is loaded with the limits in force, and before we say hello

    source, sink = sys.stdin.buffer, sys.stdout.buffer
    _write(sink, wire.Done(b"", 0, 0))
    while (header := _read(source, wire.LENGTH.size)) is not None:
        (length,) = wire.LENGTH.unpack(header)
        data = _read(source, length)
        if data is None:
            return
        reply = _answer(wire.task_decoder.decode(data))
        del data
        _write(sink, reply)


def _write(sink: IO[bytes], reply: wire.Reply) -> None:
    for piece in wire.pack(reply):
        sink.write(piece)
    sink.flush()


def _settle() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the feeder, which ends us by closing stdin
    os.nice(NICENESS)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = ADDRESS_SPACE_BYTES if hard == resource.RLIM_INFINITY else min(ADDRESS_SPACE_BYTES, hard)
    with suppress(OSError, ValueError):  # macOS refuses it; the pixel limit still stands
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump of a picture is nobody's business


def _read(source: IO[bytes], size: int) -> bytes | None:
    data = source.read(size)
    return data if len(data) == size else None


def _answer(task: wire.Task) -> wire.Reply:
    from gristmill.intake.images import encode_picture

    try:
        picture = encode_picture(task.data, task.options)
    except PictureError as error:
        return wire.Failed(error.reason)
    except MemoryError:
        return wire.Failed(f"decoding it needs more memory than an encoder may use ({ADDRESS_SPACE_BYTES >> 30} GiB)")
    return wire.Done(picture.data, picture.width, picture.height)


if __name__ == "__main__":
    main()
