"""Where a request under suspicion is run when it is alone: in a process of its own, with its worker as the witness.

That a worker died while it ran a request alone says little: somebody may have killed the worker (an operator, the
kernel that wanted its memory, a machine's power switch), and SIGKILL does not tell who sent it. So a worker that is
given a lone suspect does not run it itself. Its *ward*, forked before the worker opened anything, forks a *cell*
(`cell`) that does. Whoever kills the worker ends ward and cell with it, and there is no verdict. A request is poison
only when a worker that lives has seen `DEATHS` cells of it die in a row.

Odds of a false verdict: let workers and cells be killed from outside at a rate of r each, and a run of the request take
d seconds. Then a cell is killed, and its worker spared, with q < 1 - exp(-r d), and `DEATHS` in a row with q^3. In the
chaos tier, r is about 0.1 a second and d about 0.1 s: one in a million lone runs, were the cells what it kills; it
kills workers, as people do, and the odds are none at all. What is left: the queue counts a worker's own death over a
lone suspect too, and calls it poison after eight in one life of the request (scripts/_past.lua), or a fault that takes
the worker along would be met for ever. That takes (1 - exp(-r d))^8, about 1e-16 in the chaos tier.

Crashes of workers until a poison is found: with s requests held at the first, cohorts of at most s/2, s/4, ... 2
follow, each with a crash, and then a lone one without: log2(s) for each poison, where the limit is log2(s) + 2.

What a crash leaves: nothing. A dead ward is not replaced; from then on its worker runs lone suspects itself.
"""

from __future__ import annotations

import asyncio
import logging
import socket

import msgspec

from gristmill.queue.replies import Claimed
from gristmilld import process
from gristmilld.config import WorkerSpec
from gristmilld.logs import fields
from gristmilld.worker.attempt import Outcome
from gristmilld.worker.warden import Order, Report, Warden

log = logging.getLogger(__name__)

DEATHS = 3
"""So many cells of a request must die in a row."""


class WardLostError(Exception):
    """There is no ward to run a request in."""


class Ward:
    """A worker's side of its ward: one request at a time.

    Args:
        sock: the way to the ward's process.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._number = 0
        self._orders: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None
        self._awaited: asyncio.Future[Outcome | process.Ended] | None = None

    @classmethod
    def open(cls, spec: WorkerSpec) -> Ward:
        """Fork the ward; before the worker opens anything, starts a thread or makes a loop.

        Raises:
            OSError: no process or no memory is left.
        """
        mine, theirs = socket.socketpair()
        try:
            process.fork(lambda: Warden(spec, theirs).serve(), f"gm-ward-{spec.slot}", keep={theirs.fileno()})
        except BaseException:
            mine.close()
            raise
        finally:
            theirs.close()
        return cls(mine)

    async def run(self, job: str, claimed: Claimed, recall: asyncio.Event) -> Outcome | None:
        """Run the request until it has an outcome; None when it has killed `DEATHS` cells in a row.

        A cancellation ends the cell. When `recall` is set, a request that only waits goes back.

        Raises:
            WardLostError: nothing can be said of it here.
        """
        for death in range(DEATHS):
            if recall.is_set():
                return Outcome(claimed)
            ended = await self._once(job, claimed, recall)
            if isinstance(ended, Outcome):
                return ended
            seen = fields(job=job, index=claimed.index, death=death + 1, exit_code=ended.exit_code, signum=ended.signum)
            log.warning("a request has ended the process that ran it alone", extra=seen)
        return None

    async def _once(self, job: str, claimed: Claimed, recall: asyncio.Event) -> Outcome | process.Ended:
        await self._listen()
        self._number += 1
        self._awaited = asyncio.get_running_loop().create_future()
        self._tell(Order("run", self._number, job, claimed))
        hurrying = asyncio.create_task(self._hurry(recall, self._number))
        try:
            return await self._awaited
        except asyncio.CancelledError:
            self._tell(Order("end", self._number))
            raise
        finally:
            self._awaited = None
            hurrying.cancel()

    async def _hurry(self, recall: asyncio.Event, number: int) -> None:
        await recall.wait()
        self._tell(Order("hurry", number))

    def _tell(self, order: Order) -> None:
        assert self._orders is not None
        self._orders.write(msgspec.json.encode(order) + b"\n")

    async def _listen(self) -> None:
        if self._listening is None:
            reader, self._orders = await asyncio.open_unix_connection(sock=self._sock)
            self._listening = asyncio.create_task(self._hear(reader))
        if self._listening.done():
            raise WardLostError

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        """Take in reports; one that nobody waits for any more is dropped."""
        try:
            while True:
                report = msgspec.json.decode(await reader.readline(), type=Report)
                data = await reader.readexactly(report.size)
                if report.number == self._number and self._awaited is not None and not self._awaited.done():
                    ended = process.Ended(report.exit_code, report.signum)
                    self._awaited.set_result(msgspec.msgpack.decode(data, type=Outcome) if data else ended)
        except (OSError, EOFError, msgspec.DecodeError):
            if self._awaited is not None and not self._awaited.done():
                self._awaited.set_exception(WardLostError())

    def close(self) -> None:
        """End the ward, and what runs in it."""
        if self._listening is not None:
            self._listening.cancel()
        if self._orders is not None:
            self._orders.close()
        self._sock.close()
