"""The gate that bounds the bytes of pictures on their way out."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gristmill.contract.digest import digest_of
from gristmill.contract.failure import Failure
from gristmill.contract.frame import Image
from gristmilld.worker.payload import Gate, read_cached, read_reference


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
    """`path` as a feeder sees it, but for `changes`."""
    status = path.stat()
    seen = {"mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns, "inode": status.st_ino}
    return Image(
        **({"digest": digest_of(path.read_bytes()), "size": status.st_size, "path": str(path)} | seen | changes)
    )


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the kernel must read without waiting")
def test_a_picture_in_the_cache_is_read_at_once(tmp_path: Path) -> None:
    """Only the very file that the producer saw, beneath an allowed root, and under no link; else the long way."""
    folder = Path(os.path.realpath(tmp_path))
    path = folder / "a.jpg"
    path.write_bytes(b"x" * 100_000)
    allowed = (f"{folder}/",)
    assert read_cached(reference(path), allowed) == path.read_bytes()
    assert read_cached(reference(path), ("/",)) == path.read_bytes()
    assert read_cached(reference(path), (f"{folder}-other/",)) is None
    assert read_cached(reference(path), ()) is None
    for other in ({"size": 99_999}, {"size": 100_001}, {"mtime_ns": 1}, {"ctime_ns": 1}, {"inode": 1}):
        assert read_cached(reference(path, **other), allowed) is None, other
    (folder / "link.jpg").symlink_to(path)
    (folder / "folder").symlink_to(folder)
    for name in ("link.jpg", "folder/a.jpg", "none.jpg", f"../{folder.name}/a.jpg"):
        assert read_cached(reference(path, path=f"{folder}/{name}"), allowed) is None, name


def test_a_replaced_picture_is_known_by_its_hash(tmp_path: Path) -> None:
    """Other bytes of the same size and time are refused, equal ones are taken; a link is followed within the roots."""
    path = Path(os.path.realpath(tmp_path)) / "a.jpg"
    path.write_bytes(b"x" * 1000)
    seen, times = reference(path), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    roots = [path.parent]
    for data in (b"y" * 1000, b"x" * 1000):
        other = path.with_name("other")
        other.write_bytes(data)
        os.utime(other, ns=times)
        other.replace(path)
        assert path.stat().st_mtime_ns == seen.mtime_ns
        got = read_reference(seen, roots)
        assert isinstance(got, Failure) if data[0] == ord("y") else got == data
        assert read_cached(seen, (f"{path.parent}/",)) is None
    path.with_name("link.jpg").symlink_to(path)
    assert read_reference(reference(path, path=f"{path.parent}/link.jpg"), roots) == path.read_bytes()


def test_a_pipe_in_place_of_a_picture_holds_nobody_up(tmp_path: Path) -> None:
    """It is refused at once, though nobody will ever write to it."""
    path = Path(os.path.realpath(tmp_path)) / "a.jpg"
    path.write_bytes(b"x")
    seen = reference(path)
    path.unlink()
    os.mkfifo(path)
    assert read_cached(seen, (f"{path.parent}/",)) is None
    refused = read_reference(seen, [path.parent])
    assert isinstance(refused, Failure)
    assert "no regular file" in refused.message
