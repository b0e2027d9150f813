"""What `producer status` says of the wishes that a job leaves to the daemons. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gristmill.contract.lifecycle import TERMINAL, JobState
from gristmill.contract.manifest import Manifest
from gristmill.queue.replies import JobSnapshot
from gristmill.queue.wishes import Progress, Wish


def wish_lines(manifest: Manifest, snapshot: JobSnapshot, progress: Mapping[Wish, Progress]) -> list[str]:
    """One line for each wish, with what stands in its way; none for a job without wishes."""
    wishes = manifest.wishes
    told: list[tuple[str, str]] = []
    if wishes.detached and not snapshot.closed and snapshot.state not in {*TERMINAL, JobState.CANCELLING}:
        told.append(("feeding", _feeding(manifest, snapshot, progress[Wish.FEED])))
    if wishes.output is not None:
        told.append(("output", f"{wishes.output}: {_exporting(snapshot, progress[Wish.EXPORT])}"))
    if wishes.notify is not None:
        told.append(("webhook", _notifying(snapshot, progress[Wish.NOTIFY])))
    return [f"{name:<10} {text}" for name, text in told]


def _feeding(manifest: Manifest, snapshot: JobSnapshot, feed: Progress) -> str:
    path = manifest.source.path if manifest.source is not None else "an input that is not known"
    if snapshot.feeder is not None:
        return f"from {path}"
    if feed.error:
        return f"stopped: {feed.error}"
    if not feed.attempt:
        return f"waits for a daemon that may read {path}: start one with --allow-root and a folder above it"
    return f"a daemon goes on with {path} soon"


def _exporting(snapshot: JobSnapshot, export: Progress) -> str:
    if export.done:
        return "all results are there"
    if snapshot.collector is not None:
        return "results are being collected"
    if export.error:
        return f"stopped: {export.error}"
    if not export.attempt:
        return "waits for a daemon that may write there: start one with --allow-root and a folder above it"
    return "a daemon goes on with it soon"


def _notifying(snapshot: JobSnapshot, notify: Progress) -> str:
    if notify.done:
        return "has been called"
    if notify.error:
        return f"not called yet: {notify.error}"
    return "will be called" if snapshot.state in TERMINAL else "will be called when the job has ended"
