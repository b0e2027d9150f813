"""Stragglers as people see them: a table with the callers' ids, ages and whereabouts, or JSON."""

from __future__ import annotations

import json

from gristmill import stdio
from gristmill.cli._talk import say
from gristmill.cli._units import format_duration
from gristmill.contract.lifecycle import TERMINAL
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.stragglers import Straggler

_COLUMNS = ("INDEX", "AGE", "ATTEMPTS", "WHERE", "CUSTOM_ID")


async def show(queue: LeaseQueue, older_than_s: float, most: int, *, as_json: bool) -> int:
    """Print them; the exit code."""
    found, now_ms = await _find(queue, older_than_s, most)
    names = await queue.custom_ids([s.index for s in found])
    if as_json:
        stdio.put(json.dumps([_object(s, now_ms, names.get(s.index)) for s in found]))
    elif found:
        rows = [_COLUMNS, *(_row(s, now_ms, names.get(s.index)) for s in found)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            stdio.put("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
    else:
        say("no request that was started is without a result")
    return 0


async def give_up_older(queue: LeaseQueue, older_than_s: float) -> int:
    """Fail all that are older; the exit code."""
    found, _ = await _find(queue, older_than_s, None)
    why = f"given up by a user: no answer {format_duration(older_than_s)} after its first start"
    given_up = (await queue.give_up(found, why)).new if found else 0
    snapshot = await queue.snapshot()
    say(f"{given_up:,} requests of job {queue.job} are given up; it is {snapshot.state}")
    return 0


async def _find(queue: LeaseQueue, older_than_s: float, most: int | None) -> tuple[list[Straggler], int]:
    """Stragglers, and the store's time; none of a job that has ended."""
    snapshot = await queue.snapshot()
    if snapshot.state in TERMINAL:
        return [], snapshot.now_ms
    before_ms = snapshot.now_ms - round(older_than_s * 1000) + (0 if older_than_s else 1)
    return await queue.stragglers(started_before_ms=before_ms, most=most), snapshot.now_ms


def _where(straggler: Straggler) -> str:
    return f"in flight, worker {straggler.holder}" if straggler.holder else "waits for another attempt"


def _row(straggler: Straggler, now_ms: int, custom_id: str | None) -> tuple[str, ...]:
    age = format_duration((now_ms - straggler.first_ms) / 1000)
    return (str(straggler.index), age, str(straggler.attempts), _where(straggler), custom_id or "")


def _object(straggler: Straggler, now_ms: int, custom_id: str | None) -> dict[str, object]:
    return {
        "index": straggler.index,
        "custom_id": custom_id,
        "age_s": round((now_ms - straggler.first_ms) / 1000, 3),
        "attempts": straggler.attempts,
        "worker": straggler.holder or None,
    }
