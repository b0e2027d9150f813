"""`producer retry JOB`: a job of its own over the failed requests of another.

The retry reads the parent's input again, so that must be unchanged, and takes the parent's recipe with what this
command changes. Which requests it sends is written into its own keys before it is fed. A request that an earlier retry
has answered, or still has in hand, is not sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from gristmill.cli._errors import BadUsageError
from gristmill.cli._jobs import attach
from gristmill.cli._options import StoreOptions
from gristmill.cli._results import collect_into
from gristmill.cli._retries import children, taken_care_of
from gristmill.cli._session import Store, base_urls, open_store
from gristmill.cli._submission import Submission
from gristmill.cli._submitting import begun_before
from gristmill.cli._talk import say
from gristmill.contract.failure import CODES, FailureClass
from gristmill.contract.lifecycle import TERMINAL
from gristmill.contract.manifest import Manifest, Wishes
from gristmill.intake.options import Recipe
from gristmill.intake.runs import Cursor
from gristmill.intake.skipped import with_skipped
from gristmill.intake.source import require_unchanged
from gristmill.outlet.lines import RETRY_MARK
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.registry import now_ms


class RetryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `producer retry` was told; no class means every class."""

    classes: list[FailureClass]
    set: dict[str, Any]
    model: str | None
    endpoints: tuple[str, ...]
    out: str | None
    store: StoreOptions
    as_json: bool


async def retry_job(job: str, options: RetryOptions) -> int:
    """Make and feed a retry of `job`, and with `out` see it to its end; the exit code.

    Raises:
        BadUsageError: the job can't be retried, or nothing of it is to be sent again.
        InputError: its input has changed or is not here.
    """
    async with open_store(options.store) as store:
        parent = await attach(store, job)
        manifest = await parent.manifest()
        recipe = await _recipe(parent, manifest, options)
        assert manifest.source is not None, "_recipe refuses a job without an input"
        digest = _digest(manifest, recipe, options)
        queue = await begun_before(store, digest) or await _create(store, parent, manifest, recipe, digest, options)
        if await queue.chosen() is None:  # whoever made it died before it could say
            await queue.choose(await _choose(store, parent, options.classes, but=queue.job))
        say(f"job {queue.job}")
        path = Path(manifest.source.path)
        alone = options.out is None
        code = await Submission(store, queue, recipe, path, manifest.pool, verb="retry", print_id=alone).run()
        if code or options.out is None:
            return code
        return await collect_into(options.out, parent, store, as_json=options.as_json)


async def _recipe(parent: LeaseQueue, manifest: Manifest, options: RetryOptions) -> Recipe:
    """How the parent's lines become bodies this time.

    Raises:
        BadUsageError, InputError: it can't be retried.
    """
    job, snapshot = manifest.job, await parent.snapshot()
    if manifest.parent:
        raise BadUsageError(f"job {job} is a retry itself: `producer retry {manifest.parent}` sends what it left, too")
    if manifest.pool == job:
        raise BadUsageError(f"job {job} belongs to a `producer run`: give that command again, or retry its OUT")
    if snapshot.state not in TERMINAL:
        raise BadUsageError(f"job {job} is {snapshot.state}: wait for its end, with `producer watch {job}`")
    recipe = Recipe.of(manifest.recipe)
    if recipe is None or manifest.source is None:
        raise BadUsageError(f"job {job} was not made from a file that can be read again: submit its failed lines anew")
    await asyncio.to_thread(require_unchanged, manifest.source)
    if recipe.options.on_bad_line == "skip":
        say(f"reading {manifest.source.path} for the lines that job {job} left out")
        fed = Cursor.decode(snapshot.cursor)
        recipe = await with_skipped(manifest.source.path, recipe, places=fed.place, kept=fed.ordinal)
    changed = msgspec.structs.replace(recipe.options, set=recipe.options.set | options.set)
    if options.model is not None:
        changed = msgspec.structs.replace(changed, model=options.model)
    return msgspec.structs.replace(recipe, options=changed, strict=False)


def _digest(manifest: Manifest, recipe: Recipe, options: RetryOptions) -> str:
    """The same for the same command given again, before its job is fed to the end."""
    shape = [manifest.job, manifest.epoch, recipe.to_manifest(), sorted(options.classes), sorted(options.endpoints)]
    return hashlib.blake2b(msgspec.json.encode(shape, order="sorted"), digest_size=16).hexdigest()


async def _create(
    store: Store, parent: LeaseQueue, manifest: Manifest, recipe: Recipe, digest: str, options: RetryOptions
) -> LeaseQueue:
    ordinals = await _choose(store, parent, options.classes)
    endpoints = [e if "://" not in e else base_urls((e,))[0] for e in options.endpoints] or manifest.endpoints
    child = msgspec.structs.replace(
        manifest,
        job=f"{manifest.job}{RETRY_MARK}{secrets.token_hex(3)}",
        epoch=secrets.token_hex(8),
        name=f"{manifest.name} (retry)",
        created_at_ms=await now_ms(store.redis),
        endpoints=endpoints,
        model=options.model or manifest.model,
        input_digest=digest,
        deadline_ms=0,
        recipe=recipe.to_manifest(),
        parent=manifest.job,
        wishes=Wishes(),
    )
    queue = await LeaseQueue.create(store.redis, child)
    await queue.choose(ordinals)
    say(f"{len(ordinals):,} failed requests of job {manifest.job} are sent again")
    return queue


async def _choose(store: Store, parent: LeaseQueue, classes: Iterable[FailureClass], but: str = "") -> list[int]:
    """The ordinals of `parent` that failed, and that no retry (`but` one) has answered or has in hand.

    Raises:
        BadUsageError: there are none.
    """
    wanted = {CODES[cls] for cls in classes} or set(CODES.values())
    failed = {i for i, code in enumerate(await parent.failed_codes()) if code in wanted}
    if not failed:
        which = " or ".join(classes)
        raise BadUsageError(f"no request of job {parent.job} failed{f' as {which}' if which else ''}: nothing to retry")
    for child in await children(store, parent.job):
        if child.job != but:
            failed -= await taken_care_of(child)
    if not failed:
        raise BadUsageError(f"retries of job {parent.job} have answered all of these, or still have them in hand")
    return sorted(failed)
