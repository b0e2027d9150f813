"""What a job that has ended leaves beside OUT: ``OUT.failed.jsonl``, see `intake.failed`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from gristmill.contract.manifest import Manifest
from gristmill.intake.errors import InputError
from gristmill.intake.failed import failed_requests
from gristmill.intake.options import Recipe
from gristmill.intake.source import require_unchanged
from gristmill.outlet.errors import disk
from gristmill.outlet.failures import failures
from gristmill.outlet.files import sync_folder, write_file


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

    Nothing happens where bad lines were skipped, since lines can't be told apart then, or where that file is INPUT.

    Raises:
        DiskError: it can't be written.
    """
    target = failed_path(out)
    if target.exists() and target.samefile(origin.path):
        return
    failed = failures(out)
    with disk(target):
        if not failed or origin.recipe.options.on_bad_line == "skip":
            target.unlink(missing_ok=True)
            return
    fresh = target.with_name(target.name + ".new")
    try:
        write_file(fresh, failed_requests(origin.path, origin.recipe, failed))
    except InputError as error:
        fresh.unlink(missing_ok=True)
        tell(f"{target} is not written: {error}")
        return
    with disk(target):
        fresh.replace(target)
    sync_folder(target.parent)
    tell(f"the failed requests lie in {target}, as an input to send again")
