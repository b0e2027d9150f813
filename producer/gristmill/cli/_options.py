"""Options that several verbs share, declared once: click decorators that fill the Structs below.

The names and units on the command line are a contract; what they mean is said in their help texts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from gristmill.cli import _units

Function = Callable[..., Any]
T = TypeVar("T")


class _Parsed(click.ParamType[T]):
    """A parameter that a pure function of `_units` reads; its ValueError becomes click's usage error."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]  # a default that is of the type already
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE = _Parsed("SIZE", _units.parse_size)
SECONDS = _Parsed("SECONDS", _units.parse_duration)
DEADLINE = _Parsed("DURATION|TIME", _units.parse_deadline)
MAX_FAILURES = _Parsed("N|P%", _units.parse_max_failures)
ASSIGNMENT = _Parsed("KEY=VALUE", _units.parse_assignment)


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which store: a Redis URL, or the private store of a state folder."""

    redis: str | None
    state_dir: Path | None


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a job, for `run`, `submit` and `check`."""

    input: str
    model: str | None
    endpoints: tuple[str, ...]
    set: tuple[tuple[str, Any], ...]
    system: str | None
    media_root: Path | None
    format: str
    limit: int | None
    sample: int | None
    strict: bool
    on_bad_line: str
    max_pixels: int
    max_image_bytes: int
    image_quality: int
    inline: bool = False
    name: str | None = None
    max_failures: tuple[int, float] = (0, 0.0)
    max_attempts: int = 5
    first_alone: int = 4
    max_in_flight: int = 0
    priority: int = 0
    weight: int = 1
    deadline: _units.Deadline | None = None
    request_deadline: float = 0.0
    keep: float = 7 * 86400.0
    on_truncated: str = "keep"
    payload_mark: int = 1 << 30
    results_mark: int = 512 << 20
    timeout_connect: float = 10.0
    timeout_first_byte: float = 3600.0
    timeout_idle: float = 300.0
    timeout_total: float = 3600.0


