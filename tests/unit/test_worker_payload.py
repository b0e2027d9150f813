"""The gate that bounds the bytes of pictures on their way out."""

from __future__ import annotations

import asyncio

import pytest

from gristmilld.worker.payload import Gate


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
