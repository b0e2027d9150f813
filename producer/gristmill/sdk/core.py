"""What one client works with: its store, its private daemon, its jobs. Lives on the engine's loop.

Everything is started with the first use and stopped by `close`, in this order: feeding, the connection, the daemon, the
store. The last two block, so the faces call `shut` on a thread of the caller once the loop is done: at the end of the
interpreter no other thread can be had any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from redis.asyncio import Redis

from gristmill.contract.manifest import Manifest, Source
from gristmill.holders import holder
from gristmill.intake.errors import InputError
from gristmill.intake.options import EncodeOptions
from gristmill.intake.source import identify
from gristmill.preflight import Unusable, Usable, Verdict, preflight, wait_for_endpoint
from gristmill.queue import board
from gristmill.queue.errors import JobNotFoundError, QueueError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.registry import list_jobs
from gristmill.queue.store import OUTAGES, check_store, connect
from gristmill.sdk.daemon import Daemon, DaemonOptions, fitting_concurrency, require_daemon
from gristmill.sdk.errors import DaemonError, FeedingError, SetupError
from gristmill.sdk.home import Home
from gristmill.sdk.jobs import CoreJob
from gristmill.sdk.options import ClientOptions, Submission
from gristmill.sdk.stream import Hopper

log = logging.getLogger("gristmill")

PRIVATE_MARK_BYTES = 256 << 20
"""Most requests, and most results, in a private store: it lives in this machine's memory, beside the caller."""
_PING_EVERY_S = 1.0


