"""What a snapshot of a job says to people and to scripts. Pure.

The JSON has the keys that `run`, `status` and `submit --wait` share; counts come from records, never from a guess.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from gristmill.cli._progress import Facts
from gristmill.cli._units import format_bytes, format_duration
from gristmill.contract.lifecycle import TERMINAL, JobState, PauseReason
from gristmill.contract.manifest import DEFAULT_POOL, Manifest
from gristmill.outlet.summary import Summary, Tokens
from gristmill.queue.replies import JobSnapshot
from gristmill.queue.waiting import Wait, idle_s


def summarise(snapshot: JobSnapshot) -> Summary:
    """The job as it stands; `total` is what has been fed so far until the input has been read to its end."""
    total = snapshot.prod if snapshot.n is None else snapshot.n
    ended = snapshot.state in TERMINAL
    open_ = total - snapshot.done - (0 if ended else snapshot.in_flight)  # what is in flight then comes too late
    return Summary(
        job=snapshot.job,
        state=str(snapshot.state),
        total=total,
        ok=snapshot.ok,
        failed=snapshot.failed,
        waiting=0 if ended else open_,
        in_flight=0 if ended else snapshot.in_flight,
        not_run=open_ if ended else 0,
        by_class={str(cls): n for cls, n in sorted(snapshot.by_class.items()) if n},
        attempts=snapshot.attempts,
        tokens=Tokens(snapshot.prompt_tokens, snapshot.completion_tokens),
        wall_s=wall_s(snapshot),
    )


def wall_s(snapshot: JobSnapshot) -> float:
    """Seconds from the job's creation to its end, or to now."""
    end_ms = snapshot.finished_at_ms or snapshot.now_ms
    return round(max(0, end_ms - snapshot.created_at_ms) / 1000, 3)


def facts(snapshot: JobSnapshot, at_s: float, trouble: str = "") -> Facts:
    """The snapshot as progress sees it."""
    return Facts(
        at_s=at_s,
        ok=snapshot.ok,
        failed=snapshot.failed,
        total=snapshot.n,
        fed=snapshot.prod,
        in_flight=snapshot.in_flight,
        waiting=snapshot.waiting,
        tokens=snapshot.prompt_tokens + snapshot.completion_tokens,
        state=str(snapshot.state),
        trouble=trouble or next(iter(_waits(snapshot)), ""),
    )


def notes(snapshot: JobSnapshot, daemons: int, *, private: bool = False, detached: bool = False) -> list[str]:
    """Sentences about what stands in the way or needs somebody, most urgent first.

    A `private` job belongs to a `producer run`, which brings its own daemon; a `detached` one is fed by daemons.
    """
    job = snapshot.job
    found: list[str] = []
    if snapshot.state == JobState.PAUSED:
        then = "the same `producer run` goes on" if private else f"`producer resume {job}` goes on"
        found.append(paused(snapshot, then))
    if snapshot.feeder_lost and not private and not detached:
        found.append(f"feeder lost at line {lines_fed(snapshot):,}: give the same `producer submit` again to go on")
    if snapshot.state not in TERMINAL and not daemons:
        found.append(
            "its `producer run` is not running: give the same command again to go on"
            if private
            else f"no daemon connected: start one with `gristmilld up{_of_pool(snapshot)}`"
        )
    if snapshot.collector is None and snapshot.results_bytes >= snapshot.results_mark_bytes:
        found.append(f"waiting for a collector: `producer results {job} -o OUT` takes the results")
    if snapshot.missing:
        found.append(f"{snapshot.missing:,} claimed requests had no payload in the store")
    return found


def _of_pool(snapshot: JobSnapshot) -> str:
    """The option that makes a daemon of the job's pool, where it is not the usual one: others don't help."""
    return "" if snapshot.pool in {"", DEFAULT_POOL} else f" --pool {snapshot.pool}"


def is_private(manifest: Manifest) -> bool:
    """Whether the job belongs to a `producer run`."""
    return manifest.pool == manifest.job


def paused(snapshot: JobSnapshot, then: str) -> str:
    """Why the job is paused and what to do; `then` is how it goes on."""
    detail = snapshot.detail.rstrip(".")
    match snapshot.reason:
        case PauseReason.CONFIG:
            return f"paused, the setup is at fault: {detail}. Mend it, then {then}"
        case PauseReason.BUDGET:
            return f"paused, too many requests failed: {detail}{_top(snapshot)}. Look at them, then {then}"
        case PauseReason.STORE:
            return f"paused, storage is at fault: {detail}. Mend it, then {then}"
        case _:
            return f"paused by a user{f' ({detail})' if detail else ''}; {then}"


def _top(snapshot: JobSnapshot) -> str:
    """The most frequent class of failure."""
    counts = {str(cls): n for cls, n in snapshot.by_class.items() if n}
    if not counts:
        return ""
    cls, n = _most_first(counts)[0]
    return f", {'all' if len(counts) == 1 else f'{n:,}'} of them {cls}"


