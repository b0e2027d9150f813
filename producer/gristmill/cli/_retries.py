"""The retries of a job, and what they have done of it."""

from __future__ import annotations

from gristmill.cli._session import Store
from gristmill.contract.lifecycle import TERMINAL
from gristmill.outlet.lines import RETRY_MARK
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.registry import list_jobs
from gristmill.queue.retrying import ones


async def children(store: Store, job: str) -> list[LeaseQueue]:
    """The retries of a job, oldest first."""
    found: list[tuple[int, LeaseQueue]] = []
    for row in await list_jobs(store.redis):
        if row.job.startswith(job + RETRY_MARK):
            try:
                queue = await LeaseQueue.attach(store.redis, row.job)
                found.append(((await queue.manifest()).created_at_ms, queue))
            except JobNotFoundError:
                continue
    return [queue for _, queue in sorted(found, key=lambda pair: (pair[0], pair[1].job))]


async def taken_care_of(child: LeaseQueue) -> set[int]:
    """Ordinals of the parent that `child` has answered well, or may still answer."""
    ordinals = await child.chosen() or []
    ended = (await child.snapshot()).state in TERMINAL
    done, codes = set(ones(await child.done_bits())), await child.failed_codes()
    good = {k for k in done if k >= len(codes) or not codes[k]}
    return {ordinal for k, ordinal in enumerate(ordinals) if k in good or (not ended and k not in done)}
