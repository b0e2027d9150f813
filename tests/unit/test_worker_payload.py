"""The gate that bounds the bytes of pictures on their way out."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gristmill.contract.frame import Image
from gristmilld.worker.payload import Gate, read_cached


async def entered(gate: Gate, size: int) -> asyncio.Task[None]:
    """A task that enters; it has run as far as it can."""
    task = asyncio.create_task(gate.enter(size))
    await asyncio.sleep(0)  # let it start
    return task


async def test_what_does_not_fit_waits_its_turn() -> None:
    """First come, first served: a small one does not overtake a large one that waits."""
    gate = Gate(10)
    await gate.enter(6)
    large = await entered(gate, 8)
    small = await entered(gate, 1)
    assert not large.done()
    assert not small.done()
    gate.leave(6)
    await asyncio.gather(large, small)
    assert gate.inside_bytes == 9


async def test_something_larger_than_the_gate_goes_in_alone() -> None:
    """Nothing is too large for ever."""
    gate = Gate(10)
    await gate.enter(1)
    huge = await entered(gate, 50)
    assert not huge.done()
    gate.leave(1)
    await huge
    assert gate.inside_bytes == 50


async def test_one_that_is_cancelled_takes_no_room() -> None:
    """Neither while it waits nor in the moment in which it is let in."""
    gate = Gate(10)
    await gate.enter(10)
    gone = await entered(gate, 10)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    let_in = await entered(gate, 10)
    gate.leave(10)
    let_in.cancel()
    with pytest.raises(asyncio.CancelledError):
        await let_in
    assert gate.inside_bytes == 0
    await gate.enter(10)


def reference(path: Path, /, **changes: object) -> Image:
    settings = {"sha": "ab" * 16, "size": path.stat().st_size, "path": str(path), "mtime_ns": path.stat().st_mtime_ns}
    return Image(**(settings | changes))


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the kernel must read without waiting")
def test_a_picture_in_the_cache_is_read_at_once(tmp_path: Path) -> None:
    """Only the very file that the producer saw, beneath an allowed root, and under no link; else the long way."""
    folder = Path(os.path.realpath(tmp_path))
    path = folder / "a.jpg"
    path.write_bytes(b"x" * 100_000)
    allowed = [f"{folder}/"]
    assert read_cached(reference(path), allowed) == path.read_bytes()
    assert read_cached(reference(path), ["/"]) == path.read_bytes()
    assert read_cached(reference(path), [f"{folder}-other/"]) is None
    assert read_cached(reference(path, size=99_999), allowed) is None
    assert read_cached(reference(path, size=100_001), allowed) is None
    assert read_cached(reference(path, mtime_ns=1), allowed) is None
    (folder / "link.jpg").symlink_to(path)
    assert read_cached(reference(folder / "link.jpg"), allowed) is None
    assert read_cached(reference(path, path=str(folder / "none.jpg")), allowed) is None