def _waits(snapshot: JobSnapshot) -> list[str]:
    """What holds back the work according to the store itself."""
    if snapshot.collector is None and snapshot.results_bytes >= snapshot.results_mark_bytes:
        return ["a collector"]
    if snapshot.feeder_lost and snapshot.in_flight == 0 and snapshot.done == snapshot.prod:
        return [f"a feeder (lost at line {lines_fed(snapshot):,})"]
    return []


def lines_fed(snapshot: JobSnapshot) -> int:
    """Lines of INPUT that lie behind the feeder's last sealed run."""
    try:
        return msgspec.json.decode(snapshot.cursor, type=_Place).line if snapshot.cursor else 0
    except msgspec.MsgspecError:
        return snapshot.prod


class _Place(msgspec.Struct):
    line: int = 0


def human(snapshot: JobSnapshot, manifest: Manifest, daemons: int, wait: Wait | None = None) -> list[str]:
    """The lines of `producer status`; `wait` is what a job waits for that stands still."""
    s = summarise(snapshot)
    total = f"{s.total:,}" if snapshot.closed else f"{s.total:,} fed so far"
    rest = f"{s.not_run:,} not run" if s.not_run else f"{s.waiting:,} waiting"
    held, mark = format_bytes(snapshot.payload_bytes), format_bytes(snapshot.payload_mark_bytes)
    results, top = format_bytes(snapshot.results_bytes), format_bytes(snapshot.results_mark_bytes)
    lines = [
        f"job        {snapshot.job}{f'  ({manifest.name})' if manifest.name else ''}",
        f"state      {_state(snapshot)}",
        f"requests   {total}: {s.ok:,} ok, {s.failed:,} failed, {s.in_flight:,} in flight, {rest}",
    ]
    if s.by_class:
        lines.append("failed     " + ", ".join(f"{cls} {n:,}" for cls, n in _most_first(s.by_class)))
    lines += [
        f"attempts   {s.attempts:,}; tokens: {s.tokens.prompt:,} prompt, {s.tokens.completion:,} completion",
        f"store      {held} of input (mark {mark}), {results} of results (mark {top})",
        f"time       {format_duration(s.wall_s)}; {daemons} daemon{'' if daemons == 1 else 's'} connected",
    ]
    if wait is not None:
        lines.append(f"waiting    {format_duration(idle_s(snapshot))} without a finished request, for {wait.what}")
    if snapshot.deadline_ms:
        lines.append(f"deadline   {_deadline(snapshot)}")
    for role, lease in (("feeder", snapshot.feeder), ("collector", snapshot.collector)):
        if lease is not None:
            lines.append(f"{role:<10} {lease.holder}")
    said = notes(snapshot, daemons, private=is_private(manifest), detached=manifest.wishes.detached)
    return lines + [f"note       {note}" for note in said]


def _deadline(snapshot: JobSnapshot) -> str:
    """The time in UTC, and how far away it is while the job goes on."""
    at = datetime.fromtimestamp(snapshot.deadline_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if snapshot.state in TERMINAL:
        return at
    left_s = (snapshot.deadline_ms - snapshot.now_ms) / 1000
    return f"{at}, in {format_duration(left_s)}" if left_s > 0 else f"{at}, passed"


def _state(snapshot: JobSnapshot) -> str:
    if snapshot.state == JobState.PAUSED and snapshot.reason:
        return f"paused ({snapshot.reason})"
    if snapshot.closed or snapshot.state in TERMINAL:
        return str(snapshot.state)
    return f"{snapshot.state}, {'feeder lost' if snapshot.feeder_lost else 'feeding'}"


def _most_first(by_class: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(by_class.items(), key=lambda item: (-item[1], item[0]))


def row(snapshot: JobSnapshot, manifest: Manifest) -> tuple[str, ...]:
    """One row of `producer ls`: job, state, done, failed, in flight, age, name."""
    total = f"{snapshot.n:,}" if snapshot.n is not None else f"{snapshot.prod:,}+"
    lost = "feeder lost" if snapshot.feeder_lost and not manifest.wishes.detached else ""
    why = snapshot.reason or lost
    state = f"{snapshot.state} ({why})" if why else str(snapshot.state)
    age = format_duration(max(0, snapshot.now_ms - snapshot.created_at_ms) / 1000)
    done = f"{snapshot.done:,}/{total}"
    return (snapshot.job, state, done, f"{snapshot.failed:,}", f"{snapshot.in_flight:,}", age, manifest.name)


COLUMNS = ("JOB", "STATE", "DONE", "FAILED", "IN FLIGHT", "AGE", "NAME")


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Aligned columns under their names, without trailing blanks."""
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in (COLUMNS, *rows)]
