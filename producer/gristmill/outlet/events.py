"""What the collector tells while it works; the caller's `report` gets each as it happens, on the event loop."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """Lines became durable, or were acked.

    Attributes:
        new: lines of this job that are durable, failed ones included.
        failed: how many of them failed.
        carried: lines taken over from earlier runs so far.
        acked: records acked by this collector.
        line_bytes: length of the durable lines.
    """

    new: int
    failed: int
    carried: int
    acked: int
    line_bytes: int


class StoreWait(msgspec.Struct, frozen=True):
    """The store does not answer; told anew at every try.

    Attributes:
        waited_s: since when, seconds.
        reason: the kind of error; no address, no password.
    """

    waited_s: float
    reason: str


class StoreBack(msgspec.Struct, frozen=True):
    """It answers again, after `waited_s` seconds."""

    waited_s: float


class RolledBack(msgspec.Struct, frozen=True):
    """The store lost its latest changes: some requests are run again, their lines are already here."""


Event = Progress | StoreWait | StoreBack | RolledBack
Report = Callable[[Event], None]
