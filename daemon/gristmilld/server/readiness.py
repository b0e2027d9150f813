"""Whether this daemon can take work, and why not. PURE."""

from __future__ import annotations

from gristmilld.metricsdir import Supervision
from gristmilld.server.look import StoreView


def reasons_against(view: StoreView | None, supervision: Supervision, daemon_id: str) -> list[str]:
    """One sentence for each thing that keeps the daemon from claiming requests; none when it is ready."""
    return [*_of_daemon(supervision), *_of_store(view, daemon_id)]


def _of_daemon(supervision: Supervision) -> list[str]:
    if supervision.stage not in {"running", "starting"}:
        return [f"the daemon is stopping ({supervision.stage})"]
    if not supervision.workers_up():
        return ["no worker is up"]
    return []


def _of_store(view: StoreView | None, daemon_id: str) -> list[str]:
    if view is None:
        return ["the store has not been looked at yet"]
    if view.trouble:
        return [view.trouble]
    if daemon_id not in view.daemons:
        return ["this daemon is not registered in the store yet"]
    return []
