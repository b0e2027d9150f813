"""From options to the values that make a job: input, encoding options, model, manifest."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec

from gristmill.cli._errors import BadUsageError, NeedsPersonError
from gristmill.cli._options import JobOptions
from gristmill.contract.manifest import Manifest, Source, Timeouts
from gristmill.intake.draft import Refused
from gristmill.intake.normalise import Normaliser
from gristmill.intake.options import EncodeOptions, ImageOptions, InputFormat, OnBadLine
from gristmill.intake.readers import open_lines
from gristmill.intake.source import identify, spool_stdin
from gristmill.preflight import Usable, Verdict

STDIN = "-"
MANY_MODELS = 20
"""A longer list of models is cut in messages."""


class Input(msgspec.Struct, frozen=True):
    """The input as a file that can be read again.

    Attributes:
        path: absolute.
        source: its identity.
        spooled: it is our copy of standard input, to be deleted when it is not needed any more.
    """

    path: Path
    source: Source
    spooled: bool


def open_input(text: str, spool_folder: Path) -> Input:
    """The input that `text` names; standard input is copied into `spool_folder` first.

    Raises:
        InputError: it cannot be read.
    """
    if text != STDIN:
        source = identify(text)
        return Input(Path(source.path), source, spooled=False)
    path = spool_stdin(spool_folder, sys.stdin.buffer)
    return Input(path, identify(path), spooled=True)


def encode_options(job: JobOptions, *, inline: bool, spool_dir: Path | None = None) -> EncodeOptions:
    """How lines become bodies; relative pictures of standard input lie beneath the current folder."""
    root = job.media_root or (Path.cwd() if job.input == STDIN else None)
    return EncodeOptions(
        model=job.model,
        set=dict(job.set),
        system=job.system,
        media_root=None if root is None else str(root.absolute()),
        inline=inline,
        spool_dir=None if spool_dir is None else str(spool_dir.absolute()),
        image=ImageOptions(max_pixels=job.max_pixels, max_bytes=job.max_image_bytes, quality=job.image_quality),
        format=cast("InputFormat", job.format),
        on_bad_line=cast("OnBadLine", job.on_bad_line),
    )


def with_model(options: EncodeOptions, path: Path, verdicts: Sequence[Verdict]) -> EncodeOptions:
    """The options with a model for lines that name none: the single one that the endpoints serve.

    Raises:
        BadUsageError: the first line names no model, and there is no single one to take.
        NeedsPersonError: the same, and nothing at the base URL lists models, so it may be wrong.
        InputError: the input cannot be read.
    """
    if options.model is not None or "model" in options.set:
        return options
    served = sorted({m for v in verdicts if isinstance(v, Usable) for m in v.models or ()})
    if len(served) == 1:
        return msgspec.structs.replace(options, default_model=served[0])
    if names_model(options, path):
        return options
    if not served:
        listless = [v.url for v in verdicts if isinstance(v, Usable) and v.models is None]
        if listless:
            raise NeedsPersonError(
                f"{listless[0]}/models is not found (404), and the requests name no model: check the base URL; "
                "if it is right, name the model with -m MODEL. Nothing was sent"
            )
        if not verdicts:
            raise BadUsageError("the requests name no model: give it with -m MODEL, or a server to ask with -e URL")
        raise BadUsageError("the requests name no model and the endpoint lists none: give it with -m MODEL")
    listed = ", ".join(served[:MANY_MODELS]) + (", ..." if len(served) > MANY_MODELS else "")
    raise BadUsageError(f"the requests name no model; choose one with -m MODEL: {listed}")


def names_model(options: EncodeOptions, path: Path) -> bool:
    """Whether the first line that can be read as a request names a model (none at all counts as yes)."""
    normalise = Normaliser(options)
    for line in open_lines(path, max_line_bytes=options.max_line_bytes, arrays=options.arrays):
        draft = None if line.problem else normalise(line.data)
        if draft is not None and not isinstance(draft, Refused):
            return draft.has_model
    return True


def new_job_id() -> str:
    """Time in UTC and some chance: sorts by age, and can be typed."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(3)


def make_manifest(
    job: JobOptions,
    options: EncodeOptions,
    source: Source,
    *,
    digest: str,
    endpoints: list[str],
    pool: str | None,
    now_ms: int,
) -> Manifest:
    """A new job; `pool` None makes a private one, named like the job; `now_ms` is the store's clock.

    Raises:
        BadUsageError: its deadline has passed.
    """
    job_id = new_job_id()
    count, percent = job.max_failures
    deadline_ms = job.deadline.ms(now_ms) if job.deadline else 0
    if job.deadline and deadline_ms <= now_ms:
        raise BadUsageError("--deadline lies in the past: name a later time, or a duration such as 90m")
    return Manifest(
        job=job_id,
        epoch=secrets.token_hex(8),
        name=job.name or ("standard input" if job.input == STDIN else Path(job.input).name),
        created_at_ms=time.time_ns() // 1_000_000,
        pool=pool or job_id,
        endpoints=endpoints,
        model=options.model or options.default_model,
        source=source,
        input_digest=digest,
        max_attempts=job.max_attempts,
        first_alone=job.first_alone,
        timeouts=Timeouts(
            connect_s=job.timeout_connect,
            first_byte_s=job.timeout_first_byte,
            idle_s=job.timeout_idle,
            total_s=job.timeout_total,
        ),
        on_truncated="fail" if job.on_truncated == "fail" else "keep",
        max_failures=count,
        max_failures_percent=percent,
        max_in_flight=job.max_in_flight,
        priority=job.priority,
        weight=job.weight,
        deadline_ms=deadline_ms,
        request_deadline_ms=round(job.request_deadline * 1000),
        keep_ms=round(job.keep * 1000),
        payload_mark_bytes=job.payload_mark,
        results_mark_bytes=job.results_mark,
    )
