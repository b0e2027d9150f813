"""``OUT.failed.jsonl``: the requests that failed, as an input that can be sent again.

Each line has the batch form with the body that was sent, pictures by absolute path, and ``gristmill``: the line's index
in OUT and how it failed. A line that could not be read stands there as it was, to be mended by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gristmill.intake import picture_source
from gristmill.intake.draft import Draft, Refused
from gristmill.intake.errors import PictureError
from gristmill.intake.normalise import Normaliser
from gristmill.intake.options import ImageOptions, Recipe
from gristmill.intake.readers import open_lines
from gristmill.intake.selection import select

_json = msgspec.json.Encoder()


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a line says of itself.

    Attributes:
        index: of its line in OUT.
        cls: how that failed.
        image: how its pictures were made fit; None where it has none.
    """

    index: int
    cls: str = msgspec.field(name="class")
    image: ImageOptions | None = None


class _Noted(msgspec.Struct, frozen=True):
    gristmill: Note


_noted = msgspec.json.Decoder(_Noted)


def note_of(line: bytes) -> Note | None:
    """What a line of ``OUT.failed.jsonl`` says of itself; None where it stands as it was."""
    try:
        return _noted.decode(line).gristmill
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def failed_requests(path: str | Path, recipe: Recipe, failed: Mapping[int, str]) -> Iterator[bytes]:
    """The lines of the input at `path` with an ordinal in `failed` (-> class), each as a line of ``OUT.failed.jsonl``.

    A recipe that leaves lines out must name them: see `skipped`.

    Raises:
        InputError: the input can't be read.
    """
    options = recipe.options
    normalise = Normaliser(options)
    root = options.media_root or str(Path(path).absolute().parent)
    most, arrays = options.max_line_bytes, options.arrays
    chosen = select(path, recipe.limit, recipe.sample, max_line_bytes=most, arrays=arrays)
    gone = frozenset(recipe.skipped)
    left, ordinal = len(failed), -1
    for place, line in enumerate(open_lines(path, max_line_bytes=most, arrays=arrays)):
        if not left:
            return
        if place not in chosen or place in gone:
            continue
        ordinal += 1
        if ordinal not in failed:
            continue
        left -= 1
        draft = None if line.problem else normalise(line.data)
        if draft is None or isinstance(draft, Refused):
            yield line.data.rstrip(b"\r\n") + b"\n"
        else:
            _place_pictures(draft, root)
            note = Note(ordinal, failed[ordinal], options.image if draft.pictures else None)
            yield _json.encode(_batch_form(draft, note)) + b"\n"


def _place_pictures(draft: Draft, root: str) -> None:
    for ref in draft.pictures:
        if not picture_source.is_data_url(ref):
            try:
                ref.holder[ref.key] = picture_source.resolve(ref, root)
            except PictureError:
                continue  # it can't be a path, which is why it failed


def _batch_form(draft: Draft, note: Note) -> dict[str, Any]:
    named = {} if draft.custom_id is None else {"custom_id": draft.custom_id}
    return {
        **named,
        "method": "POST",
        "url": f"/v1{draft.path}",
        "body": draft.body,
        "gristmill": note,
    }
