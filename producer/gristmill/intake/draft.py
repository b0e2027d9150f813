"""What a line becomes on its way to a frame: a draft whose pictures are still to be fetched, or a refusal."""

from __future__ import annotations

from typing import Any

import msgspec

from gristmill.contract.failure import FailureClass


class PictureRef(msgspec.Struct):
    """One picture that a body names and that we fetch.

    Attributes:
        holder: the object in the body whose `key` is the picture's URL; it is rewritten in place.
        key: see `holder`.
        url: as the line has it: a path, ``file://`` or a data URL; never http.
        place: for messages, e.g. ``message 1 part 2``.
    """

    holder: dict[str, Any]
    key: str
    url: str
    place: str


class Draft(msgspec.Struct):
    """One request, its body final but for the pictures.

    Attributes:
        custom_id: the caller's id, or None.
        path: URL path below the endpoint's base.
        body: the merged body.
        raw: the body's own bytes in the line where nothing was merged, so that they are sent as they are; else None.
        pictures: in no particular order.
        wants_json: the body asks for JSON output.
        stream_removed: the line asked for a streamed answer.
        has_model: the body names a model.
    """

    custom_id: str | None
    path: str
    body: dict[str, Any]
    raw: bytes | None
    pictures: list[PictureRef]
    wants_json: bool
    stream_removed: bool
    has_model: bool


class Refused(msgspec.Struct):
    """One line that can't be sent; `reason` is a clause that follows "line N"."""

    custom_id: str | None
    cls: FailureClass
    reason: str
