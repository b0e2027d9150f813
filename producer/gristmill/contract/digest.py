"""PURE: the hash of a picture's bytes, the same wherever one is named, compared or looked for.

BLAKE3, cut to 128 bits: a picture of 300 KB takes a quarter of the time that SHA-256 takes with the processor's own
instructions for it. Two pictures with one hash are one picture; to make such a pair on purpose takes 2^64 tries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blake3 import blake3

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

DIGEST_BYTES = 16


def digest_of(data: ReadableBuffer) -> str:
    """The hash of `data`, 32 hex digits."""
    return blake3(data).hexdigest(DIGEST_BYTES)
