"""Results of one job out of the store into the caller's hands.

A result is acked, and so freed in the store, only after it was handed over: when the caller asks for the next one. What
was read and not handed over when a reader ends is still in the store, and the next reader gets it. So a result is lost
neither with an iteration that stops nor with a process that dies, as long as the store lives. A program that dies
between taking the last result and asking for another gets it again from a store that outlives it.

In the order of the requests, a result may have to wait for an earlier one. Some megabytes of such results are held
here; beyond that they stay in the store, whose own mark then holds back fresh requests.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from itertools import islice

import msgspec

from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import TERMINAL, JobState, PauseReason
from gristmill.contract.record import DamagedRecordError
from gristmill.contract.record import decode as decode_record
from gristmill.outlet.errors import LeaseLostError
from gristmill.outlet.lease import CollectorLease
from gristmill.outlet.outage import Patience
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import AckStatus
from gristmill.sdk.errors import JobPausedError
from gristmill.sdk.result import Error, Result, from_record

BATCH = 256
READ_BYTES = 8 << 20
HOLD_BYTES = 128 << 20
LEASE_TTL_MS = 30_000
_FIRST_IDLE_S, _MAX_IDLE_S = 0.005, 0.1
_LOOK_EVERY_S = 0.05


class Delivered:
    """Which results the caller has had; 1 bit each."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self.count = 0

    def add(self, index: int) -> None:
        byte, bit = index >> 3, 1 << (index & 7)
        if byte >= len(self._bits):
            self._bits.extend(bytes(max(1024, byte + 1 - len(self._bits))))
        if not self._bits[byte] & bit:
            self._bits[byte] |= bit
            self.count += 1

    def __contains__(self, index: int) -> bool:
        byte = index >> 3
        return byte < len(self._bits) and bool(self._bits[byte] & 1 << (index & 7))


def _legible(index: int, data: bytes) -> Result:
    """The result in `data`; a failure where that is damaged: the other results are good, and the caller asks again."""
    try:
        return from_record(decode_record(data))
    except DamagedRecordError:
        return Result(index=index, error=Error(FailureClass.TRANSIENT, "its result was damaged in the store"))


class _Held(msgspec.Struct):
    """A result that was read and not handed over."""

    index: int
    size: int
    result: Result


