"""How a `View` looks: one plain line for logs and pipes, two lines for a terminal of any width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.cli._progress import Phase, View
from gristmill.cli._units import format_count, format_duration, format_rate

if TYPE_CHECKING:
    from rich.text import Text

MIN_BAR, MAX_BAR = 10, 40
_STYLES = {Phase.WAITING: "yellow", Phase.PAUSED: "yellow", Phase.DRAINING: "yellow", Phase.DONE: "green"}


def plain_line(view: View) -> str:
    """``0:30 running: 6,120 of 10,000 done (61 %), 12 failed, 128 in flight, ...``, without a newline."""
    failed = [f"{view.failed:,} failed"] if view.failed else []
    text = f"{format_duration(view.elapsed_s)} {view.phase}: {', '.join([_done(view), *failed, *_details(view)])}"
    return f"{text}; waiting for {view.waiting_for}" if view.waiting_for else text


def terminal_lines(view: View, title: str, width: int) -> list[Text]:
    """A line with name, phase, bar and counts, and a line of details; each fits into `width` columns."""
    from rich.text import Text

    elapsed, details = f"  {format_duration(view.elapsed_s)}", _details(view)
    if view.waiting_for:
        second = Text.assemble((elapsed, "dim"), (f" waiting for {view.waiting_for}", "yellow"))
    else:
        second = Text(elapsed, style="dim")
    for part in details:  # whole ones only: half a number misleads
        if len(second) + 3 + len(part) <= width:
            second.append(f" · {part}", "dim")
    lines = [_first_line(view, title, width), second]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines


def _first_line(view: View, title: str, width: int) -> Text:
    from rich.text import Text

    counts = _counts(view)
    failed = f"  {format_count(view.failed)} failed" if view.failed else ""
    fixed = len(view.phase) + 2 + len(counts) + len(failed) + 2
    title = title if len(title) + 2 + fixed + MIN_BAR <= width else ""
    line = Text(f"{title}  " if title else "", style="bold")
    line.append(view.phase, _STYLES.get(view.phase, "cyan"))
    room = min(MAX_BAR, width - len(line) - len(counts) - len(failed) - 4)
    if view.share is not None and room >= MIN_BAR:
        full = round(room * view.share)
        line.append("  ").append("━" * full, "green").append("─" * (room - full), "dim")
    return line.append(f"  {counts}", "default not bold").append(failed, "red not bold")


def _counts(view: View) -> str:
    if view.total is None:
        return format_count(view.done)
    share = "" if view.share is None else f"{int(view.share * 100):3} %  "
    return f"{share}{format_count(view.done)}/{'~' if view.is_guess else ''}{format_count(view.total)}"


def _done(view: View) -> str:
    if view.total is None:
        return f"{view.done:,} done"
    share = "" if view.share is None else f" ({int(view.share * 100)} %)"
    return f"{view.done:,} of {'about ' if view.is_guess else ''}{view.total:,} done{share}"


def _details(view: View) -> list[str]:
    """In flight, rates and the time left, as far as they say something."""
    if view.phase in {Phase.FINALIZING, Phase.DONE}:
        return []
    parts = [f"{view.in_flight:,} in flight"]
    if view.requests_per_s > 0:
        parts.append(f"{format_rate(view.requests_per_s)} req/s")
    if view.tokens_per_s > 0:
        parts.append(f"{format_rate(view.tokens_per_s)} tok/s")
    if view.eta_s is not None:
        parts.append(f"{format_duration(view.eta_s)} left")
    return parts
