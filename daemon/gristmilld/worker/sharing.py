"""PURE: which jobs get a worker's free slots, and how many each.

Priority is strict: as long as a job of a higher class takes slots, a lower one gets none. Inside a class slots go by
weighted deficit round robin, with a request as the unit: with each grant every job that competes is credited its share
by weight, and pays for what it really takes. So jobs of weight 1 and 3 run 1:3 of the requests however small the
grants are, and whatever their answers take.

A job that takes less than it was granted (it has nothing to hand out now, is at its results mark or its limit in
flight, or in its trial) loses the credit that is left, as in any round robin: it cannot save up slots, and what it
leaves goes to the others in the same turn. A job at the back of a class therefore never blocks another, and the
others owe it nothing.

Use: `offer` names the next grant, `took` says what came of it, until there is no offer or no room any more.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Share(msgspec.Struct, frozen=True):
    """What a job asks for: `priority` (higher first) and `weight` (more than 0)."""

    job: str
    priority: int = 0
    weight: int = 1


class Grant(msgspec.Struct, frozen=True):
    """So many requests may be claimed of `job`, at least 1."""

    job: str
    slots: int


class Round:
    """The grants of one turn of a worker.

    Args:
        books: what jobs have in store from earlier turns; belongs to `Sharing`.
        shares: the jobs that can be asked now.
        room: how many requests are wanted in all.
    """

    def __init__(self, books: dict[str, float], shares: Iterable[Share], room: int) -> None:
        self._credits = books
        self._competing = {share.job: share for share in shares}
        self._room = room
        self._granted: Grant | None = None
        self._grants: list[Grant] = []

    def offer(self) -> Grant | None:
        """The next grant; None when the room is used up, or nobody is left who could take it."""
        assert self._granted is None, "say first what was taken of the grant before"
        if not self._grants:
            self._grants = self._divide()
        if self._grants:
            self._granted = self._grants.pop(0)
        return self._granted

    def took(self, count: int) -> None:
        """So many requests came of the last grant; one that was not used up ends the job's part in this turn."""
        grant = self._granted
        assert grant is not None, "nothing was granted"
        self._granted = None
        self._room -= count
        self._credits[grant.job] -= count
        if count < grant.slots:
            self._credits[grant.job] = min(0.0, self._credits[grant.job])
            del self._competing[grant.job]

    def _divide(self) -> list[Grant]:
        """Divide all the room among those of the highest class that are left."""
        if self._room <= 0 or not self._competing:
            return []
        top = max(share.priority for share in self._competing.values())
        peers = [share for share in self._competing.values() if share.priority == top]
        total = sum(share.weight for share in peers)
        for share in peers:
            due = self._room * share.weight / total
            self._credits[share.job] = self._credits.get(share.job, 0.0) + due
        slots = _whole({share.job: self._credits[share.job] for share in peers}, self._room)
        return [Grant(job, count) for job, count in slots.items() if count > 0]


class Sharing:
    """The memory between turns: credits of jobs that compete."""

    def __init__(self) -> None:
        self._credits: dict[str, float] = {}

    def round(self, shares: Iterable[Share], room: int) -> Round:
        """The grants of one turn.

        Args:
            shares: the jobs that can be asked now, each once; what others had in store is forgotten.
            room: how many requests are wanted.
        """
        competing = list(shares)
        jobs = {share.job for share in competing}
        # a turn that ran to its end leaves parts of a slot; one that was broken off must not be made up for
        self._credits = {job: max(-1.0, min(credit, 1.0)) for job, credit in self._credits.items() if job in jobs}
        return Round(self._credits, competing, room)


def _whole(due: dict[str, float], room: int) -> dict[str, int]:
    """Whole slots by credit, together `room`: each gets the whole part of its credit, the largest rests one more."""
    slots = {job: max(0, int(credit)) for job, credit in due.items()}
    while (over := sum(slots.values()) - room) > 0:  # others are in debt: take it from those who have most
        richest = max(slots, key=lambda job: slots[job])
        slots[richest] -= min(over, slots[richest])
    rest = room - sum(slots.values())
    by_need = sorted(due, key=lambda job: due[job] - slots[job], reverse=True)
    for i in range(rest):
        slots[by_need[i % len(by_need)]] += 1
    return slots
