"""The ward's own process: it forks a cell for each request that it is told to run, and tells how the cell ended.

One thread and no event loop, for it forks. One request at a time. It ends with its worker, and a cell with it.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
from typing import Literal

import msgspec

from gristmill.queue.replies import Claimed
from gristmilld import process
from gristmilld.config import WorkerSpec
from gristmilld.worker.cell import run_cell

_READ_BYTES = 1 << 20


class Order(msgspec.Struct, frozen=True):
    """What a worker tells its ward, one line of JSON: run a request, hurry it (what only waits ends), or end it."""

    what: Literal["run", "hurry", "end"]
    number: int
    job: str = ""
    claimed: Claimed | None = None


class Report(msgspec.Struct, frozen=True):
    """How a cell ended, one line of JSON. `size` bytes follow, its outcome in MessagePack; none when it died."""

    number: int
    size: int
    exit_code: int
    signum: int


class _Cell(msgspec.Struct):
    """The cell that runs, and what it has said so far."""

    number: int
    pid: int
    reply_fd: int
    said: bytearray


class Warden:
    """See the module's head.

    Args:
        spec: of the worker.
        sock: the way to the worker; orders come from it, reports go to it.
    """

    def __init__(self, spec: WorkerSpec, sock: socket.socket) -> None:
        self._spec = spec
        self._sock = sock
        self._selector = selectors.DefaultSelector()
        self._heard = b""
        self._cell: _Cell | None = None
        self._lifeline_fds = (-1, -1)

    def serve(self) -> int:
        """Do what is ordered until the worker is gone; the process's exit code."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, signal.SIG_IGN)  # meant for the worker, when all of a group are told to stop
        self._lifeline_fds = os.pipe()
        self._selector.register(self._sock, selectors.EVENT_READ)
        try:
            while self._turn():
                pass
        except ConnectionError:
            pass
        self._end()
        return 0

    def _turn(self) -> bool:
        """Wait for something and act on it; False once the worker is gone."""
        for key, _ in self._selector.select():
            if key.fileobj is not self._sock:
                self._read_reply()
            elif data := self._sock.recv(_READ_BYTES):
                *lines, self._heard = (self._heard + data).split(b"\n")
                for line in lines:
                    self._obey(msgspec.json.decode(line, type=Order))
            else:
                return False
        return True

    def _obey(self, order: Order) -> None:
        if order.what == "run":
            assert order.claimed is not None
            self._start(order.number, order.job, order.claimed)
        elif self._cell is None or order.number != self._cell.number:
            return  # it has ended meanwhile
        elif order.what == "hurry":
            process.send(self._cell.pid, signal.SIGTERM)
        else:
            self._end()

    def _start(self, number: int, job: str, claimed: Claimed) -> None:
        read_fd, write_fd = os.pipe()
        lifeline_fd = self._lifeline_fds[0]
        try:
            pid = process.fork(
                lambda: run_cell(self._spec, job, claimed, write_fd, lifeline_fd),
                f"gm-cell-{self._spec.slot}",
                keep={write_fd, lifeline_fd},
            )
        finally:
            os.close(write_fd)
        self._cell = _Cell(number, pid, read_fd, bytearray())
        self._selector.register(read_fd, selectors.EVENT_READ)

    def _read_reply(self) -> None:
        """Take in what the cell says; at its end, report."""
        cell = self._cell
        if cell is None:
            return  # ended by an order of the same turn
        data = os.read(cell.reply_fd, _READ_BYTES)
        if data:
            cell.said += data
            return
        ended = self._bury()
        size = len(cell.said) if ended == process.Ended() else 0
        self._sock.sendall(msgspec.json.encode(Report(cell.number, size, ended.exit_code, ended.signum)) + b"\n")
        self._sock.sendall(cell.said[:size])

    def _end(self) -> None:
        """Kill the cell, if one runs; nobody waits for what becomes of it."""
        if self._cell is not None:
            process.send(self._cell.pid, signal.SIGKILL)
            self._bury()

    def _bury(self) -> process.Ended:
        cell = self._cell
        assert cell is not None
        self._cell = None
        self._selector.unregister(cell.reply_fd)
        os.close(cell.reply_fd)
        return process.bury(cell.pid)
