"""`producer check`: read and encode the whole input as a feeder would, without a store, and say what would be sent."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import msgspec

from gristmill.contract.failure import FailureClass
from gristmill.intake.encode import Entry
from gristmill.intake.lines_seen import LinesSeen, Notice
from gristmill.intake.options import EncodeOptions
from gristmill.intake.pictures import PictureStore
from gristmill.intake.pipeline import Pipeline
from gristmill.intake.selection import select
from gristmill.intake.source import identify

_MOST_BAD = 20


class BadLine(msgspec.Struct, frozen=True):
    line: int
    cls: FailureClass
    reason: str


class Example(msgspec.Struct, frozen=True):
    """One request as it would be sent; each picture's base64 is replaced by its size."""

    line: int
    custom_id: str | None
    path: str
    fingerprint: str
    body: str


class _ModelOnly(msgspec.Struct):
    model: str | None = None


class CheckReport(msgspec.Struct, kw_only=True):
    """What an input holds.

    Attributes:
        lines: lines that are not blank (of those meant by limit and sample).
        sendable: of these, those that can be sent.
        bad: the first bad lines; `refused` counts all.
        duplicates: lines that repeat a custom_id; `notices` name the first.
        pictures: pictures in all requests.
        body_bytes, largest_body_bytes: bodies as sent, base64 included.
        models: model -> requests; "" are those that name none.
        paths: URL path -> requests.
        notices: sentences about duplicates and removed streams.
        examples: the first requests.
    """

    path: str
    lines: int = 0
    sendable: int = 0
    refused: int = 0
    bad: list[BadLine] = []
    duplicates: int = 0
    streams_removed: int = 0
    pictures: int = 0
    body_bytes: int = 0
    largest_body_bytes: int = 0
    models: dict[str, int] = {}
    paths: dict[str, int] = {}
    notices: list[str] = []
    examples: list[Example] = []

    @property
    def clean(self) -> bool:
        """Every line can be sent, and no custom_id occurs twice."""
        return not self.refused and not self.duplicates


async def check(
    path: str | Path,
    options: EncodeOptions,
    *,
    limit: int | None = None,
    sample: int | None = None,
    examples: int = 1,
) -> CheckReport:
    """Read every line and every picture of the input; nothing is written or sent.

    Raises:
        InputError: the input as a whole can't be read.
        FeedError: pictures can't be encoded on this machine.
    """
    source = identify(path)
    # inline, so that no picture is spooled for a mere check
    options = msgspec.structs.replace(options, inline=True)
    report = CheckReport(path=str(path))
    store = PictureStore(options, str(Path(source.path).parent))
    seen = LinesSeen(lambda notice: _note(report, notice), on_bad_line=options.on_bad_line)
    try:
        most = options.max_line_bytes
        selection = await asyncio.to_thread(
            select, source.path, limit, sample, max_line_bytes=most, arrays=options.arrays
        )
        pipeline = Pipeline(source.path, options, store, selection=selection)
        tally = _Tally(report, examples)
        try:
            while not pipeline.ended:
                for entry in await pipeline.ready():
                    seen.see(entry)
                    tally.add(entry)
        finally:
            await pipeline.close()
        seen.sum_up()
        tally.finish(seen)
    finally:
        await store.close()
        seen.close()
    return report


def _note(report: CheckReport, notice: Notice) -> None:
    if notice.kind != "bad_line":  # these are listed as `bad`
        report.notices.append(notice.text)


class _Tally:
    def __init__(self, report: CheckReport, examples: int) -> None:
        self._report = report
        self._examples = examples
        self._models: Counter[str] = Counter()
        self._paths: Counter[str] = Counter()

    def add(self, entry: Entry) -> None:
        report = self._report
        report.lines += 1
        if entry.refused is not None:
            if len(report.bad) < _MOST_BAD:
                report.bad.append(BadLine(entry.line, entry.refused.cls, entry.refused.reason))
            return
        report.sendable += 1
        report.pictures += len(entry.images)
        size = sum(map(len, entry.pieces)) + sum((image.size + 2) // 3 * 4 for image in entry.images)
        report.body_bytes += size
        report.largest_body_bytes = max(report.largest_body_bytes, size)
        self._paths[entry.path] += 1
        self._models[_model(entry)] += 1
        if len(report.examples) < self._examples:
            report.examples.append(_example(entry))

    def finish(self, seen: LinesSeen) -> None:
        report = self._report
        report.refused, report.duplicates = seen.refused, seen.duplicates
        report.streams_removed = seen.streams_removed
        report.models, report.paths = dict(self._models), dict(self._paths)


def _model(entry: Entry) -> str:
    """The model in the body, read from the bytes that are sent."""
    if not entry.has_model:
        return ""
    try:
        return msgspec.json.decode(b"".join(entry.pieces), type=_ModelOnly).model or ""
    except (msgspec.MsgspecError, RecursionError):
        return ""  # a model that is no string: the server will say so


def _example(entry: Entry) -> Example:
    body = entry.pieces[0]
    for image, piece in zip(entry.images, entry.pieces[1:], strict=True):
        body += f"<{image.size:,} bytes>".encode() + piece
    return Example(entry.line, entry.custom_id, entry.path, entry.fingerprint.hex(), body.decode())