class Delivery:
    """One reading of one job's results; `open` first, `close` at the end, also after an error.

    Args:
        queue: of the job.
        delivered: what earlier readings have handed over; this one adds to it.
        ordered: in the order of the requests, else as they come.
        trouble: raises when something has gone wrong that no waiting mends.
        answered: called when an answer has been read.
        holder: who we are, for others' messages.

    Attributes:
        handed: how many of the last batch the caller has had; the caller's to count.
    """

    def __init__(
        self,
        queue: LeaseQueue,
        delivered: Delivered,
        *,
        ordered: bool,
        trouble: Callable[[], None],
        answered: Callable[[], None],
        holder: str,
    ) -> None:
        self.handed = 0
        self._answered = answered
        self._closed = False
        self._queue = queue
        self._delivered = delivered
        self._ordered = ordered
        self._trouble = trouble
        self._lease = CollectorLease(queue, f"sdk-{secrets.token_hex(6)}", holder, LEASE_TTL_MS)
        self._patience = Patience(asyncio.Event(), lambda _: None)
        self._keeper: asyncio.Task[None] | None = None
        self._seen: dict[int, set[int]] = {}
        self._held: dict[int, _Held] = {}
        self._held_bytes = 0
        self._given: list[_Held] = []
        self._next = 0
        self._below: int | None = None
        self._ended = False
        self._looked_s = 0.0
        self._now = asyncio.get_running_loop().time

    async def open(self) -> None:
        """Take the collector's lease.

        Raises:
            CollectorBusyError: somebody else collects this job.
        """
        await self._patience.call(self._lease.take)
        self._keeper = asyncio.create_task(self._lease.keep())

    async def close(self) -> None:
        """Ack what was handed over, and give the lease back; the rest stays in the store. May be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._ack_given()
        finally:
            if self._keeper is not None:
                self._keeper.cancel()
                await asyncio.gather(self._keeper, return_exceptions=True)
            await self._lease.release()

    async def next(self) -> list[Result]:
        """The next results, at least one; none at the end of the job, or once closed. Acks what was handed over.

        Raises:
            JobPausedError: the job waits for a person, and nothing is left to hand over.
            LeaseLostError, JobNotFoundError: somebody else collects the job now, or has removed it.
            What `trouble` raises.
        """
        await self._ack_given()
        idle_s = _FIRST_IDLE_S
        while not self._closed:
            batch = self._batch()
            if batch:
                self._given = batch
                return [one.result for one in batch]
            if await self._read():
                idle_s = _FIRST_IDLE_S
                continue
            self._trouble()
            if await self._at_end():
                return []
            await asyncio.sleep(idle_s)
            idle_s = min(idle_s * 2, _MAX_IDLE_S)
        return []

    # -- handing over

    def _batch(self) -> list[_Held]:
        if not self._ordered:
            return [self._pop(index) for index in list(islice(self._held, BATCH))]
        batch: list[_Held] = []
        while len(batch) < BATCH:
            while self._next in self._delivered:
                self._next += 1
            if self._next not in self._held:
                break
            batch.append(self._pop(self._next))
            self._next += 1
        return batch

    def _pop(self, index: int) -> _Held:
        one = self._held.pop(index)
        self._held_bytes -= one.size
        if self._below is not None and self._held_bytes < HOLD_BYTES // 4:
            self._below = None
        return one

    async def _ack_given(self) -> None:
        given, self._given, self.handed = self._given[: self.handed], [], 0
        blocks: dict[int, list[int]] = {}
        for one in given:
            self._delivered.add(one.index)
            blocks.setdefault(one.index // self._queue.block_size, []).append(one.index)
        if blocks:
            await self._ack(blocks)

    async def _ack(self, blocks: Mapping[int, list[int]]) -> None:
        for last_try in (False, True):
            reply = await self._patience.call(lambda: self._queue.ack(self._lease.token, blocks))
            if reply.status is AckStatus.OK:
                for block, indices in blocks.items():
                    self._seen.get(block, set()).difference_update(indices)
                    if not self._seen.get(block):
                        self._seen.pop(block, None)
                return
            if reply.status is AckStatus.GONE:
                raise JobNotFoundError(self._queue.job)
            if not last_try:
                await self._patience.call(self._lease.retake)
        raise LeaseLostError(self._queue.job)

    # -- reading

    async def _read(self) -> bool:
        """Take what is new in the store; whether there was anything."""
        if self._lease.lost:
            raise LeaseLostError(self._queue.job)
        room = max(1, HOLD_BYTES - self._held_bytes)
        most = min(READ_BYTES, room)
        blocks = await self._patience.call(lambda: self._queue.read_unseen(self._seen, most, below=self._below))
        again: dict[int, list[int]] = {}
        for block, records in blocks.items():
            for index, data in records.items():
                self._seen.setdefault(block, set()).add(index)
                if index in self._delivered:  # run again after the store lost a suffix: the caller has had it
                    again.setdefault(block, []).append(index)
                    continue
                result = _legible(index, data)
                if result.ok:
                    self._answered()
                self._held[index] = _Held(index, len(data), result)
                self._held_bytes += len(data)
        if again:
            await self._ack(again)
        if self._held_bytes >= HOLD_BYTES:
            self._leave_in_store()
        return bool(blocks)

    def _leave_in_store(self) -> None:
        """Let go of what will be handed over last, and don't read it again before there is room."""
        for index in sorted(self._held, reverse=True):
            if self._held_bytes <= HOLD_BYTES // 2 or len(self._held) == 1:
                break
            block = index // self._queue.block_size
            self._pop(index)
            self._seen.get(block, set()).discard(index)
            self._below = max(block, self._next // self._queue.block_size + 1)

    # -- the end

    async def _at_end(self) -> bool:
        """Whether nothing more will come. A terminal state counts only when it was seen before an empty read."""
        if self._ended and self._below is None:
            if not self._held:
                return True
            self._next = min(self._held)  # a cancelled job has gaps
            return False
        if self._now() - self._looked_s < _LOOK_EVERY_S:
            return False
        snapshot = await self._patience.call(self._queue.snapshot)
        self._looked_s = self._now()
        self._ended = snapshot.state in TERMINAL
        if snapshot.state is JobState.PAUSED and snapshot.reason is not PauseReason.USER and not snapshot.in_flight:
            if await self._read():
                return False
            raise JobPausedError(self._queue.job, str(snapshot.reason), snapshot.detail)
        return False
