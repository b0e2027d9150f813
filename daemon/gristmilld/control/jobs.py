"""The functions that control jobs name; each works on one wish of one job, and may be run any number of times."""

from __future__ import annotations

from collections.abc import Callable

from gristmill.queue.wishes import Wish
from gristmilld.control import horse

SLICES_S = {Wish.FEED: 60.0, Wish.EXPORT: 60.0, Wish.NOTIFY: 30.0}
"""A job that has more to do gets its next turn after the others that wait."""

TIMEOUTS_S = {wish: round(slice_s) + 120 for wish, slice_s in SLICES_S.items()}
"""Only for a job that hangs: RQ ends it by force."""


def feed(job: str) -> None:
    """Feed a detached job from its input."""
    from gristmilld.control.feeding import feed_job

    horse.run(Wish.FEED, job, SLICES_S[Wish.FEED], feed_job)


def export(job: str) -> None:
    """Collect a job's results into the file that it wishes."""
    from gristmilld.control.exporting import export_job

    horse.run(Wish.EXPORT, job, SLICES_S[Wish.EXPORT], export_job)


def notify(job: str) -> None:
    """Tell a job's webhook that it has ended."""
    from gristmilld.control.notifying import notify_job

    horse.run(Wish.NOTIFY, job, SLICES_S[Wish.NOTIFY], notify_job)


BY_NAME: dict[str, Callable[[str], None]] = {
    f"{__name__}.{function.__name__}": function for function in (feed, export, notify)
}
