"""`producer retry OUT`: the failed lines of a `producer run`, on this machine.

Its input is ``OUT.failed.jsonl``, which holds the bodies as they were sent, so INPUT need not be there any more. The
chosen lines become the input of a run of their own in ``OUT.retry.gm/``; when that has ended, its good answers are laid
over OUT. Whatever is killed on the way, the same command goes on from that folder.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gristmill import stdio
from gristmill.cli._errors import BadUsageError, ExitCode
from gristmill.cli._options import JobOptions
from gristmill.cli._retrying import RetryOptions
from gristmill.cli._runner import RunOptions, run
from gristmill.cli._talk import say
from gristmill.intake.failed import Note, note_of
from gristmill.intake.options import ImageOptions
from gristmill.leftover import failed_path
from gristmill.outlet.errors import disk
from gristmill.outlet.failures import failures
from gristmill.outlet.files import sync_folder, write_file
from gristmill.outlet.lines import OK, parse_line
from gristmill.outlet.overlay import Answer, overlay
from gristmill.outlet.proof import Audit, file_lines
from gristmill.outlet.summary import Summary, Tokens
from gristmill.outlet.workdir import Work, read_current

_ANY_TOTAL = sys.maxsize
"""OUT does not say how many lines its input has."""


async def retry_out(out: str, options: RetryOptions) -> int:
    """Retry the failed lines of `out`; the exit code.

    Raises:
        BadUsageError: nothing is to be sent again, or OUT is not finished.
        CliError: see `run`.
    """
    target = Path(out).resolve()
    began_s = time.monotonic()
    if read_current(target) is not None:
        raise BadUsageError(f"{target} is not finished: give its `producer run` again first")
    chosen = await asyncio.to_thread(lambda: list(_chosen(target, options)))
    folder = target.with_name(target.name + ".retry.gm")
    with disk(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    requests = folder / "requests.jsonl"
    await asyncio.to_thread(write_file, requests, [line for _, line in chosen])
    say(f"{len(chosen):,} failed requests of {target} are sent again")
    answers = folder / "answers.jsonl"
    code = await run(
        RunOptions(
            job=_job(requests, chosen[0][0], options),
            store=options.store,
            out=str(answers),
            workers=None,
            concurrency=None,
            overwrite=False,
            patience_s=0.0,
            as_json=False,
        )
    )
    if code not in {ExitCode.OK, ExitCode.FAILED_REQUESTS}:
        return code
    audit = await asyncio.to_thread(_lay, target, folder, answers, [note.index for note, _ in chosen])
    _tell(target, audit, time.monotonic() - began_s, as_json=options.as_json)
    return ExitCode.FAILED_REQUESTS if audit.failed else ExitCode.OK


def _chosen(target: Path, options: RetryOptions) -> Iterator[tuple[Note, bytes]]:
    """The lines of ``OUT.failed.jsonl`` to send, in the order of OUT.

    Raises:
        BadUsageError: there is no such file, or nothing in it is wanted.
    """
    source = failed_path(target)
    if not source.exists():
        raise BadUsageError(f"there is no {source}: either nothing failed, or its `producer run` is to be given again")
    failed, wanted = failures(target), {str(cls) for cls in options.classes}
    some = unreadable = 0
    for line in file_lines(source):
        note = note_of(line)
        if note is None:
            unreadable += 1
        elif note.index in failed and (not wanted or failed[note.index] in wanted):
            some += 1
            yield note, line
    if unreadable:
        say(f"{unreadable:,} lines of {source} could not be read as requests: mend them, and send the file by itself")
    if not some:
        which = " or ".join(sorted(wanted))
        raise BadUsageError(f"no line of {target} failed{f' as {which}' if which else ''}: nothing to retry")


def _job(requests: Path, first: Note, options: RetryOptions) -> JobOptions:
    image = first.image or ImageOptions()
    return JobOptions(
        input=str(requests),
        model=options.model,
        endpoints=options.endpoints,
        set=tuple(options.set.items()),
        system=None,
        media_root=None,
        limit=None,
        sample=None,
        strict=False,
        on_bad_line="record",
        format="requests",
        max_pixels=image.max_pixels,
        max_image_bytes=image.max_bytes,
        image_quality=image.quality,
        name=f"{requests.parent.name.removesuffix('.retry.gm')} (retry)",
    )


def _lay(target: Path, folder: Path, answers: Path, ordinals: list[int]) -> Audit:
    """Lay the answers over OUT, drop what they made good from ``OUT.failed.jsonl``, and remove the folder."""
    with Work.open(target) as lock:
        audit = overlay(target, _answers(answers, ordinals), folder / "out.new", _ANY_TOTAL)
        left, source = failures(target), failed_path(target)
        if left:
            fresh = folder / "failed.new"
            write_file(fresh, (line for line in file_lines(source) if _is_left(line, left)))
            with disk(source):
                fresh.replace(source)
        else:
            source.unlink(missing_ok=True)
        sync_folder(target.parent)
        with disk(folder):
            shutil.rmtree(folder)
        lock.remove()
    return audit


def _is_left(line: bytes, left: dict[int, str]) -> bool:
    note = note_of(line)
    return note is None or note.index in left


def _answers(answers: Path, ordinals: list[int]) -> Iterator[Answer]:
    for line in file_lines(answers):
        tail = parse_line(line).gristmill
        if tail.status == OK:
            yield ordinals[tail.index], line


def _tell(target: Path, audit: Audit, wall_s: float, *, as_json: bool) -> None:
    summary = Summary(
        job=target.name,
        state="complete",
        total=audit.seen.count,
        ok=audit.ok,
        failed=audit.failed,
        by_class=dict(sorted(audit.by_class.items())),
        attempts=audit.attempts,
        tokens=Tokens(audit.prompt_tokens, audit.completion_tokens),
        wall_s=round(wall_s, 3),
        examples=audit.examples,
    )
    say(summary.to_text())
    if as_json:
        stdio.put(json.dumps(summary.to_json()))
