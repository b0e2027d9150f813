"""Draft -> what a frame holds: body bytes cut where pictures belong, fingerprint, and the pictures themselves.

The body is made into JSON once, with a marker where each picture's base64 will stand, and cut at the markers. The
marker is random and made anew by each process, so no line can contain it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec

from gristmill.contract import frame
from gristmill.contract.failure import MAX_MESSAGE_CHARS, FailureClass
from gristmill.contract.frame import Image
from gristmill.intake import fingerprint
from gristmill.intake.draft import Draft, Refused
from gristmill.intake.errors import PictureError
from gristmill.intake.options import ImageOptions
from gristmill.intake.picture import Opened, Picture
from gristmill.intake.pictures import PictureStore
from gristmill.intake.plan import Carried
from gristmill.intake.readers import Line

_MARKER = f"gm-{secrets.token_hex(16)}"
_MARKER_BYTES = _MARKER.encode()
_json = msgspec.json.Encoder()

Take = Callable[[str | None, bytes], Carried | None]


class Entry(msgspec.Struct, gc=False):
    """One line, ready to be sealed (or carried): all but its ordinal, which is given in input order.

    Attributes:
        line: 1-based number in INPUT.
        place: its place among the lines that are not blank, from 0.
        offset_after: where the next line begins.
        custom_id: the caller's id, or None.
        fingerprint: 16 bytes.
        path: URL path below the endpoint's base.
        pieces: the body around the pictures.
        images: the pictures, in body order.
        blobs: hash -> bytes of the pictures that travel in the store.
        wants_json: see `frame.Request`.
        stream_removed: the line asked for a stream.
        model: whether the body names one.
        refused: why it can't be sent; then pieces and images are empty.
        carried: the finished line of an earlier run that answers it; then it is not sealed.
        label: what messages call it; None is ``line N``.
    """

    line: int
    place: int
    offset_after: int
    custom_id: str | None
    fingerprint: bytes
    path: str = ""
    pieces: list[bytes] = []
    images: list[Image] = []
    blobs: dict[str, bytes] = {}
    wants_json: bool = False
    stream_removed: bool = False
    has_model: bool = True
    refused: Refused | None = None
    carried: Carried | None = None
    label: str | None = None

    @property
    def called(self) -> str:
        """What messages call it."""
        return self.label or f"line {self.line}"

    def frame(self, ordinal: int) -> bytes:
        """The encoded frame of a line that is sent or refused."""
        if self.refused is not None:
            message = f"{self.called} {self.refused.reason}"[:MAX_MESSAGE_CHARS]
            refusal = frame.Refusal(ordinal, self.custom_id, self.fingerprint, self.refused.cls, message, self.line)
            return frame.encode(refusal)
        return frame.encode(
            frame.Request(
                ordinal,
                self.custom_id,
                self.fingerprint,
                self.path,
                self.pieces,
                self.images,
                self.wants_json,
                self.line,
            )
        )


def text_entry(line: Line, place: int, draft: Draft) -> Entry:
    """The entry of a draft without pictures."""
    raw = draft.raw
    try:
        digest = fingerprint.of_body(draft.path, draft.body)
        body = _json.encode(draft.body) if raw is None else raw
    except RecursionError:
        return refused_entry(line, place, _too_deep(draft))
    return Entry(
        line.number,
        place,
        line.offset_after,
        draft.custom_id,
        digest,
        draft.path,
        [body],
        [],
        {},
        draft.wants_json,
        draft.stream_removed,
        draft.has_model,
    )


def _too_deep(draft: Draft) -> Refused:
    """What could just be read may be too deep to be written."""
    return Refused(draft.custom_id, FailureClass.BAD_INPUT, "is nested too deeply")


def refused_entry(line: Line, place: int, refused: Refused) -> Entry:
    return Entry(
        line.number,
        place,
        line.offset_after,
        refused.custom_id,
        fingerprint.of_line(line.data),
        refused=refused,
    )


def entry_at_once(line: Line, place: int, draft: Draft, opened: list[Opened], options: ImageOptions) -> Entry:
    """The entry of a draft with pictures of which it is known what will be sent."""
    try:
        entry = _begun(line, place, draft, opened, options)
        _complete(entry, draft, [one.picture for one in opened if one.picture is not None])
    except RecursionError:
        return refused_entry(line, place, _too_deep(draft))
    return entry


async def picture_entry(
    line: Line, place: int, draft: Draft, store: PictureStore, options: ImageOptions, take: Take | None
) -> Entry:
    """The entry of a draft with pictures. What `take` knows as finished is not encoded.

    Raises:
        FeedError: encoders or the spool do not work on this machine.
    """
    try:
        opened = [await store.open(ref) for ref in draft.pictures]
        entry = _begun(line, place, draft, opened, options)
        if take is not None:
            entry.carried = take(entry.custom_id, entry.fingerprint)
            if entry.carried is not None:
                return entry
        _complete(entry, draft, [await store.ready(ref, one) for ref, one in zip(draft.pictures, opened, strict=True)])
    except RecursionError:
        return refused_entry(line, place, _too_deep(draft))
    except PictureError as error:
        return refused_entry(line, place, Refused(draft.custom_id, FailureClass.BAD_IMAGE, f"- {error.reason}"))
    return entry


def _begun(line: Line, place: int, draft: Draft, opened: list[Opened], options: ImageOptions) -> Entry:
    """The entry with its fingerprint, for which the sources are enough."""
    return Entry(
        line.number,
        place,
        line.offset_after,
        draft.custom_id,
        fingerprint.of_draft(draft, [picture.digest for picture in opened], options),
        draft.path,
        wants_json=draft.wants_json,
        stream_removed=draft.stream_removed,
        has_model=draft.has_model,
    )


def _complete(entry: Entry, draft: Draft, pictures: list[Picture]) -> None:
    """Put the body and its pictures into a begun entry."""
    entry.pieces = cut(draft, pictures)
    entry.images = [picture.image for picture in pictures]
    entry.blobs = {picture.image.digest: picture.blob for picture in pictures if picture.blob is not None}


def cut(draft: Draft, pictures: list[Picture]) -> list[bytes]:
    """The body as JSON, cut where the base64 of each picture belongs; one piece more than pictures.

    The pictures' URLs in the body are overwritten.
    """
    for ref, picture in zip(draft.pictures, pictures, strict=True):
        ref.holder[ref.key] = f"data:{picture.mime};base64,{_MARKER}"
    pieces = _json.encode(draft.body).split(_MARKER_BYTES)
    assert len(pieces) == len(pictures) + 1
    return pieces