def _collect(struct: type[msgspec.Struct], argument: str, options: list[Function]) -> Callable[[Function], Function]:
    """A decorator that adds `options` and hands their values over as one `struct` called `argument`."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(**values: Any) -> Any:
            own = {name: values.pop(name) for name in struct.__struct_fields__ if name in values}
            return function(**values, **{argument: struct(**own)})

        return functools.reduce(lambda f, option: option(f), reversed(options), call)

    return decorate


store_options = _collect(
    StoreOptions,
    "store",
    [
        click.option(
            "--redis",
            metavar="URL",
            envvar="GRISTMILL_REDIS_URL",
            help="Store to use, redis://, rediss://, unix://, redis+sentinel:// or redis+cluster:// "
            "(environment: GRISTMILL_REDIS_URL). Without it a private store is started.",
        ),
        click.option(
            "--state-dir",
            metavar="DIR",
            type=click.Path(path_type=Path, file_okay=False),
            help="Folder of the private store.  [default: $XDG_STATE_HOME/gristmill]",
        ),
    ],
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")

job_argument = click.argument("job", metavar="JOB")

_BODY_OPTIONS: list[Function] = [
    click.argument("input", metavar="INPUT"),
    click.option("-m", "--model", metavar="MODEL", help="Model for every request, over the line's own."),
    click.option(
        "-e",
        "--endpoint",
        "endpoints",
        metavar="URL",
        multiple=True,
        help="Base URL of a server; may be repeated (environment: OPENAI_BASE_URL, OPENAI_API_BASE).",
    ),
    click.option(
        "--set", metavar="KEY=VALUE", multiple=True, type=ASSIGNMENT, help="Put a JSON value into every body."
    ),
    click.option("--system", metavar="TEXT", help="System message for every request that has none."),
    click.option(
        "--media-root",
        metavar="DIR",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        help="Folder of relative picture paths.  [default: the folder of INPUT]",
    ),
    click.option(
        "--format",
        type=click.Choice(["requests", "conversations"]),
        default="requests",
        show_default=True,
        help="What a line of INPUT is; conversations may also be one JSON array.",
    ),
    click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Only the first N lines."),
    click.option("--sample", metavar="N", type=click.IntRange(min=1), help="Only N lines, chosen by chance."),
    click.option("--strict", is_flag=True, help="Refuse repeated custom_ids and lines that can't be sent."),
    click.option(
        "--on-bad-line",
        type=click.Choice(["record", "fail", "skip"]),
        default="record",
        show_default=True,
        help="A line that can't be sent: a failed result, the end, or nothing.",
    ),
    click.option(
        "--max-pixels", metavar="N", type=click.IntRange(min=0), default=0, help="Scale larger pictures down."
    ),
    click.option("--max-image-bytes", metavar="SIZE", type=SIZE, default=0, help="Encode larger pictures anew."),
    click.option(
        "--image-quality",
        metavar="Q",
        type=click.IntRange(1, 95),
        default=90,
        show_default=True,
        help="JPEG quality of pictures that are encoded anew.",
    ),
]

_JOB_OPTIONS: list[Function] = [
    click.option("--inline", is_flag=True, help="Put pictures into the store, for workers that see other files."),
    click.option("--name", metavar="NAME", help="Name to show for the job.  [default: the name of INPUT]"),
    click.option(
        "--max-failures",
        metavar="N|P%",
        type=MAX_FAILURES,
        default=(0, 0.0),
        help="Pause the job at so many failed requests.",
    ),
    click.option(
        "--max-attempts",
        metavar="N",
        type=click.IntRange(min=1),
        default=5,
        show_default=True,
        help="Charged attempts per request.",
    ),
    click.option(
        "--first-alone",
        metavar="N",
        type=click.IntRange(min=0),
        default=4,
        show_default=True,
        help="So many requests go first, and the others only once one has been answered; 0 sends all at once.",
    ),
    click.option(
        "--max-in-flight",
        metavar="N",
        type=click.IntRange(min=0),
        default=0,
        help="Most requests of the job in flight, over all workers.  [default: no limit]",
    ),
    click.option(
        "--priority",
        metavar="N",
        type=click.IntRange(-1000, 1000),
        default=0,
        show_default=True,
        help="Jobs of higher priority get every slot that they can use before lower ones get any.",
    ),
    click.option(
        "--weight",
        metavar="W",
        type=click.IntRange(1, 1000),
        default=1,
        show_default=True,
        help="Share of the requests among jobs of the same priority: 3 gets three times as many as 1.",
    ),
    click.option(
        "--deadline",
        metavar="DURATION|TIME",
        type=DEADLINE,
        help="End the job then (90m, 2d, 2026-08-01T06:00): what is finished is kept, nothing more is sent, exit 4.",
    ),
    click.option(
        "--request-deadline",
        metavar="DURATION",
        type=SECONDS,
        default=0.0,
        help="Fail a request (class deadline) that has no answer so long after it was first started, all attempts "
        "and waits for a server included.  [default: never]",
    ),
    click.option(
        "--on-truncated",
        type=click.Choice(["keep", "fail"]),
        default="keep",
        show_default=True,
        help="An answer that was cut at its token limit.",
    ),
    click.option(
        "--payload-mark",
        metavar="SIZE",
        type=SIZE,
        default=1 << 30,
        help="Most input in the store.  [default: 1GiB]",
    ),
    click.option(
        "--results-mark",
        metavar="SIZE",
        type=SIZE,
        default=512 << 20,
        help="Most uncollected results in the store.  [default: 512MiB]",
    ),
    click.option("--timeout-connect", metavar="SECONDS", type=SECONDS, default=10.0, show_default=True),
    click.option("--timeout-first-byte", metavar="SECONDS", type=SECONDS, default=3600.0, show_default=True),
    click.option("--timeout-idle", metavar="SECONDS", type=SECONDS, default=300.0, show_default=True),
    click.option(
        "--timeout-total",
        metavar="SECONDS",
        type=SECONDS,
        default=3600.0,
        show_default=True,
        help="Longest time of one attempt.",
    ),
]

body_options = _collect(JobOptions, "job", _BODY_OPTIONS)
job_options = _collect(JobOptions, "job", _BODY_OPTIONS + _JOB_OPTIONS)
