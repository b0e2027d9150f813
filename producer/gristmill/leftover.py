"""What a job that has ended leaves beside OUT: ``OUT.failed.jsonl``, see `intake.failed`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from gristmill.contract.manifest import Manifest
from gristmill.intake.errors import FeedError, InputError
from gristmill.intake.failed import failed_requests
from gristmill.intake.options import Recipe
from gristmill.intake.skipped import with_skipped
from gristmill.intake.source import require_unchanged
from gristmill.outlet.errors import disk
from gristmill.outlet.failures import failed_lines
from gristmill.outlet.files import sync_folder, write_file
from gristmill.outlet.lines import Tail


class Origin(msgspec.Struct, frozen=True):
    """What the lines of OUT were made from."""

    path: Path
    recipe: Recipe


def failed_path(out: Path) -> Path:
    """Where the failed requests of `out` lie."""
    return out.with_name(out.name + ".failed.jsonl")


def origin_of(manifest: Manifest, may_read: Callable[[str], bool] = lambda _: True) -> Origin | None:
    """The input of a job that somebody else made; None where it is not here, or not what it was."""
    recipe = Recipe.of(manifest.recipe)
    if recipe is None or manifest.source is None or not may_read(manifest.source.path):
        return None
    try:
        require_unchanged(manifest.source)
    except InputError:
        return None
    return Origin(Path(manifest.source.path), recipe)


def keep_failed(out: Path, origin: Origin, tell: Callable[[str], object]) -> None:
    """Write the failed requests of OUT beside it, in place of an earlier run's, and `tell` of it; blocks on the disk.

    Nothing happens where that file is INPUT. Where bad lines were left out, INPUT is read again with its pictures, to
    tell which.

    Raises:
        DiskError: it can't be written.
    """
    target = failed_path(out)
    if target.exists() and target.samefile(origin.path):
        return
    failed = failed_lines(out)
    with disk(target):
        if not failed:
            target.unlink(missing_ok=True)
            return
    fresh = target.with_name(target.name + ".new")
    try:
        write_file(fresh, _requests(origin, failed))
    except (InputError, FeedError) as error:
        fresh.unlink(missing_ok=True)
        tell(f"{target} is not written: {error}")
        return
    with disk(target):
        fresh.replace(target)
    sync_folder(target.parent)
    tell(f"the failed requests lie in {target}, as an input to send again")


def _requests(origin: Origin, failed: Mapping[int, Tail]) -> Iterator[bytes]:
    """See `failed_requests`; lines are told apart by their fingerprints where some were left out."""
    known = {ordinal: tail.fingerprint for ordinal, tail in failed.items()}
    recipe = asyncio.run(with_skipped(origin.path, origin.recipe, known=known))
    return failed_requests(origin.path, recipe, {ordinal: tail.cls for ordinal, tail in failed.items()})
