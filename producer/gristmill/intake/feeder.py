"""The feeder: input lines into sealed payload runs, resumable at every run.

What holds, whatever dies:

- A run and the cursor behind it are sealed in one step, so a feeder that starts again goes on exactly after the last
  sealed run.
- A seal whose reply was lost is asked again with the same stage and cursor: `DUP` with our own cursor means that it
  had been taken.
- Whenever the store disagrees (`GAP`, `TORN` for good, someone else's `DUP`), the store is right: the feeder goes back
  to the store's cursor and reads the input again from there. Fingerprints and frames come out the same.
- `FULL` keeps the stage and repeats only the seal; the lease is renewed while it waits.
- Memory is bounded by bytes: one run, what the pipeline holds ahead, and the hot pictures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from gristmill.contract.manifest import Source
from gristmill.intake.duplicates import require_unique
from gristmill.intake.encode import Entry
from gristmill.intake.errors import FeedError, InputError
from gristmill.intake.feeder_store import FeederStore, Patience
from gristmill.intake.lines_seen import LinesSeen, Notice, Report
from gristmill.intake.options import EncodeOptions, OnBadLine
from gristmill.intake.pictures import PictureStore
from gristmill.intake.pipeline import Pipeline, Start
from gristmill.intake.plan import Plan
from gristmill.intake.runs import Cursor, RunBuilder
from gristmill.intake.selection import select
from gristmill.intake.source import require_unchanged
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import CloseStatus, Run, SealReply, SealStatus

RUN_AGE_S = 0.2
_TORN_TRIES = 3


class Entries(Protocol):
    """What is fed: the entries of an input in order, as `Pipeline` gives them."""

    @property
    def ended(self) -> bool:
        """Nothing will come any more."""

    async def ready(self, timeout_s: float | None = None) -> list[Entry]:
        """The next entries: at least one unless the input has ended or the time is up."""

    async def close(self) -> None:
        """Drop what is ahead."""


OpenEntries = Callable[[Start], Entries]


class FeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of feeding.

    Attributes:
        lines: lines that are part of the job: sealed + carried.
        sealed: requests (and refusals) in the store.
        carried: lines that an earlier run had finished.
        closed: the whole input is in, the job knows its n.
        ended: why feeding ended early though nothing is wrong here: `cancelled`, `gone`; else "".
        refused: lines seen by this feeder that can't be sent.
        duplicates: lines seen by this feeder that repeat a custom_id.
        streams_removed: lines seen by this feeder that asked for a stream.
    """

    lines: int
    sealed: int
    carried: int
    closed: bool
    ended: str = ""
    refused: int = 0
    duplicates: int = 0
    streams_removed: int = 0


class _RewindError(Exception):
    """The store stands elsewhere."""

    def __init__(self, runs: int, cursor: Cursor) -> None:
        self.runs = runs
        self.cursor = cursor


class _EndedError(Exception):
    """The job takes no more requests; the argument says why."""


async def feed(
    queue: LeaseQueue,
    source: Source,
    options: EncodeOptions,
    plan: Plan | None,
    token: str,
    holder: str,
    report: Report,
    *,
    strict: bool = False,
    limit: int | None = None,
    sample: int | None = None,
    only: Sequence[int] | None = None,
    skipped: Sequence[int] = (),
) -> FeedResult:
    """Feed the job from its input, from the start or from where an earlier feeder stopped, until it is closed.

    `only` names some of the lines that `limit` and `sample` choose, by the ordinals that these would have: a retry's.
    The places `skipped` have none.
    Cancelling the task releases the lease; what is sealed stays.

    Raises:
        InputError: the input is unreadable or has changed, has a duplicate id (`strict`), or a bad line (`fail`).
        FeedError: another feeder holds the lease, the job is gone at the start, or the store refuses us.
    """
    await asyncio.to_thread(require_unchanged, source)
    pictures = PictureStore(options, str(Path(source.path).parent))
    store = FeederStore(queue, token, holder, report, pictures.stats)
    seen = LinesSeen(report, on_bad_line=options.on_bad_line)
    most = options.max_line_bytes
    try:
        await store.take()
        if strict:
            await asyncio.to_thread(
                require_unique, source.path, max_line_bytes=most, limit=limit, arrays=options.arrays
            )
        selection = await asyncio.to_thread(
            select, source.path, limit, sample, max_line_bytes=most, arrays=options.arrays
        )
        if only is not None:
            selection = selection.only(only, skipped)

        def open_pipeline(start: Start) -> Pipeline:
            take = None if plan is None else plan.take
            return Pipeline(source.path, options, pictures, start=start, selection=selection, take=take)

        return await _Feeder(store, source.path, open_pipeline, options.on_bad_line, plan, seen, report).run()
    finally:
        await asyncio.shield(_wind_up(store, pictures, seen))


