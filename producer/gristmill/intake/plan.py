"""What the feeder asks of whoever knows the finished lines of an earlier run over the same OUT.

The feeder asks with `take` once a line's fingerprint is known, which may be a little ahead of its turn, and calls
`carry` in input order. A crash, or a store that lost a suffix, sends the feeder back to a cursor that says how many
lines had been carried there: `rewind` then gives back everything taken since. So the sequence of carried lines, the
sealed runs and the cursor always agree: `flush` makes the carried lines durable before a cursor that counts them is
sealed.
"""

from __future__ import annotations

from typing import Any, Protocol

Carried = Any
"""An earlier result, opaque to the feeder; never None."""


class Plan(Protocol):
    def take(self, custom_id: str | None, fingerprint: bytes) -> Carried | None:
        """A finished line of this id and fingerprint that was not yet taken, else None."""

    def carry(self, ordinal: int, carried: Carried) -> None:
        """That finished line answers line `ordinal` of this run; called in rising order of ordinals."""

    def flush(self) -> None:
        """Return once everything carried so far is durable."""

    def rewind(self, carried_count: int) -> None:
        """Keep the first `carried_count` carried lines; everything else taken is free again."""
