"""What a retry needs to know: which requests of a job failed and how, and which of them a retry sends again.

A record leaves the store once it has been collected, so the class of a failed one is kept beside it (key ``f``, a byte
per index). The ordinals that a retry sends are a bitmap in the retry's own keys (``o``): its k-th request is the k-th
bit that is set, for whoever feeds it and for whoever lays its answers over the parent's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gristmill.queue.handle import Handle


async def failed_codes(handle: Handle) -> bytes:
    """A byte per index: the class code of a failed record (`contract.failure.CODES`), 0 of any other.

    Only as long as the last failed index asks for.
    """
    found: Any = await handle.redis.get(handle.keys.failures)
    return found or b""


async def done_bits(handle: Handle) -> bytes:
    """The done bitmap; see `ones`."""
    found: Any = await handle.redis.get(handle.keys.done)
    return found or b""


async def choose(handle: Handle, ordinals: Iterable[int]) -> None:
    """Say which ordinals of the parent this job sends; before it is fed, and never changed afterwards."""
    bits = bytearray()
    for ordinal in ordinals:
        at = ordinal >> 3
        if at >= len(bits):
            bits.extend(bytes(at + 1 - len(bits)))
        bits[at] |= 0x80 >> (ordinal & 7)
    await handle.redis.set(handle.keys.chosen, bytes(bits))


async def chosen(handle: Handle) -> list[int] | None:
    """The ordinals of the parent that this job sends, in order; None while nobody has said."""
    bits: Any = await handle.redis.get(handle.keys.chosen)
    return None if bits is None else list(ones(bits))


def ones(bits: bytes) -> Iterator[int]:
    """Positions of the bits that are set, in order, as the store counts them: the first is the highest of byte 0."""
    for at, byte in enumerate(bits):
        if byte:
            for bit in range(8):
                if byte & 0x80 >> bit:
                    yield at * 8 + bit
