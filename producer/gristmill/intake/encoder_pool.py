"""A few encoder processes, started when the first picture needs one.

Each works on one picture at a time, so a death names its culprit: that picture is tried once more, in a fresh process,
and is refused when that one dies too. A process that never said hello is no fault of a picture but of the setup, unless
somebody killed it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress

from gristmill.intake import encoder_wire as wire
from gristmill.intake.errors import FeedError, PictureError
from gristmill.intake.options import ImageOptions
from gristmill.queue.feedstats import FeedStats

_ARGV = (sys.executable, "-P", "-m", "gristmill.intake.encoder_main")
_PIPE_BUFFER_BYTES = 4 << 20
_START_TIMEOUT_S = 60.0
_LEAVE_TIMEOUT_S = 2.0
_TRIES = 2
_STARTS = 3


class _DiedError(Exception):
    """The encoder ended, or had to be ended, while it had this picture."""


class EncoderPool:
    """Encodes pictures in other processes.

    `encode` may be called by many tasks at once; `close` may be called twice, and ends what still runs. `stats` counts
    what was done.
    """

    def __init__(self, size: int = 0, *, timeout_s: float = 120.0) -> None:
        self.size = size or os.cpu_count() or 1
        self.stats = FeedStats()
        self._timeout_s = timeout_s
        self._free = asyncio.Semaphore(self.size)
        self._idle: list[Process] = []
        self._all: set[Process] = set()

    async def encode(self, data: bytes, options: ImageOptions) -> wire.Done:
        """`data` made fit to send.

        Raises:
            PictureError: it is no good, or it ended two encoders.
            FeedError: encoders do not start on this machine.
        """
        task = wire.Task(data, options)
        async with self._free:
            for _ in range(_TRIES):
                process = self._idle.pop() if self._idle else await self._start()
                begun_s = time.monotonic()
                try:
                    reply = await self._ask(process, task)
                except _DiedError:
                    await self._end_all_idle()  # the second try gets a process that has seen nothing else
                    continue
                finally:
                    self.stats.encode_s += time.monotonic() - begun_s
                if isinstance(reply, wire.Failed):
                    raise PictureError(reply.reason)
                self.stats.pictures += 1
                self.stats.read_bytes += len(data)
                self.stats.sent_bytes += len(reply.data)
                return reply
        raise PictureError("decoding it crashed the encoder or took too long, twice")

    async def _ask(self, process: Process, task: wire.Task) -> wire.Done | wire.Failed:
        """One exchange; the process is idle again afterwards, or dead."""
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await _exchange(process, task)
        except (OSError, EOFError, TimeoutError) as error:
            await self._end(process)
            raise _DiedError from error
        except BaseException:
            await self._end(process)  # cancelled between question and answer: the pipe is out of step
            raise
        self._idle.append(process)
        return reply

    async def _start(self) -> Process:
        """A process that has said hello; one that somebody kills before is started anew, a few times.

        Raises:
            FeedError: they end by themselves, or hang.
        """
        code: int | None = None
        for _ in range(_STARTS):
            process = await asyncio.create_subprocess_exec(
                *_ARGV, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=_PIPE_BUFFER_BYTES
            )
            self._all.add(process)
            if await self._says_hello(process):
                return process
            code = process.returncode
            await self._end(process)
            if code is None or code >= 0:
                break
        raise FeedError(
            f"the picture encoder does not start ({'no answer' if code is None else f'exit code {code}'}): "
            f"try {sys.executable} -m gristmill.intake.encoder_main"
        )

    async def _says_hello(self, process: Process) -> bool:
        """Whether a new process is ready; when it has ended instead, its exit code is known."""
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await _receive(process)
        except TimeoutError:
            return False
        except (OSError, EOFError):
            with suppress(TimeoutError):  # its own exit code says more than that of our kill
                await asyncio.wait_for(process.wait(), _LEAVE_TIMEOUT_S)
            return False
        except BaseException:
            await self._end(process)
            raise
        return True

    async def _end(self, process: Process) -> None:
        self._all.discard(process)
        if process in self._idle:
            self._idle.remove(process)
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        await process.wait()

    async def _end_all_idle(self) -> None:
        for process in list(self._idle):
            await self._end(process)

    async def close(self) -> None:
        """End all encoders; returns when they have ended."""
        for process in list(self._all):
            await self._end(process)

    @property
    def pids(self) -> list[int]:
        """Those that run now."""
        return sorted(process.pid for process in self._all)


async def _exchange(process: Process, task: wire.Task) -> wire.Done | wire.Failed:
    assert process.stdin is not None
    process.stdin.writelines(wire.pack(task))
    await process.stdin.drain()
    return await _receive(process)


async def _receive(process: Process) -> wire.Done | wire.Failed:
    assert process.stdout is not None
    (length,) = wire.LENGTH.unpack(await process.stdout.readexactly(wire.LENGTH.size))
    return wire.reply_decoder.decode(await process.stdout.readexactly(length))
