"""`producer run` from end to end: everything on this machine.

::

    this process      progress, collector (store -> OUT.gm -> ack -> OUT), signals
      feeder          INPUT -> store; started anew when it dies
      gristmilld up   store -> endpoints -> store; private to this job
    store             embedded and shared, or --redis; detached, outlives us when we are killed

What is in the way before the job exists is an error with exit 2 or 3. Afterwards every way out is the same: stop the
feeder, drain the daemon, collect what is there, bring OUT to its best state, say what to do next. OUT.gm and the store
keep the rest, and the same command goes on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gristmill.cli import _children, _making
from gristmill.cli._daemon import DaemonKeeper
from gristmill.cli._early import EarlyFeeder
from gristmill.cli._ending import conclude, vanished
from gristmill.cli._errors import ExitCode, NeedsPersonError
from gristmill.cli._feeding import FeederKeeper
from gristmill.cli._interrupt import interrupts
from gristmill.cli._options import JobOptions, StoreOptions
from gristmill.cli._output import Output, open_work, spare_input
from gristmill.cli._session import Store, api_key, base_urls, open_store
from gristmill.cli._talk import Talk, say
from gristmill.cli._vain import undo_if_vain
from gristmill.cli._watching import Scale, Watcher, needs_somebody, place_of, plain_bytes
from gristmill.cli._working import Crew
from gristmill.contract.frame import FormatError
from gristmill.contract.manifest import Manifest
from gristmill.holders import holder
from gristmill.intake.feed_spec import FeedSpec
from gristmill.intake.options import EncodeOptions, Recipe
from gristmill.intake.source import identify, input_digest
from gristmill.leftover import Origin
from gristmill.outlet.collector import Until, collect
from gristmill.outlet.finished import FinishedPlan
from gristmill.outlet.workdir import Work
from gristmill.preflight import Unusable, Usable, Verdict, preflight, wait_for_endpoint
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.registry import now_ms


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `producer run` was told."""

    job: JobOptions
    store: StoreOptions
    out: str
    workers: int | None
    concurrency: int | None
    overwrite: bool
    patience_s: float
    as_json: bool


async def run(options: RunOptions, early: EarlyFeeder | None = None) -> int:
    """Run a whole job; the exit code. `early` is a feeder that runs already.

    Raises:
        CliError: a sentence and an exit code, before or after the job.
    """
    job = options.job
    encode = _making.encode_options(job, inline=True)
    if job.input != _making.STDIN:
        identify(job.input)
        spare_input(options.out, job.input)
    urls, key = base_urls(job.endpoints), api_key()
    _children.require_daemon()
    stream_name = input_digest(job.input, encode, limit=job.limit, sample=job.sample)
    with open_work(options.out, options.store, stream_name, overwrite=options.overwrite) as work:
        try:
            async with open_store(options.store) as store:
                return await _Run(options, work, store, urls, key, early).run()
        finally:
            if work.current is None:  # nothing was begun, so nothing is worth keeping
                work.remove()


