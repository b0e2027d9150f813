"""What `producer top` shows, as lines that fit a screen: pure, from an `Overview` and the meters of its jobs.

Off a terminal the same lines are plain text, without bars and as wide and as many as they need to be.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec
from rich.text import Text

from gristmill.cli import _jobview
from gristmill.cli._overview import Overview, Seen, Trouble
from gristmill.cli._progress import STALL_S, Meter, Phase, View
from gristmill.cli._units import format_bytes, format_count, format_duration, format_rate
from gristmill.contract.lifecycle import TERMINAL, JobState
from gristmill.queue.registry import DaemonInfo
from gristmill.queue.waiting import Reason, Scene, idle_s, waits_for

BAR = 16
WIDE = 100
"""Narrower screens have no room for bars and percentages."""
LEAST_JOB_LINES = 6
"""What endpoints and daemons leave to jobs on a low screen, at least."""
_FULL, _EMPTY = "━", "─"
TOLD_AFTER_S = 1.0
AT_ONCE = frozenset({Reason.RATE_LIMIT, Reason.ENDPOINT, Reason.COLLECTOR, Reason.DISK, Reason.DAEMON})
"""Told after a moment; what else a job may wait for can be a slow answer only, and is told later."""
MOST_ENDPOINTS = 4
MOST_NAME = 40

_HEAD = ("JOB", "STATE", "PROGRESS", "DONE", "", "RATE", "FAILED", "IN FLIGHT", "LEFT", "NAME")
_DAEMON_HEAD = ("DAEMON", "HOST", "PID", "VERSION", "POOL", "WORKERS", "SLOTS", "UP")
_ENDPOINT_HEAD = ("ENDPOINT IN TROUBLE", "STATE", "AGAIN IN", "SAID BY", "POOL")
_RIGHT = frozenset({"DONE", "", "RATE", "FAILED", "IN FLIGHT", "LEFT", "PID", "WORKERS", "SLOTS", "UP", "AGAIN IN"})
_STYLES = {
    "running": "cyan",
    "feeding": "cyan",
    "stragglers": "cyan",
    "complete": "green",
    "paused": "yellow",
    "waiting": "yellow",
    "cancelling": "yellow",
}


class Row(msgspec.Struct, frozen=True):
    """One job: its cells, the style of its state, and what it waits for or needs (empty for nothing)."""

    cells: tuple[str, ...]
    style: str
    needs: str


class Rates:
    """The meters of the jobs that are shown: they turn looks into rates and times left."""

    def __init__(self) -> None:
        self._meters: dict[str, Meter] = {}

    def views(self, seen: Overview) -> dict[str, View]:
        """Each job's view after one more look; jobs that are not shown any more are forgotten."""
        meters = {s.snapshot.job: self._meters.get(s.snapshot.job) or Meter(seen.at_s) for s in seen.jobs}
        self._meters = meters
        return {s.snapshot.job: self._view(s, seen, meters[s.snapshot.job]) for s in seen.jobs}

    def _view(self, one: Seen, seen: Overview, meter: Meter) -> View:
        pool = one.manifest.pool
        scene = Scene(
            job=one.snapshot, board=seen.boards.get(pool), daemons=[d for d in seen.daemons if d.pool == pool]
        )
        idle = idle_s(one.snapshot)
        wait = waits_for(scene) if idle >= TOLD_AFTER_S else None
        known = wait is not None and (wait.reason in AT_ONCE or idle >= STALL_S)
        return meter.view(_jobview.facts(one.snapshot, seen.at_s, wait.what if wait and known else ""))


def rows(seen: Overview, views: dict[str, View]) -> list[Row]:
    """One row for each job."""
    pools = [daemon.pool for daemon in seen.daemons]
    return [_row(one, views[one.snapshot.job], pools.count(one.manifest.pool)) for one in seen.jobs]


def _row(one: Seen, view: View, daemons: int) -> Row:
    snapshot = one.snapshot
    ended = snapshot.state in TERMINAL
    state = str(snapshot.state) if ended or snapshot.state is JobState.PAUSED else str(view.phase)
    share = snapshot.done / snapshot.n if snapshot.n else None
    total = format_count(snapshot.n) if snapshot.n is not None else f"{format_count(snapshot.prod)}+"
    notes = _jobview.notes(snapshot, daemons, private=_jobview.is_private(one.manifest))
    waits = f"waiting for {view.waiting_for}" if view.waiting_for and not ended else ""
    cells = (
        snapshot.job,
        state,
        "" if share is None else _FULL * round(BAR * share) + _EMPTY * (BAR - round(BAR * share)),
        f"{format_count(snapshot.done)}/{total}",
        f"{int(share * 100)} %" if share is not None else "",
        f"{format_rate(view.requests_per_s)}/s" if view.requests_per_s and not ended else "",
        format_count(snapshot.failed) if snapshot.failed else "",
        f"{snapshot.in_flight:,}" if snapshot.in_flight else "",
        format_duration(view.eta_s) if view.eta_s is not None and view.phase is not Phase.PAUSED and not ended else "",
        one.manifest.name[:MOST_NAME],
    )
    return Row(cells, _STYLES.get(state, "dim" if ended else "default"), notes[0] if notes else waits)