def new_id() -> str:
    """Time in UTC and some chance: sorts by age, and can be typed."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(3)


class Core:
    """See the module's head. `close` and `shut` may be called twice, or before anything was started."""

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self.pool = f"sdk-{new_id()}" if options.private else options.pool
        self.holder = holder("gristmill client")
        self.proven = False
        self._starting = asyncio.Lock()
        self._home: Home | None = None
        self._opening: asyncio.Future[Home] | None = None
        self._daemon: Daemon | None = None
        self._redis: Redis | None = None
        self._minders: list[asyncio.Task[None]] = []
        self._jobs: dict[str, CoreJob] = {}
        self._trouble: DaemonError | None = None
        self._default_model: str | None = None

    @property
    def home(self) -> Home:
        assert self._home is not None
        return self._home

    @property
    def redis(self) -> Redis:
        assert self._redis is not None
        return self._redis

    def require_well(self) -> None:
        """Raises DaemonError when the private daemon was given up."""
        if self._trouble is not None:
            raise self._trouble

    async def all_given_up(self) -> bool:
        """Whether the workers have given up every endpoint for now, since it fails each call."""
        seen = await board.read(self.redis, self.pool)
        down = {notice.endpoint for notice in seen.notices if notice.state == "down"}
        return down.issuperset(self.options.endpoints)

    # -- start

    async def start(self) -> None:
        """Store and daemon are up, or coming up, when this returns; called again, it returns at once.

        Raises:
            SetupError: there is no endpoint, none can be used, or the store can't be.
        """
        async with self._starting:
            if self._redis is not None:
                return
            options = self.options
            if options.private:
                if not options.endpoints:
                    raise SetupError("no endpoint is given: name one, such as http://localhost:8000/v1, "
                                     "or set OPENAI_BASE_URL")  # fmt: skip
                require_daemon()
                if options.preflight:
                    await self._preflight()
            if self._home is None:
                self._opening = asyncio.ensure_future(asyncio.to_thread(self._open_home))
                self._home = await asyncio.shield(self._opening)
            redis = connect(self.home.url, name="gristmill-sdk")
            try:
                await check_store(redis)
                if options.private:
                    self._start_daemon()
            except BaseException as error:
                await redis.aclose()
                if isinstance(error, QueueError):
                    raise SetupError(str(error)) from error
                raise
            self._redis = redis
            if self.home.is_embedded:
                self._minders.append(asyncio.create_task(self._mind_store()))

    def _open_home(self) -> Home:
        options = self.options
        if options.redis is not None:
            return Home.named(options.redis)
        if options.state_dir is not None:
            return Home.shared(options.state_dir)
        return Home.private()

    def _start_daemon(self) -> None:
        options = self.options
        daemon = self._daemon = Daemon(
            self.home,
            DaemonOptions(
                urls=options.endpoints,
                key=options.key,
                pool=self.pool,
                workers=options.workers,
                concurrency=None if options.concurrency is None else fitting_concurrency(options.concurrency),
            ),
        )
        daemon.start()
        self._minders.append(asyncio.create_task(self._mind_daemon(daemon)))

    async def _preflight(self) -> None:
        urls, key, patience_s = self.options.endpoints, self.options.key, self.options.wait_for_endpoint_s
        if patience_s:
            verdicts = await asyncio.to_thread(wait_for_endpoint, urls, key, patience_s)
        else:
            verdicts = await asyncio.to_thread(preflight, urls, key)
        sick = [v.message for v in verdicts if isinstance(v, Unusable)]
        if len(sick) == len(verdicts):
            raise SetupError("no endpoint can be used: " + "; ".join(sick) + ". Nothing was sent")
        for message in sick:
            log.warning("%s; going on with the others", message)
        self._default_model = self.options.model or _single_model(verdicts)

    # -- jobs

    async def submit_file(self, path: Path, submission: Submission) -> CoreJob:
        """Begin a job over a file; returns while it is being fed.

        Raises:
            SetupError: see `start`.
            FeedingError: the file can't be read.
        """
        try:
            source = await asyncio.to_thread(identify, path)
        except InputError as error:
            raise FeedingError(str(error)) from error
        job = await self._create(submission, source)
        job.feed_file(source, self._encode_options(submission))
        return job

    async def submit_stream(self, submission: Submission) -> tuple[CoreJob, Hopper]:
        """Begin a job over what will be put into the hopper.

        Raises:
            SetupError: see `start`.
        """
        job = await self._create(submission, None)
        return job, job.feed_stream(self._encode_options(submission))

    async def attach(self, job: str) -> CoreJob:
        """A job that is in the store.

        Raises:
            SetupError: see `start`.
            JobNotFoundError: it is not there.
        """
        await self.start()
        known = self._jobs.get(job)
        return known or CoreJob(await LeaseQueue.attach(self.redis, job), self.holder, self.require_well)

    async def job_ids(self) -> list[str]:
        """The jobs of the store, oldest first.

        Raises:
            SetupError: see `start`.
        """
        await self.start()
        return [row.job for row in await list_jobs(self.redis) if row.forget_at_ms is None]

    async def forget(self, job: CoreJob) -> None:
        """Remove a job from the store, with all its results."""
        self._jobs.pop(job.id, None)
        await job.remove()

    def _encode_options(self, submission: Submission) -> EncodeOptions:
        model = self.options.model or self._default_model
        return submission.encode_options(default_model=model, inline=not self.home.is_private)

    async def _create(self, submission: Submission, source: Source | None) -> CoreJob:
        await self.start()
        self.require_well()
        options, job_id = submission.options, f"sdk-{new_id()}"
        manifest = Manifest(
            job=job_id,
            epoch=secrets.token_hex(8),
            name=submission.name,
            created_at_ms=time.time_ns() // 1_000_000,
            pool=self.pool,
            endpoints=[] if self.home.is_private else self.options.endpoints,
            model=submission.model or self.options.model,
            source=source,
            max_attempts=options.max_attempts,
            max_backoff_s=options.max_backoff_s,
            first_alone=0 if self.proven else options.first_alone,
            timeouts=options.timeouts,
            on_truncated=options.on_truncated,
            max_failures=options.max_failures,
            max_in_flight=options.max_in_flight,
            request_deadline_ms=round(options.request_deadline_s * 1000),
        )
        if self.home.is_private:
            manifest = msgspec.structs.replace(
                manifest, payload_mark_bytes=PRIVATE_MARK_BYTES, results_mark_bytes=PRIVATE_MARK_BYTES
            )
        queue = await LeaseQueue.create(self.redis, manifest)
        job = self._jobs[job_id] = CoreJob(queue, self.holder, self.require_well, self._prove)
        return job

    def _prove(self) -> None:
        """An answer has come: later jobs of this client need not try out the setup again."""
        self.proven = True

    # -- meanwhile

    async def _mind_daemon(self, daemon: Daemon) -> None:
        try:
            await daemon.mind(self._take_back)
        except (DaemonError, OSError) as error:
            self._trouble = error if isinstance(error, DaemonError) else DaemonError(str(error))

    async def _take_back(self) -> None:
        """Give out anew at once what a dead daemon's workers held, instead of when their leases end.

        They died with it. Should one still breathe, its leases are fenced like those of any lost worker.
        """
        for job in list(self._jobs.values()):
            with contextlib.suppress(JobNotFoundError, *OUTAGES):  # then the leases' end does it
                for token in await job.queue.tokens():
                    await job.queue.reap(token, force=True, crashed=False)

    async def _mind_store(self) -> None:
        """Start the embedded store again when its server was killed; its log has all but the latest second."""
        while True:
            await asyncio.sleep(_PING_EVERY_S)
            try:
                await self.redis.ping()
            except OUTAGES:
                await asyncio.to_thread(self.home.revive)

    # -- stop

    async def close(self) -> None:
        """Stop what runs on this loop. A job that is not fed to its end is cancelled, for nobody else could feed it."""
        if self._home is None and self._opening is not None:  # whoever waited for it was cancelled
            with contextlib.suppress(SetupError):
                self._home = await self._opening
        for minder in self._minders:
            minder.cancel()
        await asyncio.gather(*self._minders, return_exceptions=True)
        self._minders.clear()
        cancel = self._home is not None and not self._home.is_private
        await asyncio.gather(*(job.leave(cancel=cancel) for job in self._jobs.values()), return_exceptions=True)
        self._jobs.clear()
        redis, self._redis = self._redis, None
        if redis is not None:
            with contextlib.suppress(*OUTAGES):
                await redis.aclose()

    def shut(self) -> None:
        """Stop daemon and store; blocks until they have ended, and nothing of a private store is left."""
        if self._daemon is not None:
            self._daemon.stop()
        if self._home is not None:
            self._home.close()


def _single_model(verdicts: Sequence[Verdict]) -> str | None:
    """The one model that the endpoints serve; None where there are several, or they tell nothing."""
    served = {model for v in verdicts if isinstance(v, Usable) for model in v.models or ()}
    return served.pop() if len(served) == 1 else None
