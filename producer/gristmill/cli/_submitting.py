"""`producer submit` from end to end.

The same command finds the job that it began before by the digest of input path and options: a job that is not closed,
has not ended, and whose feeder is lost. Its feeder then goes on after the last sealed run. A live feeder elsewhere, or
an input that has changed meanwhile, is refused. A closed job is found, too, when the command that fed it died before it
could say so (see `was_never_told`): who gives the command again then gets that job, and pays for nothing twice.

A detached job is only made here; a daemon that may read the input feeds it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from gristmill import stdio
from gristmill.cli import _making
from gristmill.cli._early import EarlyFeeder
from gristmill.cli._errors import BadUsageError
from gristmill.cli._options import JobOptions, StoreOptions
from gristmill.cli._session import Store, api_key, base_urls, open_store
from gristmill.cli._submission import Submission, make_durable, require_resumable, tell_daemons, was_never_told
from gristmill.cli._talk import say
from gristmill.contract.frame import FormatError
from gristmill.contract.lifecycle import TERMINAL
from gristmill.contract.manifest import Wishes
from gristmill.embedded import default_state_dir
from gristmill.intake.options import EncodeOptions, Recipe
from gristmill.intake.source import input_digest
from gristmill.preflight import preflight
from gristmill.queue import wishes
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.registry import list_jobs, now_ms


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `producer submit` was told; `out` is set with ``--wait``."""

    job: JobOptions
    store: StoreOptions
    out: str | None
    pool: str
    as_json: bool
    wishes: Wishes = Wishes()


async def submit(options: SubmitOptions, early: EarlyFeeder | None = None) -> int:
    """Make a job, and feed it in the foreground unless a daemon is to do it; the exit code.

    `early` is a feeder that runs already.

    Raises:
        CliError: a sentence and an exit code.
    """
    job = options.job
    spool = (options.store.state_dir or default_state_dir()).absolute() / "spool"
    _spare_input(options)
    data = await asyncio.to_thread(_making.open_input, job.input, spool)
    encode = _making.encode_options(job, inline=True)
    try:
        async with open_store(options.store) as store:
            encode = await asyncio.to_thread(_with_model, job, encode, data.path)
            recipe = Recipe(options=encode, strict=job.strict, limit=job.limit, sample=job.sample)
            detached = options.wishes.detached
            queue = await begun_before(store, digest_of(data.path, recipe), detached=detached)
            queue = queue or await _create(store, data, recipe, options)
            say(f"job {queue.job}")
            if detached:
                return await _leave(store, queue, options.pool)
            out, pool = options.out, options.pool
            work = Submission(
                store, queue, recipe, data.path, pool, verb="submit", out=out, as_json=options.as_json, early=early
            )
            return await work.run()
    finally:
        if data.spooled:
            data.path.unlink(missing_ok=True)


def _spare_input(options: SubmitOptions) -> None:
    """Refuse an OUT that is INPUT.

    Raises:
        BadUsageError: it is.
    """
    outs = [out for out in (options.out, options.wishes.output) if out is not None]
    if outs and options.job.input != _making.STDIN:
        from gristmill.cli._output import spare_input  # the outlet: without an OUT nothing else needs it

        for out in outs:
            spare_input(out, options.job.input)


def _with_model(job: JobOptions, encode: EncodeOptions, path: Path) -> EncodeOptions:
    """A model for lines that name none, where the endpoints are known here; the daemon knows them otherwise."""
    urls = [e for e in job.endpoints if "://" in e]
    if encode.model is not None or _making.names_model(encode, path):
        return encode
    return _making.with_model(encode, path, preflight(base_urls(tuple(urls)), api_key()) if urls else [])


def digest_of(path: Path, recipe: Recipe) -> str:
    """The same for the same command, given again."""
    return input_digest(path, recipe.options, limit=recipe.limit, sample=recipe.sample)


async def begun_before(store: Store, digest: str, *, detached: bool = False) -> LeaseQueue | None:
    """The job of this digest that was begun before and not fed to the end.

    Raises:
        BadUsageError: the input has changed since, or another process is feeding it.
    """
    for row in await list_jobs(store.redis):
        try:
            queue = await LeaseQueue.attach(store.redis, row.job)
            manifest, snapshot = await queue.manifest(), await queue.snapshot()
        except (JobNotFoundError, FormatError):  # just removed, or made by another version, which would go on with it
            continue
        if manifest.input_digest != digest:
            continue
        if snapshot.closed:
            if not manifest.wishes.detached and await was_never_told(manifest, snapshot):
                return queue
        elif snapshot.state not in TERMINAL:
            if not detached or not manifest.wishes.detached:
                await require_resumable(manifest, snapshot)
            return queue
    return None


async def _create(store: Store, data: _making.Input, recipe: Recipe, options: SubmitOptions) -> LeaseQueue:
    job = options.job
    endpoints = [e if "://" not in e else base_urls((e,))[0] for e in job.endpoints]
    manifest = _making.make_manifest(
        job,
        recipe.options,
        data.source,
        digest=digest_of(data.path, recipe),
        endpoints=endpoints,
        pool=options.pool,
        now_ms=await now_ms(store.redis),
    )
    manifest = msgspec.structs.replace(manifest, recipe=recipe.to_manifest(), wishes=options.wishes)
    queue = await LeaseQueue.create(store.redis, manifest)
    if manifest.wishes:
        await wishes.announce(store.redis, queue.job)
    return queue


async def _leave(store: Store, queue: LeaseQueue, pool: str) -> int:
    """Leave the feeding to a daemon."""
    if not (await queue.manifest()).wishes.detached:
        raise BadUsageError(f"job {queue.job} was begun without --detach: give the command without it to go on")
    await make_durable(queue)
    await tell_daemons(store, pool)
    stdio.put(queue.job)
    return 0
