"""Feeding a job in the foreground, for `submit` and `retry`: until its input is durable, or until it has ended.

The user hears of the job's id at once, and again on stdout when the input is durable. Whether they heard decides what
the same command means when it is given again: see `was_never_told`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from gristmill import stdio
from gristmill.cli._early import EarlyFeeder
from gristmill.cli._errors import BadUsageError, CliError, ExitCode, NeedsPersonError
from gristmill.cli._feeding import FeederEnd, FeederKeeper
from gristmill.cli._interrupt import interrupts
from gristmill.cli._jobview import lines_fed
from gristmill.cli._making import new_job_id
from gristmill.cli._session import Store
from gristmill.cli._talk import Talk, say
from gristmill.cli._watching import Scale, Watcher, place_of, plain_bytes
from gristmill.contract.lifecycle import JobState
from gristmill.contract.manifest import Manifest
from gristmill.holders import holder, is_dead_here
from gristmill.intake.errors import InputError
from gristmill.intake.feed_spec import FeedSpec
from gristmill.intake.options import Recipe
from gristmill.intake.source import require_unchanged
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.registry import live_daemons
from gristmill.queue.replies import JobSnapshot, Role
from gristmill.queue.store import OUTAGES

DURABLE_ASK_MS = 2000
"""Shorter than the time-out of a call that waits for two places."""
DURABLE_PATIENCE_S = 30.0
_TOLD = "told"
"""Takes the place of the last feeder's name once the user knows how the command ended."""
_TOLD_CODES = {ExitCode.OK, ExitCode.FAILED_REQUESTS, ExitCode.ENDED_EARLY}


async def was_never_told(manifest: Manifest, snapshot: JobSnapshot) -> bool:
    """Whether the command that fed this closed job to its end was killed before its user heard of it.

    Such a command is the last feeder by name, and is a dead process of this machine: one that had told of the job has
    put `_TOLD` in its place.
    """
    if snapshot.state in (JobState.CANCELLED, JobState.EXPIRED) or not is_dead_here(snapshot.fed_by):
        return False
    if manifest.source is not None:
        try:
            await asyncio.to_thread(require_unchanged, manifest.source)
        except InputError:
            return False
    return True


async def require_resumable(manifest: Manifest, snapshot: JobSnapshot) -> None:
    """Return when a job that was not fed to its end can be fed on by this command.

    Raises:
        BadUsageError: its input has changed, or another process is feeding it.
    """
    line = lines_fed(snapshot)
    if manifest.source is not None:
        try:
            await asyncio.to_thread(require_unchanged, manifest.source)
        except InputError as error:
            raise BadUsageError(
                f"{manifest.source.path} has changed since job {manifest.job} was begun (fed up to line {line:,}): "
                f"put the old file back to go on, or `producer cancel {manifest.job}` and submit again"
            ) from error
    if snapshot.feeder is not None and not is_dead_here(snapshot.feeder.holder):
        raise BadUsageError(
            f"job {manifest.job} is being fed by {snapshot.feeder.holder}: `producer watch {manifest.job}`; "
            f"if that one is dead, its lease ends in {snapshot.feeder.expires_in_ms / 1000:.0f} s"
        )


async def make_durable(queue: LeaseQueue) -> None:
    """Wait until the job is on the store's disk, and on a replica where there is one; visibly, but not for ever.

    Raises:
        NeedsPersonError: it does not get there.
    """
    since_s, told = time.monotonic(), ""
    while missing := await _lacking(queue):
        if missing != told:
            say(f"waiting for {missing}")
            told = missing
        if time.monotonic() - since_s > DURABLE_PATIENCE_S:
            raise NeedsPersonError(
                f"job {queue.job} is not safe yet, after {DURABLE_PATIENCE_S:g} s of waiting for {missing}: look at "
                "the store's disk (appendfsync must not be `no`) and its replicas; the same command asks again"
            )


async def _lacking(queue: LeaseQueue) -> str:
    """What the job's safety waits for, in words; empty when it is safe."""
    try:
        return " and ".join(await queue.lacking(DURABLE_ASK_MS))
    except OUTAGES:
        return "the store to answer"


async def tell_daemons(store: Store, pool: str) -> None:
    """Warn when nobody is there to work on a job of `pool`."""
    if not await live_daemons(store.redis, pool):
        say("no daemon connected: the job waits until one is started with `gristmilld up`")


