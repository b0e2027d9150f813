"""Every option that shapes what is sent, in one value that travels as JSON (feeder process, job.json, digest)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

OnBadLine = Literal["record", "fail", "skip"]
InputFormat = Literal["requests", "conversations"]

DEFAULT_MAX_LINE_BYTES = 64 << 20


class ImageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How pictures are made fit to send.

    Attributes:
        max_pixels: larger pictures are scaled down to so many pixels; 0 keeps every size.
        max_bytes: larger files are encoded anew with less quality, then fewer pixels; 0 is unbounded.
        quality: JPEG quality of what must be encoded anew, 1..95.
        allow_truncated: send what can be decoded of a cut file, the rest grey, instead of refusing it.
        bomb_pixels: a picture that claims more pixels is refused before anything of it is decoded.
    """

    max_pixels: int = 0
    max_bytes: int = 0
    quality: int = 90
    allow_truncated: bool = False
    bomb_pixels: int = 178_956_970

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 95:
            raise ValueError(f"the JPEG quality must lie in 1..95, not {self.quality}")
        if min(self.max_pixels, self.max_bytes) < 0 or self.bomb_pixels < 1:
            raise ValueError("limits of pictures must not be negative")


class EncodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How lines become bodies.

    Attributes:
        model: what ``-m`` said: put into every body, over the line's own.
        default_model: put where neither the line nor ``-m`` names one.
        set: keys put into every body, over everything else.
        system: a system message put first, unless the line's messages begin with one of their own.
        media_root: folder of relative picture paths; None is the input's own folder.
        roots: pictures are read only from beneath these folders, all links followed; None is anywhere.
        inline: pictures travel in the store; False: by reference, for workers that see the same files.
        spool_dir: where pictures that had to be encoded anew lie when `inline` is False; without it they go inline.
        image: see `ImageOptions`.
        format: what a line is: a request in one of the forms of `normalise`, or a row of `conversations`.
        on_bad_line: what happens to a line (or its picture) that can't be sent: a failed result, the end, or nothing.
        max_line_bytes: longer lines are refused unread.
        encoders: encoder processes; 0 is one per core.
    """

    model: str | None = None
    default_model: str | None = None
    set: dict[str, Any] = {}
    system: str | None = None
    media_root: str | None = None
    roots: list[str] | None = None
    inline: bool = True
    spool_dir: str | None = None
    image: ImageOptions = ImageOptions()
    format: InputFormat = "requests"
    on_bad_line: OnBadLine = "record"
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES
    encoders: int = 0

    @property
    def arrays(self) -> bool:
        """Whether the input may be one JSON array: data sets of conversations often are."""
        return self.format == "conversations"


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """All that makes requests of an input: options and which lines. It travels in the job's manifest.

    Attributes:
        options: how lines become bodies.
        strict: a repeated custom_id is an input error.
        limit, sample: which lines; None is all.
        skipped: of these, the places of lines that are not counted, since an earlier job left them out (see `skipped`).
    """

    options: EncodeOptions = EncodeOptions()
    strict: bool = False
    limit: int | None = None
    sample: int | None = None
    skipped: list[int] = []

    def to_manifest(self) -> dict[str, Any]:
        """As the manifest holds it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    @classmethod
    def of(cls, manifest_recipe: dict[str, Any]) -> Recipe | None:
        """What a manifest holds; None where it holds none.

        Raises:
            msgspec.ValidationError: another version wrote it.
        """
        return msgspec.convert(manifest_recipe, cls) if manifest_recipe else None
