"""Tells a job's webhook that the job has ended: at least once, always with the same key."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import Any

import msgspec

from gristmill.contract.manifest import Manifest
from gristmill.holders import holder, is_dead_here
from gristmill.queue import wishes
from gristmill.queue.replies import JobSnapshot, Role
from gristmill.queue.wishes import Wish
from gristmilld.clock import wall_ms
from gristmilld.control import webhook
from gristmilld.control.horse import Chore, Failure
from gristmilld.control.wanting import is_due
from gristmilld.logs import fields

log = logging.getLogger(__name__)

LEASE_TTL_MS = 40_000
"""Longer than a slice, so it needs no renewal."""


async def notify_job(chore: Chore) -> None:
    """Call the webhook once.

    Raises:
        Failure: it did not take it.
    """
    queue = chore.queue
    manifest, snapshot = await queue.manifest(), await queue.snapshot()
    if not is_due(Wish.NOTIFY, manifest, snapshot, await wishes.progress(chore.redis, queue.job)):
        return
    held = await wishes.notifier(chore.redis, queue.job, snapshot.now_ms)
    token = f"{chore.inherited.daemon_id}.notify.{secrets.token_hex(4)}"
    force = held is not None and is_dead_here(held.holder)
    lease = await queue.take_lease(Role.NOTIFIER, token, holder("gristmilld notify"), LEASE_TTL_MS, force=force)
    if not lease.granted:
        return
    try:
        await _call(chore, manifest, snapshot)
        await wishes.fulfil(chore.redis, queue.job, Wish.NOTIFY)
    finally:
        with contextlib.suppress(Exception):
            await queue.release_lease(Role.NOTIFIER, token)
    log.info("the webhook of a job has been called", extra=fields(job=queue.job))


async def _call(chore: Chore, manifest: Manifest, snapshot: JobSnapshot) -> None:
    config, url = chore.inherited.config, manifest.wishes.notify
    assert url is not None, "a job with this wish names a webhook"
    if config.webhook_secret is None:
        raise Failure("the daemon has no secret to sign webhooks with: set secret_env or secret_file in [webhooks]")
    key = f"gm-{queue_key(snapshot)}"
    body = msgspec.json.encode(describe(manifest, snapshot))
    headers = webhook.sign(key, wall_ms() // 1000, body, config.webhook_secret.reveal())
    try:
        async with asyncio.timeout(chore.slice_s):
            await webhook.post(url, body, headers, private=config.webhook_private)
    except (webhook.WebhookError, TimeoutError) as error:
        raise Failure(str(error) or "the webhook did not answer in time") from error


def queue_key(snapshot: JobSnapshot) -> str:
    """The same for every call about this job, and for no other."""
    return f"{snapshot.job}-{snapshot.epoch}"


def describe(manifest: Manifest, snapshot: JobSnapshot) -> dict[str, Any]:
    """What the webhook is told: counts, never a prompt or an answer."""
    total = snapshot.prod if snapshot.n is None else snapshot.n
    return {
        "type": "job.ended",
        "job": snapshot.job,
        "name": manifest.name,
        "state": str(snapshot.state),
        "total": total,
        "ok": snapshot.ok,
        "failed": snapshot.failed,
        "not_run": total - snapshot.done,
        "by_class": {str(cls): n for cls, n in sorted(snapshot.by_class.items()) if n},
        "tokens": {"prompt": snapshot.prompt_tokens, "completion": snapshot.completion_tokens},
        "output": manifest.wishes.output,
    }
