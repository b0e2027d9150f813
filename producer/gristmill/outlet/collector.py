"""The collector: takes results out of the store, makes them durable, and only then acks them.

One round is read, append and fsync (in a thread), ack. The rounds follow one another, so nothing is read twice; a round
carries what has gathered meanwhile, so fsyncs and trips are shared the more the busier it is. Between the rounds it
waits 20-250 ms when little comes, and not at all when a round was full.

Whatever dies: what was read and not yet durable is still in the store, what is durable and not yet acked is read again
and only acked, since the ledger knows the ordinal. So every result ends up in the ledger exactly once.

A record that is damaged is left where it is, unacked, and the others are taken; who collects to the end is told at the
end. One of another version stops the collector at once: a newer one can read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

import msgspec

from gristmill.contract.failure import CODES
from gristmill.contract.lifecycle import TERMINAL, JobState
from gristmill.contract.record import DamagedRecordError, Record
from gristmill.contract.record import decode as decode_record
from gristmill.outlet.errors import DamagedError, LeaseLostError
from gristmill.outlet.events import Event, Progress, Report, RolledBack
from gristmill.outlet.lease import CollectorLease
from gristmill.outlet.lines import encode_line, request_key, result_number
from gristmill.outlet.outage import Patience, StoppedError, wait_for
from gristmill.outlet.segments import Entry
from gristmill.outlet.workdir import Work
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import AckStatus

T = TypeVar("T")
Blocks = Mapping[int, Mapping[int, bytes]]

ROUND_BYTES = 8 << 20
MAX_DAMAGED = 100
"""With more damaged records than that, something is wrong with the store, and the collector stops at once."""
LEASE_TTL_MS = 30_000
_GATHER_S = 0.1
_FIRST_IDLE_S = 0.02
_MAX_IDLE_S = 0.25


class Until(StrEnum):
    """When `collect` ends by itself."""

    FINISHED = "finished"
    """The job is in a terminal state and everything is acked."""
    DRAINED = "drained"
    """Nothing is left to read now, whatever the state."""


class Collected(msgspec.Struct, frozen=True):
    """What one call of `collect` did.

    Attributes:
        state: the job's state when last seen; None when it was never asked.
        new: lines made durable by this call.
        repeated: records that were durable already and were only acked.
        acked: records acked.
        rolled_back: the store lost a suffix meanwhile, or may have (results were read again, or acked and unknown), so
            its count of failures may differ from the lines.
        finished: the end that `until` asked for was reached (else it was stopped).
        damaged: records that can't be read; they are still in the store.
    """

    state: JobState | None
    new: int
    repeated: int
    acked: int
    rolled_back: bool
    finished: bool
    damaged: int = 0


def _ignore(_: Event) -> None:
    pass


async def collect(
    queue: LeaseQueue,
    work: Work,
    *,
    token: str,
    holder: str = "",
    until: Until = Until.FINISHED,
    stop: asyncio.Event | None = None,
    take: bool = False,
    grow: Callable[[], object] | None = None,
    report: Report = _ignore,
    lease_ttl_ms: int = LEASE_TTL_MS,
    round_bytes: int = ROUND_BYTES,
) -> Collected:
    """Collect the job of `queue` into `work`'s ledger until the end that `until` names, or until `stop` is set.

    Args:
        token: this collector's own; names its lease.
        holder: who we are, for others' messages.
        stop: set it to end soon: what has been read is made durable and acked, the lease is released.
        take: take the lease over from whoever holds it.
        grow: called in a thread whenever lines may have become ready: `Grower.step`, or a writer to a stream.
        report: called on the loop with what happens (`events`).
        lease_ttl_ms: how long the lease outlives us.
        round_bytes: most record bytes held at once, about.

    Raises:
        CollectorBusyError: another collector holds the lease, and `take` is not set.
        LeaseLostError: another collector took it while we worked.
        JobNotFoundError: the job was removed.
        FormatError: a record of another version.
        DamagedError: records are damaged; raised at the end of the job, when all others are durable and acked, or when
            there are too many of them. Not when it is `until` drained: then they are counted.
        DiskError: not durable; nothing of it was acked. Open the work anew to go on.
    """
    stop = stop or asyncio.Event()
    lease = CollectorLease(queue, token, holder, lease_ttl_ms)
    collector = _Collector(queue, work, lease, stop, until, grow, report, round_bytes)
    try:
        await collector.patience.call(lambda: lease.take(force=take))
    except StoppedError:
        return collector.result(finished=False)
    keeper = asyncio.create_task(lease.keep())
    try:
        return await collector.run()
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        await lease.release()


class _Collector:
    """The rounds of one `collect`."""

    def __init__(
        self,
        queue: LeaseQueue,
        work: Work,
        lease: CollectorLease,
        stop: asyncio.Event,
        until: Until,
        grow: Callable[[], object] | None,
        report: Report,
        round_bytes: int,
    ) -> None:
        self._queue = queue
        self._work = work
        self._ledger = work.ledger
        self._lease = lease
        self._stop = stop
        self._until = until
        self._grow = grow
        self._report = report
        self._round_bytes = round_bytes
        self.patience = Patience(stop, report)
        self._state: JobState | None = None
        self._new = self._repeated = self._acked = self._unknown = 0
        self._rolled_back = False
        self._damaged: dict[int, int] = {}
        """Size of each record that can't be read, by index."""

    def result(self, *, finished: bool) -> Collected:
        self._look_for_rollback()
        doubtful = self._rolled_back or self._repeated > 0 or self._unknown > 0
        if self._damaged and finished and self._until is Until.FINISHED:
            raise DamagedError(self._queue.job, sorted(self._damaged))
        return Collected(
            self._state, self._new, self._repeated, self._acked, doubtful, finished, damaged=len(self._damaged)
        )

    async def run(self) -> Collected:
        idle_s = _FIRST_IDLE_S
        try:
            while True:
                blocks = await self._read()
                if blocks:
                    await self._round(blocks)
                    idle_s = _FIRST_IDLE_S
                elif await self._at_end():
                    return self.result(finished=True)
                full = _size(blocks) * 2 >= self._round_bytes
                if not full and await self._wait(_GATHER_S if blocks else idle_s):
                    return self.result(finished=False)
                idle_s = min(idle_s * 2, _MAX_IDLE_S)
        except StoppedError:
            return self.result(finished=False)

    async def _read(self) -> Blocks:
        if self._lease.lost:
            raise LeaseLostError(self._queue.job)
        blocks = await self.patience.call(lambda: self._queue.read_blocks(self._round_bytes))
        self._look_for_rollback()
        return self._without_damaged(blocks) if self._damaged else blocks

    def _without_damaged(self, blocks: Blocks) -> Blocks:
        left = {b: {i: r for i, r in records.items() if i not in self._damaged} for b, records in blocks.items()}
        return {block: records for block, records in left.items() if records}

    def _look_for_rollback(self) -> None:
        if self._queue.rolled_back:
            self._queue.rolled_back = False
            self._rolled_back = True
            self._report(RolledBack())

    async def _at_end(self) -> bool:
        """Whether an empty read was the end. A terminal state counts only when it was seen before that read."""
        await self._let_grow()
        if self._until is Until.DRAINED or self._state in TERMINAL:
            return True
        self._state = (await self.patience.call(self._queue.snapshot)).state
        return self._state in TERMINAL and not await self._more_after_end()

    async def _more_after_end(self) -> bool:
        blocks = await self._read()
        if blocks:
            await self._round(blocks)
        return bool(blocks)

    async def _wait(self, delay_s: float) -> bool:
        """Whether to stop now."""
        if self._state in TERMINAL:
            return False
        return await wait_for(self._stop, delay_s)

    async def _round(self, blocks: Blocks) -> None:
        new = await _in_thread(lambda: self._store(blocks))
        if len(self._damaged) > MAX_DAMAGED or sum(self._damaged.values()) * 2 > self._round_bytes:
            raise DamagedError(self._queue.job, sorted(self._damaged))
        blocks = self._without_damaged(blocks) if self._damaged else blocks
        self._new += new
        self._repeated += sum(map(len, blocks.values())) - new
        self._tell()
        await self._ack({block: list(records) for block, records in blocks.items()})
        self._tell()

    def _store(self, blocks: Blocks) -> int:
        """Runs in a thread; nothing else touches the work meanwhile.

        A result that came twice is noted before it is acked: afterwards no later process can know of it.
        """
        job = self._queue.job
        records: dict[int, Record] = {}
        legible = 0
        for block in blocks.values():
            for index, data in block.items():
                record = self._legible(index, data)
                if record is not None:
                    legible += 1
                    records.setdefault(record.detail.ordinal, record)
        new = self._ledger.append([_entry(job, records[ordinal]) for ordinal in self._ledger.absent(records)])
        if new < legible:
            self._work.doubt()
        if self._grow is not None:
            self._grow()
        return new

    def _legible(self, index: int, data: bytes) -> Record | None:
        """The record; None, and a note of it, when it is damaged."""
        try:
            return decode_record(data)
        except DamagedRecordError:
            self._damaged[index] = len(data)
            return None

    async def _let_grow(self) -> None:
        """Carried lines may be ready although no result came."""
        if self._grow is not None:
            await _in_thread(self._grow)

    async def _ack(self, indices: Mapping[int, list[int]]) -> None:
        for last_try in (False, True):
            reply = await self.patience.call(lambda: self._queue.ack(self._lease.token, indices))
            if reply.status is AckStatus.OK:
                self._acked += reply.acked
                self._unknown += reply.unknown
                return
            if reply.status is AckStatus.GONE:
                raise JobNotFoundError(self._queue.job)
            if not last_try:
                await self.patience.call(self._lease.retake)
        raise LeaseLostError(self._queue.job)

    def _tell(self) -> None:
        ledger = self._ledger
        self._report(Progress(ledger.new, ledger.new_failed, ledger.carried.count(), self._acked, ledger.line_bytes))


def _entry(job: str, record: Record) -> Entry:
    d = record.detail
    code = 0 if record.cls is None else CODES[record.cls]
    number = result_number(job, d.ordinal)
    return Entry(d.ordinal, request_key(d.custom_id, d.fingerprint), number, code, encode_line(job, record))


def _size(blocks: Blocks) -> int:
    return sum(len(data) for block in blocks.values() for data in block.values())


async def _in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread; a cancelled caller still waits for it, since it holds the files."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
