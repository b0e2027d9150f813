"""`producer check INPUT`: validate, and show what would be sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gristmill import stdio
from gristmill.cli._options import JobOptions, body_options, json_option

if TYPE_CHECKING:
    from gristmill.intake.check import CheckReport


@click.command("check")
@body_options
@click.option("--examples", metavar="N", type=click.IntRange(min=0), default=1, help="Show the first N requests.")
@json_option
def command(job: JobOptions, examples: int, as_json: bool) -> None:
    """Read all of INPUT and its pictures as a run would, without sending anything.

    Exits with 2 when a line can't be sent or a custom_id occurs twice.
    """
    raise click.exceptions.Exit(_check(job, examples, as_json))


def _check(job: JobOptions, examples: int, as_json: bool) -> int:
    import asyncio
    import contextlib
    import tempfile
    from pathlib import Path

    import msgspec

    from gristmill.cli._making import encode_options, open_input
    from gristmill.cli._session import sentences
    from gristmill.intake.check import check

    with contextlib.ExitStack() as stack:
        stack.enter_context(sentences())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gristmill-")))
        data = open_input(job.input, folder)
        options = encode_options(job, inline=True)
        report = asyncio.run(check(data.path, options, limit=job.limit, sample=job.sample, examples=examples))
    if as_json:
        stdio.put(msgspec.json.encode(report).decode())
    else:
        _show(report)
    return 0 if report.clean else 2


def _show(report: CheckReport) -> None:
    from gristmill.cli._units import format_bytes

    stdio.put(f"lines      {report.lines:,}: {report.sendable:,} can be sent, {report.refused:,} can't")
    if report.pictures:
        stdio.put(f"pictures   {report.pictures:,}")
    stdio.put(f"bodies     {format_bytes(report.body_bytes)}, the largest {format_bytes(report.largest_body_bytes)}")
    for name, counts in (("models", report.models), ("paths", report.paths)):
        if counts:
            stdio.put(f"{name:<10} " + ", ".join(f"{key or '(none)'} {n:,}" for key, n in counts.items()))
    for bad in report.bad:
        stdio.put(f"bad line   {bad.line:,}: {bad.reason} ({bad.cls})")
    if report.refused > len(report.bad):
        stdio.put(f"bad lines  {report.refused - len(report.bad):,} more")
    for notice in report.notices:
        stdio.put(f"note       {notice}")
    for example in report.examples:
        stdio.put(f"line {example.line:,} -> POST {example.path}\n  {example.body}")
