"""Tells lines apart in an input of which a job left some out (``--on-bad-line skip``).

Ordinals count the lines that were kept, and nothing remembers the others. They are found by reading the input again
with the same options, pictures and all, for what can be sent is decided the same way each time. But a picture may have
been mended or lost since, and then other lines would be kept; so what is found is compared with what is known of the
job.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path

import msgspec

from gristmill.intake.encode import Entry
from gristmill.intake.errors import InputError
from gristmill.intake.options import Recipe
from gristmill.intake.pictures import PictureStore
from gristmill.intake.pipeline import Pipeline
from gristmill.intake.selection import select

MOST_SKIPPED = 100_000
"""They are named in the manifest of a retry."""


async def with_skipped(
    path: str | Path,
    recipe: Recipe,
    *,
    places: int | None = None,
    kept: int | None = None,
    known: Mapping[int, str] | None = None,
) -> Recipe:
    """A recipe for the same lines that names those which were left out; one that leaves out none comes back as it is.

    Args:
        places: lines that are not blank which the job had read; None is all.
        kept: of these, the lines that are part of the job, where that is known.
        known: ordinal -> fingerprint in hex, of some of its lines.

    Raises:
        InputError: other lines can be sent now than then, or too many were left out, or the input can't be read.
        FeedError: pictures can't be encoded on this machine.
    """
    if recipe.options.on_bad_line != "skip":
        return recipe
    count = _Count(known or {})
    async with aclosing(_entries(path, recipe)) as entries:
        async for entry in entries:
            if places is not None and entry.place >= places:
                break
            count.see(entry)
    if count.differs or (kept is not None and kept != count.kept):
        raise InputError(
            f"{path}: other lines can be sent now than when the job was made, so its lines can't be told apart any "
            "more: pictures have been mended, changed or lost since"
        )
    if len(count.skipped) > MOST_SKIPPED:
        raise InputError(f"{path}: more than {MOST_SKIPPED:,} lines were left out: send the failed ones as a new input")
    options = msgspec.structs.replace(recipe.options, on_bad_line="record")
    return msgspec.structs.replace(recipe, options=options, skipped=count.skipped)


class _Count:
    """Counts the lines that are kept as a feeder does."""

    def __init__(self, known: Mapping[int, str]) -> None:
        self.kept = 0
        self.skipped: list[int] = []
        self._known = known
        self._left = len(known)
        self._moved = False

    @property
    def differs(self) -> bool:
        """Whether a line that is known is another one, or is not there."""
        return self._moved or self._left > 0

    def see(self, entry: Entry) -> None:
        if entry.refused is not None:
            self.skipped.append(entry.place)
            return
        expected = self._known.get(self.kept)
        if expected is not None:
            self._left -= 1
            self._moved = self._moved or expected != entry.fingerprint.hex()
        self.kept += 1


async def _entries(path: str | Path, recipe: Recipe) -> AsyncGenerator[Entry]:
    options = msgspec.structs.replace(recipe.options, inline=True)  # so that no picture is spooled
    store = PictureStore(options, str(Path(path).absolute().parent))
    try:
        most, arrays = options.max_line_bytes, options.arrays
        selection = await asyncio.to_thread(
            select, path, recipe.limit, recipe.sample, max_line_bytes=most, arrays=arrays
        )
        pipeline = Pipeline(path, options, store, selection=selection)
        try:
            while not pipeline.ended:
                for entry in await pipeline.ready():
                    yield entry
        finally:
            await pipeline.close()
    finally:
        await store.close()