async def feed_entries(
    queue: LeaseQueue,
    open_entries: OpenEntries,
    pictures: PictureStore,
    token: str,
    holder: str,
    report: Report,
    *,
    run_age_s: float,
) -> FeedResult:
    """Feed the job from entries that do not come from a file, until they end and the job is closed.

    Args:
        open_entries: the entries from a place on; asked for a place again when the store has lost its latest runs.
        pictures: closed at the end.
        run_age_s: a run waits no longer than this for more requests.

    Raises:
        FeedError: see `feed`; and what `open_entries` and its entries raise.
    """
    store = FeederStore(queue, token, holder, report, pictures.stats)
    seen = LinesSeen(report, on_bad_line="record")
    try:
        await store.take()
        return await _Feeder(store, "", open_entries, "record", None, seen, report, run_age_s).run()
    finally:
        await asyncio.shield(_wind_up(store, pictures, seen))


async def _wind_up(store: FeederStore, pictures: PictureStore, seen: LinesSeen) -> None:
    await store.release()
    await pictures.close()
    seen.close()


class _Feeder:
    """One feeding of one job."""

    def __init__(
        self,
        store: FeederStore,
        name: str,
        open_entries: OpenEntries,
        on_bad_line: OnBadLine,
        plan: Plan | None,
        seen: LinesSeen,
        report: Report,
        run_age_s: float = RUN_AGE_S,
    ) -> None:
        self._store = store
        self._name = name
        self._open = open_entries
        self._on_bad_line = on_bad_line
        self._plan = plan
        self._seen = seen
        self._report = report
        self._run_age_s = run_age_s
        self._loop = asyncio.get_running_loop()
        self._stand(0, Cursor())

    def _stand(self, runs: int, cursor: Cursor) -> None:
        """Take our place after `runs` sealed runs."""
        self._line, self._offset, self._place = cursor.line, cursor.offset, cursor.place
        self._ordinal, self._carried = cursor.ordinal, cursor.carried
        self._begin_run(runs, cursor.index)

    def _begin_run(self, run: int, first: int) -> None:
        self._run = RunBuilder(run, first, begun_at_s=self._loop.time())

    async def run(self) -> FeedResult:
        snapshot = await self._store.call(self._store.queue.snapshot)
        self._stand(snapshot.sealed_runs, Cursor.decode(snapshot.cursor))
        if snapshot.closed:
            return self._result(closed=True)
        try:
            while True:
                try:
                    await self._pass()
                    await asyncio.to_thread(self._seen.sum_up)
                    return self._result(closed=True)
                except _RewindError as rewind:
                    self._report(
                        Notice("rewound", f"the store stands at line {rewind.cursor.line}: going on from there")
                    )
                    self._stand(rewind.runs, rewind.cursor)
        except _EndedError as ended:
            return self._result(closed=False, ended=str(ended))

    def _result(self, *, closed: bool, ended: str = "") -> FeedResult:
        return FeedResult(
            lines=self._run.first + self._carried,
            sealed=self._run.first,
            carried=self._carried,
            closed=closed,
            ended=ended,
            refused=self._seen.refused,
            duplicates=self._seen.duplicates,
            streams_removed=self._seen.streams_removed,
        )

    async def _pass(self) -> None:
        """From where we stand to the end of the input, then close."""
        if self._plan is not None:
            self._plan.rewind(self._carried)
        pipeline = self._open(self._cursor().start)
        try:
            while not pipeline.ended:
                await self._step(pipeline)
        finally:
            await pipeline.close()
        if self._run.count:
            await self._seal()
        await self._close()

    async def _step(self, pipeline: Entries) -> None:
        timeout_s = None
        if self._run.count:
            timeout_s = max(0.0, self._run.begun_at_s + self._run_age_s - self._loop.time())
        for entry in await pipeline.ready(timeout_s):
            self._take(entry)
            if self._run.full:
                await self._seal()
        if self._run.count and self._loop.time() >= self._run.begun_at_s + self._run_age_s:
            await self._seal()

    def _take(self, entry: Entry) -> None:
        """Into the run, or onto the carried lines, or past it."""
        self._seen.see(entry)
        self._line, self._offset, self._place = entry.line, entry.offset_after, entry.place + 1
        if entry.refused is not None and self._on_bad_line != "record":
            if self._on_bad_line == "fail":
                raise InputError(f"{self._name}: line {entry.line} {entry.refused.reason}")
            return
        if entry.carried is not None and self._plan is not None:
            self._plan.carry(self._ordinal, entry.carried)
            self._carried += 1
        else:
            if not self._run.count:
                self._run.begun_at_s = self._loop.time()
            self._run.add(entry, self._ordinal)
        self._ordinal += 1

    def _cursor(self) -> Cursor:
        return Cursor(
            line=self._line,
            offset=self._offset,
            place=self._place,
            ordinal=self._ordinal,
            index=self._run.first + self._run.count,
            carried=self._carried,
        )

    async def _seal(self) -> None:
        """Seal the run and begin the next.

        Raises:
            _RewindError, _EndedError: what the store said instead.
            FeedError: the lease is someone else's now.
        """
        if self._plan is not None:
            self._plan.flush()
        run, cursor = self._run, self._cursor().encode()
        torn = 0
        while torn < _TORN_TRIES:
            staged = await self._store.stage(run.fields)
            sealed = Run(
                run=run.run, first=run.first, count=run.count, bytes=staged, fields=len(run.fields), cursor=cursor
            )
            reply = await self._seal_stage(sealed)
            if reply.status is SealStatus.OK or (reply.status is SealStatus.DUP and reply.cursor == cursor):
                self._begin_run(run.run + 1, run.first + run.count)
                return
            if reply.status is SealStatus.LOST:
                await self._store.retake()
            elif reply.status is SealStatus.TORN:
                torn += 1
            else:
                _give_way(reply)
        raise await self._rewind()

    async def _seal_stage(self, sealed: Run) -> SealReply:
        """Ask until the store says something other than FULL; each asking lengthens the stage's life."""
        patience = Patience(self._report, "the store holds as much as it may; results must come in first")
        while True:
            reply = await self._store.call(lambda: self._store.queue.seal(self._store.token, sealed))
            self._store.stats.waiting = reply.status is SealStatus.FULL
            if not self._store.stats.waiting:
                patience.over()
                return reply
            await patience.wait()

    async def _close(self) -> None:
        if self._plan is not None:
            self._plan.flush()
        runs, n = self._run.run, self._run.first
        reply = await self._store.call(lambda: self._store.queue.close(runs, n))
        if reply.status is CloseStatus.GAP:
            raise await self._rewind()
        if reply.status is not CloseStatus.OK:
            raise _EndedError(reply.status.lower())

    async def _rewind(self) -> _RewindError:
        snapshot = await self._store.call(self._store.queue.snapshot)
        return _RewindError(snapshot.sealed_runs, Cursor.decode(snapshot.cursor))


def _give_way(reply: SealReply) -> None:
    """Raise what a seal that was not taken means."""
    if reply.status in (SealStatus.CANCELLED, SealStatus.GONE):
        raise _EndedError(reply.status.lower())
    if reply.status is SealStatus.CLOSED:
        raise FeedError("the job was closed by another feeder: `producer status` shows what it holds")
    raise _RewindError(reply.sealed_runs, Cursor.decode(reply.cursor))
