"""Which lines a job left out is found again from its input, or is said to be unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from redis.asyncio import Redis
from tests.support.queues import make_job

from gristmill.intake import skipped
from gristmill.intake.errors import InputError
from gristmill.intake.feeder import feed
from gristmill.intake.options import EncodeOptions, Recipe
from gristmill.intake.runs import Cursor
from gristmill.intake.skipped import with_skipped
from gristmill.intake.source import identify

RECIPE = Recipe(options=EncodeOptions(on_bad_line="skip", model="m"), limit=30)


def write(folder: Path) -> Path:
    """40 lines, of which those with 3 are bad, and that with 7 has a picture that can't be read."""
    path = folder / "in.jsonl"
    lines = [json.dumps({"custom_id": f"c{i}", "prompt": f"row {i}"}) for i in range(40)]
    lines = ["not a request" if "3" in f"{i}" else line for i, line in enumerate(lines)]
    lines[7] = json.dumps({"prompt": "look", "image": "seven.png"})
    path.write_text("\n".join(lines) + "\n")
    (folder / "seven.png").write_bytes(b"no picture")
    return path


async def test_the_lines_left_out_are_found_again(redis: Redis, tmp_path: Path) -> None:
    """As many are kept as the feeder kept, whose cursor says how far it came; the limit is kept to."""
    path = write(tmp_path)
    job = await make_job(redis, leases=False, source=identify(path))
    result = await feed(job, identify(path), RECIPE.options, None, "t", "test", lambda _: None, limit=RECIPE.limit)
    fed = Cursor.decode((await job.snapshot()).cursor)
    found = await with_skipped(path, RECIPE, places=fed.place, kept=fed.ordinal)
    assert found.skipped == [3, 7, 13, 23]
    assert result.sealed == 26
    assert (found.options.on_bad_line, found.options.model, found.limit) == ("record", "m", 30)
    shorter = await with_skipped(path, RECIPE, places=10, kept=8)
    assert shorter.skipped == [3, 7]


async def test_a_picture_that_was_mended_is_noticed(tmp_path: Path) -> None:
    """By the number of lines, and by the fingerprint of a line that is known; without either it can't be."""
    path = write(tmp_path)
    known = {7: "00" * 16}
    with pytest.raises(InputError, match="can't be told apart any more"):
        await with_skipped(path, RECIPE, known=known)
    with pytest.raises(InputError, match="can't be told apart any more"):
        await with_skipped(path, RECIPE, known={26: "00" * 16})
    Image.new("RGB", (30, 30)).save(tmp_path / "seven.png")
    with pytest.raises(InputError, match="can't be told apart any more: pictures"):
        await with_skipped(path, RECIPE, kept=26)
    assert (await with_skipped(path, RECIPE, kept=27)).skipped == [3, 13, 23]


async def test_too_many_lines_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would have to travel in the manifest of a retry."""
    monkeypatch.setattr(skipped, "MOST_SKIPPED", 3)
    with pytest.raises(InputError, match="more than 3 lines were left out"):
        await with_skipped(write(tmp_path), RECIPE)


async def test_a_recipe_that_leaves_out_nothing_is_not_looked_at(tmp_path: Path) -> None:
    """The input need not even be there."""
    recipe = Recipe(options=EncodeOptions(on_bad_line="record"))
    assert await with_skipped(tmp_path / "gone", recipe, kept=5) is recipe