class _Run:
    """One run over an open work folder and an open store."""

    def __init__(
        self,
        options: RunOptions,
        work: Work,
        store: Store,
        urls: list[str],
        key: str | None,
        early: EarlyFeeder | None,
    ) -> None:
        self._options = options
        self._job = options.job
        self._work = work
        self._store = store
        self._urls = urls
        self._key = key
        self._early = early
        self._holder = holder("producer run")
        self._token = f"run-{_making.new_job_id()}"

    async def run(self) -> int:
        data = await asyncio.to_thread(_making.open_input, self._job.input, self._work.folder)
        verdicts = await self._reach()
        encode = await asyncio.to_thread(_making.with_model, self._encode_options(), data.path, verdicts)
        await self._drain_previous()
        finished = await asyncio.to_thread(FinishedPlan.build, self._work)
        digest = input_digest(data.path, encode, limit=self._job.limit, sample=self._job.sample)
        manifest = _making.make_manifest(
            self._job,
            encode,
            data.source,
            digest=digest,
            endpoints=[],
            pool=None,
            now_ms=await now_ms(self._store.redis),
        )
        if finished.ok:  # the setup has worked; what is left may well be bad rows
            manifest = msgspec.structs.replace(manifest, first_alone=min(1, manifest.first_alone))
        if finished.ok or finished.failed:
            again = f"; {finished.failed:,} failed ones are sent again" if finished.failed else ""
            say(f"{finished.ok:,} lines are finished from before{again}")
        for old in self._work.folder.glob("stdin-*.jsonl"):
            if old != data.path:
                old.unlink()
        self._work.begin(manifest.job, epoch=manifest.epoch, store=self._store.identity)
        queue = await LeaseQueue.create(self._store.redis, manifest)
        return await self._carry_out(queue, manifest, data, encode, planned=finished.ok > 0)

    # --- before the job exists

    def _encode_options(self) -> EncodeOptions:
        """By reference over the private store; through the store where others can write it too, or see other files."""
        inline = self._job.inline or self._store.embedded is None
        return _making.encode_options(
            self._job, inline=inline, spool_dir=None if inline else self._work.folder / "pictures"
        )

    async def _reach(self) -> list[Verdict]:
        """The verdicts on the endpoints, of which at least one is usable.

        Raises:
            NeedsPersonError: none is; the message has a sentence for each.
        """
        told: set[str] = set()

        def waiting(verdicts: Sequence[Verdict]) -> None:
            for v in verdicts:
                if isinstance(v, Unusable) and v.message not in told:
                    told.add(v.message)
                    say(f"waiting: {v.message}")

        if self._options.patience_s:
            verdicts = await asyncio.to_thread(
                wait_for_endpoint, self._urls, self._key, self._options.patience_s, waiting
            )
        else:
            verdicts = await asyncio.to_thread(preflight, self._urls, self._key)
        sick = [v.message for v in verdicts if isinstance(v, Unusable)]
        if not any(isinstance(v, Usable) for v in verdicts):
            raise NeedsPersonError("no endpoint can be used: " + "; ".join(sick) + ". Nothing was sent")
        for message in sick:
            say(f"warning: {message}; going on with the others")
        return verdicts

    async def _drain_previous(self) -> None:
        """Take what an earlier run over this OUT left in the store, then drop its job."""
        previous = self._work.previous
        if previous is None:
            return
        if previous.store != self._store.identity:
            say(f"warning: job {previous.job} of the run before lies in another store ({previous.store})")
            return
        try:
            queue = await LeaseQueue.attach(self._store.redis, previous.job)
        except JobNotFoundError:
            return
        except FormatError as error:  # an upgrade in between
            left = f"job {previous.job} of the run before stays in the store, and what it still has is sent again"
            say(f"warning: {left}: {error}")
            return
        if queue.epoch == previous.epoch:
            self._work.resume()
            done = await collect(
                queue, self._work, token=self._token, holder=self._holder, until=Until.DRAINED, take=True
            )
            if done.new:
                say(f"{done.new:,} results of the run before were still in the store")
            if done.damaged:
                say(f"{done.damaged:,} results of the run before are damaged; their requests are sent again")
            await queue.remove()

    # --- the job

    async def _carry_out(
        self, queue: LeaseQueue, manifest: Manifest, data: _making.Input, encode: EncodeOptions, *, planned: bool
    ) -> int:
        log = self._work.folder / "daemon.log"
        recipe = Recipe(options=encode, limit=self._job.limit, sample=self._job.sample)
        origin = Origin(data.path, recipe)
        output = Output(self._work)
        with contextlib.closing(output), Talk(manifest.name) as talk:
            talk.say(f"job {manifest.job}")
            feeder = FeederKeeper(
                self._spec(manifest.job, encode, planned=planned),
                lambda: _line(queue),
                talk.say,
                self._store.descriptors,
                self._early,
            )
            daemon = DaemonKeeper(lambda: self._start_daemon(manifest.job, log), queue, talk.say, log)
            watcher = Watcher(
                queue,
                self._store,
                talk,
                scale=Scale(plain_bytes(data.path), self._job.sample or self._job.limit),
                urls=self._urls,
                key=self._key,
                ends_paused=needs_somebody,
                carried=self._work.ledger.carried.count,
            )
            crew = Crew(
                queue,
                self._work,
                watcher,
                token=self._token,
                holder=self._holder,
                feeder=feeder,
                daemon=daemon,
                grow=output.grow,
            )
            with interrupts(crew.kill, talk) as asked:
                try:
                    outcome = await crew.run(asked)
                    if await undo_if_vain(outcome, queue, self._work, output, talk):
                        return ExitCode.USAGE
                    return await conclude(
                        outcome,
                        queue,
                        self._work,
                        output,
                        talk,
                        watcher,
                        private=True,
                        as_json=self._options.as_json,
                        origin=origin,
                    )
                except JobNotFoundError as error:
                    raise NeedsPersonError(vanished(manifest.job)) from error

    async def _start_daemon(self, job: str, log: Path) -> asyncio.subprocess.Process:
        environment = {"GRISTMILL_REDIS_URL": self._store.url}
        if self._key:
            environment["OPENAI_API_KEY"] = self._key
        return await _children.start_daemon(
            job,
            self._urls,
            environment,
            workers=self._options.workers,
            concurrency=self._options.concurrency,
            log=log,
            keep=self._store.descriptors,
            extra=() if self._job.inline or self._store.embedded is None else ("--allow-root", "/"),
        )

    def _spec(self, job: str, encode: EncodeOptions, *, planned: bool) -> bytes:
        return msgspec.json.encode(
            FeedSpec(
                redis_url=self._store.url,
                job=job,
                token=f"{self._token}-feeder",
                holder=self._holder,
                options=encode,
                plan_dir=str(self._work.folder) if planned else None,
                strict=self._job.strict,
                limit=self._job.limit,
                sample=self._job.sample,
            )
        )


async def _line(queue: LeaseQueue) -> int:
    """How many lines have been fed."""
    return place_of(await queue.snapshot()).line