def screen(
    seen: Overview, views: dict[str, View], store: str, *, width: int | None, height: int | None, error: str = ""
) -> list[Text]:
    """All lines: head, jobs, endpoints in trouble, daemons. With `width` and `height` they fit, cut where they must be.

    Args:
        store: what store it is.
        error: why there is no newer look; empty when there is.
    """
    rate = sum(v.requests_per_s for v in views.values())
    head = [_store_line(seen, store), _count_line(seen, rate), *([Text(error, "red")] if error else []), Text()]
    jobs = _job_blocks(rows(seen, views), width)
    foot = _foot(seen, height, len(head) + min(sum(map(len, jobs)), LEAST_JOB_LINES))
    room = None if height is None else height - len(head) - len(foot)
    lines = head + _fitting(jobs, seen.total, room) + foot
    if width is not None:
        for line in lines:
            line.no_wrap = True
            line.truncate(width, overflow="ellipsis")
    return lines if height is None else lines[:height]


def _store_line(seen: Overview, store: str) -> Text:
    limit = f" of {format_bytes(seen.limit_bytes)}" if seen.limit_bytes else ""
    full = seen.limit_bytes and seen.used_bytes > 0.9 * seen.limit_bytes
    line = Text(f"{store}   ", "bold")
    line.append(f"memory {format_bytes(seen.used_bytes)}{limit}", "red not bold" if full else "default not bold")
    return line.append(f"   {seen.trip_s * 1000:.1f} ms a call", "dim not bold")


def _count_line(seen: Overview, rate: float) -> Text:
    workers, slots = sum(d.workers for d in seen.daemons), sum(d.slots for d in seen.daemons)
    flying = sum(s.snapshot.in_flight for s in seen.jobs if s.snapshot.state not in TERMINAL)
    parts = [
        _plural(seen.total, "job"),
        f"{_plural(len(seen.daemons), 'daemon')}, {_plural(workers, 'worker')}, {_plural(slots, 'slot')}",
        f"{flying:,} in flight",
        f"{format_rate(rate)} req/s",
    ]
    return Text("   ".join(parts))


def _job_blocks(found: Sequence[Row], width: int | None) -> list[list[Text]]:
    """The heading of the table of jobs, then the lines of each job."""
    if not found:
        return [[Text("no jobs in this store", "dim")]]
    left_out = {"PROGRESS"} if width is None else {"PROGRESS", ""} if width < WIDE else set()
    head, *lines = _table(_HEAD, [row.cells for row in found], left_out=left_out)
    state = head.plain.index("STATE")
    blocks = [[head]]
    for row, line in zip(found, lines, strict=True):
        line.stylize(row.style, state, state + len(row.cells[1]))
        line.highlight_regex(_FULL + "+", "green")
        line.highlight_regex(_EMPTY + "+", "dim")
        blocks.append([line, Text(f"  {row.needs}", "yellow")] if row.needs else [line])
    return blocks


def _fitting(blocks: list[list[Text]], total: int, room: int | None) -> list[Text]:
    """As many jobs as fit into `room` lines; the last line tells of those of all `total` that are left out."""
    lines, shown = list(blocks[0]), 0
    for block in blocks[1:]:
        more = total > shown + 1
        if room is not None and len(lines) + len(block) + more > room:
            break
        lines += block
        shown += 1
    return [*lines, Text(f"and {total - shown:,} more", "dim")] if total > shown else lines


def _foot(seen: Overview, height: int | None, taken: int) -> list[Text]:
    """Endpoints in trouble and daemons, each under a blank line, as far as they fit below `taken` lines."""
    most = len(seen.daemons) if height is None else max(1, height // 5)
    daemons = _table(_DAEMON_HEAD, [_daemon(d, seen.wall_ms) for d in seen.daemons[:most]])
    if len(seen.daemons) > most:
        daemons.append(Text(f"and {len(seen.daemons) - most:,} more", "dim"))
    endpoints = _table(_ENDPOINT_HEAD, [_endpoint(t) for t in seen.troubles[:MOST_ENDPOINTS]], style="yellow")
    foot: list[Text] = []
    for part in (endpoints, daemons):
        if part and (height is None or taken + len(foot) + 1 + len(part) <= height):
            foot += [Text(), *part]
    return foot


def _endpoint(t: Trouble) -> tuple[str, ...]:
    again = f"{t.wait_s:.0f} s" if t.wait_s else ""
    return (t.endpoint, t.state, again, _plural(t.workers, "worker"), t.pool)


def _daemon(d: DaemonInfo, wall_ms: int) -> tuple[str, ...]:
    up = format_duration(max(0, wall_ms - d.started_at_ms) / 1000)
    return (d.daemon_id, d.host, str(d.pid), d.version, d.pool, f"{d.workers:,}", f"{d.slots:,}", up)


def _plural(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _table(
    head: tuple[str, ...], cells: list[tuple[str, ...]], *, style: str = "", left_out: Container[str] = ()
) -> list[Text]:
    """Aligned columns under their names, without those in `left_out` or without a single cell; nothing for no rows."""
    columns = [(name, column) for name, column in zip(head, zip(*cells, strict=True), strict=False) if any(column)]
    columns = [(name, column) for name, column in columns if name not in left_out]
    if not columns:
        return []
    put = []
    for name, column in columns:
        width = max(len(name), *map(len, column))
        put.append([c.rjust(width) if name in _RIGHT else c.ljust(width) for c in (name, *column)])
    first, *rest = ["  ".join(row).rstrip() for row in zip(*put, strict=True)]
    return [Text(first, "bold dim"), *(Text(line, style) for line in rest)]
