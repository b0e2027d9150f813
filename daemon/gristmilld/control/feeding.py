"""Feeds a detached job: reads its input where the daemon may, and seals it, from where the last attempt stopped."""

from __future__ import annotations

import asyncio
import logging
import secrets

import msgspec

from gristmill.contract.lifecycle import PauseReason
from gristmill.contract.manifest import Manifest, Source
from gristmill.holders import holder, is_dead_here
from gristmill.intake.errors import FeedError, InputError
from gristmill.intake.feed_main import chosen_lines
from gristmill.intake.feeder import feed
from gristmill.intake.lines_seen import Notice
from gristmill.intake.options import DEFAULT_MAX_LINE_BYTES, EncodeOptions, Recipe
from gristmill.queue import wishes
from gristmill.queue.wishes import Wish
from gristmilld.control.horse import Chore, Failure
from gristmilld.control.roots import NotAllowedError, Roots
from gristmilld.control.wanting import is_due
from gristmilld.logs import fields

log = logging.getLogger(__name__)


async def feed_job(chore: Chore) -> None:
    """Feed until the input is in, or the slice is over.

    Raises:
        Failure: it can't be fed here and now.
    """
    queue = chore.queue
    manifest, snapshot = await queue.manifest(), await queue.snapshot()
    if not is_due(Wish.FEED, manifest, snapshot, await wishes.progress(chore.redis, queue.job)):
        return
    dead = snapshot.feeder if snapshot.feeder is not None and is_dead_here(snapshot.feeder.holder) else None
    token = dead.token if dead is not None else f"{chore.inherited.daemon_id}.feed.{secrets.token_hex(4)}"
    try:
        source, recipe = _permitted(manifest, Roots(chore.inherited.config.allowed_roots))
        async with asyncio.timeout(chore.slice_s):
            await _feed(chore, source, recipe, token)
    except TimeoutError:
        return
    except InputError as error:
        await wishes.complain(chore.redis, queue.job, Wish.FEED, str(error))
        await queue.pause(PauseReason.CONFIG, str(error))
    except (FeedError, NotAllowedError) as error:
        raise Failure(str(error)) from error


async def _feed(chore: Chore, source: Source, recipe: Recipe, token: str) -> None:
    queue = chore.queue

    def report(notice: Notice) -> None:
        log.info("feeding: %s", notice.text, extra=fields(job=queue.job))

    result = await feed(
        queue,
        source,
        recipe.options,
        None,
        token,
        holder("gristmilld feed"),
        report,
        strict=recipe.strict,
        limit=recipe.limit,
        sample=recipe.sample,
        only=await chosen_lines(queue, report),
        skipped=recipe.skipped,
    )
    await wishes.settle(chore.redis, queue.job, Wish.FEED)
    log.info("a detached job is fed", extra=fields(job=queue.job, requests=result.sealed))


def _permitted(manifest: Manifest, roots: Roots) -> tuple[Source, Recipe]:
    """Input and recipe with nothing in them that whoever wrote the manifest could use against this machine.

    Raises:
        NotAllowedError: the input lies elsewhere.
        InputError: nothing says how its lines become bodies.
    """
    recipe = Recipe.of(manifest.recipe)
    if manifest.source is None or recipe is None:
        raise InputError("the job does not say what it is to be fed from: submit it again")
    source = msgspec.structs.replace(manifest.source, path=roots.real_path(manifest.source.path))
    asked, safe = recipe.options, EncodeOptions()
    image = msgspec.structs.replace(asked.image, bomb_pixels=min(asked.image.bomb_pixels, safe.image.bomb_pixels))
    options = msgspec.structs.replace(
        asked,
        inline=True,
        spool_dir=None,
        encoders=0,
        roots=roots.real,
        image=image,
        max_line_bytes=min(asked.max_line_bytes, DEFAULT_MAX_LINE_BYTES),
    )
    return source, msgspec.structs.replace(recipe, options=options)