class Submission:
    """Feeding one job that stands in the store.

    Args:
        path: its input, to guess progress by.
        out: where its results are collected meanwhile; None only feeds.
        verb: the command that does it.
        print_id: the job's id goes to stdout once its input is durable.
        early: a feeder that runs already, if there is one.
    """

    def __init__(
        self,
        store: Store,
        queue: LeaseQueue,
        recipe: Recipe,
        path: Path,
        pool: str,
        *,
        verb: str,
        out: str | None = None,
        as_json: bool = False,
        print_id: bool = True,
        early: EarlyFeeder | None = None,
    ) -> None:
        self._store = store
        self._queue = queue
        self._recipe = recipe
        self._pool = pool
        self._verb = verb
        self._out = out
        self._as_json = as_json
        self._print_id = print_id
        self._early = early
        self._scale = Scale(plain_bytes(path), recipe.sample or recipe.limit)

    async def run(self) -> int:
        if self._out is not None:
            return await self._wait(self._out)
        return await self._feed_only()

    async def _keeper(self) -> Callable[[Callable[[str], None]], FeederKeeper]:
        """Makes a feeder that talks to whom it is given; it takes over the lease that a dead neighbour left."""
        snapshot = await self._queue.snapshot()
        spec = FeedSpec(
            redis_url=self._store.url,
            job=self._queue.job,
            token=snapshot.feeder.token if snapshot.feeder is not None else f"{self._verb}-{new_job_id()}",
            holder=holder(f"producer {self._verb}"),
            options=self._recipe.options,
            strict=self._recipe.strict,
            limit=self._recipe.limit,
            sample=self._recipe.sample,
            skipped=self._recipe.skipped,
        )
        return lambda tell: FeederKeeper(
            msgspec.json.encode(spec), self._line, tell, self._store.descriptors, self._early
        )

    async def _line(self) -> int:
        return place_of(await self._queue.snapshot()).line

    async def _feed_only(self) -> int:
        manifest = await self._queue.manifest()
        with Talk(manifest.name) as talk:
            keeper = (await self._keeper())(talk.say)
            watcher = Watcher(self._queue, self._store, talk, scale=self._scale)
            display = asyncio.create_task(watcher.run())
            feeding = asyncio.create_task(keeper.run())
            with interrupts(keeper.kill, talk) as asked:
                signalled = asyncio.create_task(asked.wait())
                await asyncio.wait({feeding, signalled}, return_when=asyncio.FIRST_COMPLETED)
                await keeper.stop() if asked.is_set() else None
                end = await feeding
            for task in (signalled, display):
                task.cancel()
            await asyncio.gather(signalled, display, return_exceptions=True)
        return await self._fed(end, interrupted=asked.is_set())

    async def _fed(self, end: FeederEnd, *, interrupted: bool) -> int:
        snapshot = await self._queue.snapshot()
        if interrupted and not snapshot.closed:
            say(f"stopped at line {lines_fed(snapshot):,}; the same command goes on from there")
            return ExitCode.INTERRUPTED
        if end.code:
            error = BadUsageError if end.code == ExitCode.USAGE else CliError
            why = "see above" if end.told else end.message
            raise error(f"job {self._queue.job}: feeding ended at line {lines_fed(snapshot):,}: {why}")
        await make_durable(self._queue)
        if not (await self._queue.snapshot()).closed:  # the store has lost its end meanwhile
            return await self._feed_only()
        await tell_daemons(self._store, self._pool)
        if self._print_id:
            stdio.put(self._queue.job)
        await self._told()
        return 0

    async def _told(self) -> None:
        """The user has the job's id, or its results: the same command, given again, means another job."""
        with contextlib.suppress(JobNotFoundError):
            await self._queue.take_lease(Role.FEEDER, _TOLD, _TOLD, 1000, force=True)
            await self._queue.release_lease(Role.FEEDER, _TOLD)

    async def _wait(self, out: str) -> int:
        from gristmill.cli._results import collect_into  # the outlet: without --wait nothing else needs it

        await tell_daemons(self._store, self._pool)
        code = await collect_into(
            out,
            self._queue,
            self._store,
            as_json=self._as_json,
            make_feeder=await self._keeper(),
            scale=self._scale,
        )
        if code in _TOLD_CODES:
            await self._told()
        return code
