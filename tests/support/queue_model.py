"""A small pure model of one job in the lease queue: what every call must answer, and where every index then is.

It knows no Redis and no clock: an index in delay is either due or not, as the test says. Claims are checked rather than
predicted, since which of several equal indices comes first is no promise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gristmill.contract import record
from gristmill.contract.failure import FailureClass
from gristmill.queue.replies import Claimed, Finished, Returned

PROVES_NOTHING = (FailureClass.BAD_INPUT, FailureClass.BAD_IMAGE)
OPEN = ("running", "paused", "cancelling")
ENDED = ("cancelled", "expired")
DEATHS_ALONE = 8
"""So many crashes of workers over a lone suspect make it poison."""


@dataclass
class Past:
    attempts: int = 0
    crashes: int = 0
    cohort: int = 0
    alone: int = 0
    first: int = 0

    @property
    def poison(self) -> bool:
        return self.alone >= DEATHS_ALONE

    def as_tuple(self) -> tuple[int, ...]:
        return (self.attempts, self.crashes, self.cohort, self.alone, self.first)


@dataclass
class Model:
    first_alone: int = 0
    max_in_flight: int = 0
    max_failures: int = 0
    state: str = "running"
    closed: bool = False
    runs: list[tuple[int, int]] = field(default_factory=list)
    cur: int = 0
    records: dict[int, bytes] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    waiting: dict[int, bool] = field(default_factory=dict)
    suspects: dict[int, bool] = field(default_factory=dict)
    held: dict[str, dict[int, int]] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    past: dict[int, Past] = field(default_factory=dict)
    proven: bool = False
    failed_base: int = 0

    @property
    def prod(self) -> int:
        return sum(count for _, count in self.runs)

    @property
    def in_flight(self) -> int:
        return sum(map(len, self.held.values()))

    @property
    def failed(self) -> int:
        return sum(record.decode(r).cls is not None for r in self.records.values())

    def over(self) -> None:
        if self.state not in OPEN:
            return
        if self.closed and len(self.records) == self.prod:
            self.state = "complete"
        elif self.state == "cancelling" and not self.in_flight:
            self.state = "cancelled"

    # -- feeder

    def seal(self, run: int, first: int, count: int, *, torn: bool, full: bool) -> str:
        if self.state == "cancelling" or self.state in ENDED:
            return "CANCELLED"
        if run < len(self.runs):
            return "DUP"
        if self.closed:
            return "CLOSED"
        if run > len(self.runs) or first != self.prod:
            return "GAP"
        if torn:
            return "TORN"
        if full:
            return "FULL"
        self.runs.append((first, count))
        return "OK"

    def close(self, runs: int, n: int) -> str:
        if self.state in ENDED:
            return "CANCELLED"
        if (runs, n) != (len(self.runs), self.prod):
            return "GAP"
        if not self.closed:
            self.closed = True
            self.over()
        return "OK"

    # -- worker

    def may_take(self, token: str, want: int) -> int:
        """How many indices a claim may give at most."""
        holds = self.held.get(token, {})
        if any(claim < 0 for claim in holds.values()):
            return 0
        if self.max_in_flight:
            want = min(want, self.max_in_flight - self.in_flight)
        if self.first_alone and not self.proven:
            want = min(want, self.first_alone - self.in_flight) if len(holds) == self.in_flight else 0
        return max(want, 0)

    def claim_refused(self, token: str, *, believed: bool) -> str | None:
        if believed and token not in self.tokens:
            return "LOST"
        return None if self.state == "running" else "IDLE"

    def claimed(self, token: str, want: int, claimed: list[Claimed], *, suspects: bool, full: bool) -> None:
        """Check what a claim gave, and take it over."""
        most = self.may_take(token, want)
        due = {i for i, is_due in self.waiting.items() if is_due}
        due_suspects = {i for i, is_due in self.suspects.items() if is_due}
        got = [c.index for c in claimed]
        assert len(got) == len(set(got)) <= most, "more than asked for, or one twice"
        assert not set(got) & set(self.records), "I11: a done index was handed out"
        if suspects and due_suspects and most and not self.held.get(token):
            self._check_suspects(claimed, due_suspects)
        else:
            self._check_plain(claimed, due, most, full=full)
        for c in claimed:
            past = self.past.get(c.index, Past())
            assert (c.attempts, c.crashes, c.poison) == (past.attempts, past.crashes, past.poison)
            assert c.first_ms == past.first, "the time of its first claim changed"
            first, count = self.runs[c.run]
            assert first <= c.index < first + count, "a wrong run"
            self.waiting.pop(c.index, None)
            self.suspects.pop(c.index, None)
            self.held.setdefault(token, {})[c.index] = -c.claim if c.suspect else c.claim
        if claimed:
            self.tokens.add(token)

    def _check_suspects(self, claimed: list[Claimed], due: set[int]) -> None:
        assert claimed, "suspects were due but none was handed out"
        assert all(c.suspect and c.index in due for c in claimed)
        assert len(claimed) <= min(self.past[c.index].cohort for c in claimed), "in too large a company"

    def _check_plain(self, claimed: list[Claimed], due: set[int], most: int, *, full: bool) -> None:
        assert not any(c.suspect for c in claimed)
        retries = [c.index for c in claimed if c.index in due]
        assert len(retries) == min(most, len(due)), "retries that are due come first"
        fresh = [c.index for c in claimed if c.index not in due]
        expected, at = [], self.cur
        while not full and len(retries) + len(expected) < most and at < self.prod:
            if at not in self.records:
                expected.append(at)
            at += 1
        assert sorted(fresh) == expected, "fresh indices come in order"
        self.cur = max(self.cur, at)

    def commit(self, token: str, finished: list[Finished], returned: list[Returned]) -> dict[str, object]:
        ended = self.state in ENDED
        new = dup = stale = ahead = 0
        holds = self.held.get(token, {})
        for item in finished:
            if item.index >= self.prod:
                ahead += 1
                continue
            holds.pop(item.index, None)
            if ended or item.index in self.records:
                dup += 1
                continue
            new += 1
            self.records[item.index] = item.record
            for place in (self.waiting, self.suspects, self.past):
                place.pop(item.index, None)
            if record.decode(item.record).cls not in PROVES_NOTHING:
                self.proven = True
        for back in returned:
            stale += not self._take_back(holds, back, ended=ended)
        self.over()
        if (
            new
            and self.state == "running"
            and self.max_failures
            and self.failed - self.failed_base >= self.max_failures
        ):
            self.state = "paused"
        counts = {"new": new, "dup": dup, "stale": stale, "ahead": ahead}
        status = "ENDED" if ended else "OK"
        return {"status": status, "state": self.state, "complete": self.state == "complete", **counts}

    def _take_back(self, holds: dict[int, int], back: Returned, *, ended: bool) -> bool:
        value = holds.get(back.index, 0)
        if abs(value) != back.claim:
            return False
        del holds[back.index]
        if not ended and back.index not in self.records:
            (self.suspects if value < 0 else self.waiting)[back.index] = back.delay_ms == 0
            past = self._seen(back.index, value)
            past.attempts += back.charged
        return True

    def _seen(self, index: int, claim: int) -> Past:
        """The history of an index that was held under `claim`."""
        past = self.past.setdefault(index, Past())
        past.first = past.first or abs(claim)
        return past

    def reap(self, token: str, *, crashed: bool) -> tuple[str, int]:
        if token not in self.tokens:
            return "NONE", 0
        holds = self.held.pop(token, {})
        self.tokens.discard(token)
        moved = [i for i in holds if i not in self.records and self.state not in ENDED]
        for index in moved:
            past = self._seen(index, holds[index])
            queue = self.suspects if holds[index] < 0 and not past.poison else self.waiting
            if crashed:
                queue = self._blame(index, company=len(holds), was_suspect=holds[index] < 0)
            queue[index] = True
        self.over()
        return "OK", len(moved)

    def _blame(self, index: int, *, company: int, was_suspect: bool) -> dict[int, bool]:
        past = self.past.setdefault(index, Past())
        if past.poison:
            return self.waiting
        past.cohort = max(1, min(company, past.cohort or company) // 2)
        past.crashes += 1
        past.alone += was_suspect and company == 1
        return self.waiting if past.poison else self.suspects

    # -- collector and control

    def ack(self, indices: list[int]) -> tuple[int, int]:
        known = [i for i in indices if i in self.records]
        fresh = {i for i in known if i not in self.acked}
        self.acked |= fresh
        return len(fresh), len(indices) - len(known)

    def pause(self) -> None:
        if self.state == "running":
            self.state = "paused"

    def resume(self) -> None:
        if self.state == "paused":
            self.state = "running"
            self.proven, self.failed_base = False, self.failed
            self.over()

    def cancel(self) -> None:
        if self.state in ("running", "paused"):
            self.state = "cancelling"
            self.over()

    def settle(self, *, force: bool) -> None:
        if self.state == "cancelling" and (force or not self.in_flight):
            self.state = "cancelled"
