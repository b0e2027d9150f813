"""`producer submit` from end to end.

The same command finds the job that it began before by the digest of input path and options: a job that is not closed,
has not ended, and whose feeder is lost. Its feeder then goes on after the last sealed run. A live feeder elsewhere, or
an input that has changed meanwhile, is refused. A closed job is found, too, when the command that fed it died before it
could say so (see `_was_never_told`): who gives the command again then gets that job, and pays for nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
from redis.exceptions import RedisError

from gristmill.cli import _making
from gristmill.cli._errors import BadUsageError, CliError, ExitCode
from gristmill.cli._feeding import FeederEnd, FeederKeeper
from gristmill.cli._interrupt import interrupts
from gristmill.cli._jobview import lines_fed
from gristmill.cli._neighbours import holder, is_dead_neighbour
from gristmill.cli._options import JobOptions, StoreOptions
from gristmill.cli._output import spare_input
from gristmill.cli._results import collect_into
from gristmill.cli._session import Store, api_key, base_urls, open_store
from gristmill.cli._talk import Talk, say
from gristmill.cli._watching import Scale, Watcher, place_of, plain_bytes
from gristmill.contract.lifecycle import TERMINAL, JobState
from gristmill.contract.manifest import Manifest
from gristmill.embedded import default_state_dir
from gristmill.intake.errors import InputError
from gristmill.intake.feed_main import FeedSpec
from gristmill.intake.options import EncodeOptions
from gristmill.intake.source import input_digest, require_unchanged
from gristmill.preflight import preflight
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.registry import list_jobs, live_daemons, now_ms
from gristmill.queue.replies import JobSnapshot, Role

WAITAOF_MS = 5000
_TOLD = "told"
"""Takes the place of the last feeder's name once the user knows how the command ended."""
_TOLD_CODES = {ExitCode.OK, ExitCode.FAILED_REQUESTS, ExitCode.ENDED_EARLY}


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `producer submit` was told; `out` is set with ``--wait``."""

    job: JobOptions
    store: StoreOptions
    out: str | None
    pool: str
    as_json: bool


async def submit(options: SubmitOptions) -> int:
    """Feed a job in the foreground; the exit code.

    Raises:
        CliError: a sentence and an exit code.
    """
    job = options.job
    spool = (options.store.state_dir or default_state_dir()).absolute() / "spool"
    if options.out is not None and job.input != _making.STDIN:
        spare_input(options.out, job.input)
    data = await asyncio.to_thread(_making.open_input, job.input, spool)
    encode = _making.encode_options(job, inline=True)
    try:
        async with open_store(options.store) as store:
            encode = await asyncio.to_thread(_with_model, job, encode, data.path)
            queue = await _begun_before(store, data, encode, job) or await _create(store, data, encode, options)
            say(f"job {queue.job}")
            return await _Submission(options, store, queue, data, encode).run()
    finally:
        if data.spooled:
            data.path.unlink(missing_ok=True)


def _with_model(job: JobOptions, encode: EncodeOptions, path: Path) -> EncodeOptions:
    """A model for lines that name none, where the endpoints are known here; the daemon knows them otherwise."""
    urls = [e for e in job.endpoints if "://" in e]
    if encode.model is not None or _making.names_model(encode, path):
        return encode
    return _making.with_model(encode, path, preflight(base_urls(tuple(urls)), api_key()) if urls else [])


async def _begun_before(store: Store, data: _making.Input, encode: EncodeOptions, job: JobOptions) -> LeaseQueue | None:
    """The job that this command began and did not feed to the end.

    Raises:
        BadUsageError: the input has changed since, or another process is feeding it.
    """
    digest = input_digest(data.path, encode, limit=job.limit, sample=job.sample)
    for row in await list_jobs(store.redis):
        try:
            queue = await LeaseQueue.attach(store.redis, row.job)
            manifest, snapshot = await queue.manifest(), await queue.snapshot()
        except JobNotFoundError:
            continue
        if manifest.input_digest != digest:
            continue
        if snapshot.closed:
            if await _was_never_told(manifest, snapshot):
                return queue
        elif snapshot.state not in TERMINAL:
            await _require_resumable(manifest, snapshot)
            return queue
    return None


async def _require_resumable(manifest: Manifest, snapshot: JobSnapshot) -> None:
    line = lines_fed(snapshot)
    if manifest.source is not None:
        try:
            await asyncio.to_thread(require_unchanged, manifest.source)
        except InputError as error:
            raise BadUsageError(
                f"{manifest.source.path} has changed since job {manifest.job} was begun (fed up to line {line:,}): "
                f"put the old file back to go on, or `producer cancel {manifest.job}` and submit again"
            ) from error
    if snapshot.feeder is not None and not is_dead_neighbour(snapshot.feeder.holder):
        raise BadUsageError(
            f"job {manifest.job} is being fed by {snapshot.feeder.holder}: `producer watch {manifest.job}`; "
            f"if that one is dead, its lease ends in {snapshot.feeder.expires_in_ms / 1000:.0f} s"
        )


async def _was_never_told(manifest: Manifest, snapshot: JobSnapshot) -> bool:
    """Whether the command that fed this closed job to its end was killed before its user heard of it.

    Such a command is the last feeder by name, and is a dead process of this machine: one that had told of the job has
    put `_TOLD` in its place.
    """
    if snapshot.state in (JobState.CANCELLED, JobState.EXPIRED) or not is_dead_neighbour(snapshot.fed_by):
        return False
    if manifest.source is not None:
        try:
            await asyncio.to_thread(require_unchanged, manifest.source)
        except InputError:
            return False
    return True


async def _create(store: Store, data: _making.Input, encode: EncodeOptions, options: SubmitOptions) -> LeaseQueue:
    job = options.job
    endpoints = [e if "://" not in e else base_urls((e,))[0] for e in job.endpoints]
    manifest = _making.make_manifest(
        job,
        encode,
        data.source,
        digest=input_digest(data.path, encode, limit=job.limit, sample=job.sample),
        endpoints=endpoints,
        pool=options.pool,
        now_ms=await now_ms(store.redis),
    )
    return await LeaseQueue.create(store.redis, manifest)


class _Submission:
    """Feeding one job that stands in the store."""

    def __init__(
        self, options: SubmitOptions, store: Store, queue: LeaseQueue, data: _making.Input, encode: EncodeOptions
    ) -> None:
        self._options = options
        self._store = store
        self._queue = queue
        self._data = data
        self._encode = encode
        self._scale = Scale(plain_bytes(data.path), options.job.sample or options.job.limit)

    async def run(self) -> int:
        if self._options.out is not None:
            return await self._wait(self._options.out)
        return await self._feed_only()

    async def _keeper(self) -> Callable[[Callable[[str], None]], FeederKeeper]:
        """Makes a feeder that talks to whom it is given; it takes over the lease that a dead neighbour left."""
        snapshot = await self._queue.snapshot()
        spec = FeedSpec(
            redis_url=self._store.url,
            job=self._queue.job,
            token=snapshot.feeder.token if snapshot.feeder is not None else f"submit-{_making.new_job_id()}",
            holder=holder("submit"),
            options=self._encode,
            strict=self._options.job.strict,
            limit=self._options.job.limit,
            sample=self._options.job.sample,
        )
        return lambda tell: FeederKeeper(msgspec.json.encode(spec), self._line, tell, self._store.descriptors)

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
        await self._make_durable()
        await self._tell_daemons()
        click.echo(self._queue.job)
        await self._told()
        return 0

    async def _told(self) -> None:
        """The user has the job's id, or its results: the same command, given again, means another job."""
        with contextlib.suppress(JobNotFoundError):
            await self._queue.take_lease(Role.FEEDER, _TOLD, _TOLD, 1000, force=True)
            await self._queue.release_lease(Role.FEEDER, _TOLD)

    async def _make_durable(self) -> None:
        """Wait until the store has its log on disk, where it can say so."""
        try:
            local, _ = await self._store.redis.execute_command("WAITAOF", 1, 0, WAITAOF_MS)
        except RedisError:  # older than 7.2, or without a log: then "accepted" is all that can be had
            return
        if not local:
            say(f"warning: the store has not written the job to disk within {WAITAOF_MS / 1000:g} s")

    async def _tell_daemons(self) -> None:
        if not await live_daemons(self._store.redis, self._options.pool):
            say("no daemon connected: the job waits until one is started with `gristmilld up`")

    async def _wait(self, out: str) -> int:
        await self._tell_daemons()
        code = await collect_into(
            out,
            self._queue,
            self._store,
            as_json=self._options.as_json,
            make_feeder=await self._keeper(),
            scale=self._scale,
        )
        if code in _TOLD_CODES:
            await self._told()
        return code
