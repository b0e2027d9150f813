"""A state machine that does to one job whatever can happen to it: real scripts in a real store, beside a pure model.

Scripts are atomic, so an order of steps is an order of clients. The faults: replies lost, calls sent twice or long
after, workers that die or stall and come back as zombies, feeders that start again from an older place, collectors that
die between file and ack, a second collector, forced and expired leases, and a store taken back to an older state.
After every step the store is compared with the model and the invariants are asserted on its raw keys.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Coroutine
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import PauseReason
from gristmill.queue.replies import Returned
from tests.support.queue_player import LINES, Player, Worker
from tests.support.queues import TTL_MS

SEEDS = st.integers(0, 1 << 16)
OUTCOMES = [None, None, None, FailureClass.BAD_REQUEST, FailureClass.BAD_INPUT]


class QueueMachine(Player, RuleBasedStateMachine):
    """Run it with `for_store(url)`."""

    url = ""

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        Player.__init__(self)
        self.runner = asyncio.Runner()
        self.broken = False

    @classmethod
    def for_store(cls, url: str) -> type[QueueMachine]:
        return type("QueueMachineOnStore", (cls,), {"url": url})

    def do(self, step: Coroutine[Any, Any, None]) -> None:
        """Run one step; a failed one leaves nothing to finish."""
        try:
            self.runner.run(step)
        except BaseException:
            self.broken = True
            raise

    @initialize(
        first_alone=st.sampled_from([0, 2]),
        max_in_flight=st.sampled_from([0, 0, 7]),
        max_failures=st.sampled_from([0, 0, 3]),
        payload_mark=st.sampled_from([1 << 20, 3000]),
        results_mark=st.sampled_from([1 << 20, 2000]),
    )
    def begin(
        self, first_alone: int, max_in_flight: int, max_failures: int, payload_mark: int, results_mark: int
    ) -> None:
        limits = {"first_alone": first_alone, "max_in_flight": max_in_flight, "max_failures": max_failures}
        marks = {"payload_mark_bytes": payload_mark, "results_mark_bytes": results_mark}
        self.do(self.begin_job(self.url, limits, marks))

    # -- feeder

    @rule(count=st.integers(1, 12), tear=st.sampled_from([False] * 7 + [True]), lost=st.booleans())
    def feed(self, count: int, tear: bool, lost: bool) -> None:
        run, first = self.position
        if first < LINES:
            self.do(self._feed(run, first, min(count, LINES - first), tear=tear, lost=lost))

    @rule(back=st.integers(1, 3))
    def feeder_starts_from_an_older_place(self, back: int) -> None:
        run = max(self.position[0] - back, 0)
        if run < len(self.model.runs):
            self.position = (run, self.model.runs[run][0])

    @rule(short=st.booleans())
    def close(self, short: bool) -> None:
        if self.position[1] == LINES or short:
            self.do(self._close(self.position[0], self.position[1] + (3 if short else 0)))

    # -- worker

    @rule(who=st.integers(0, 2), want=st.sampled_from([1, 3, 8, 20]), suspects=st.booleans(), lost=st.booleans())
    def claim(self, who: int, want: int, suspects: bool, lost: bool) -> None:
        self.do(self._claim(self.workers[who], want, suspects=suspects, lost=lost and who == 0))

    @rule(who=st.integers(0, 2), want=st.sampled_from([1, 3, 8]), suspects=st.booleans(), crashed=st.booleans())
    def claim_and_die(self, who: int, want: int, suspects: bool, crashed: bool) -> None:
        worker = self.workers[who]
        self.do(self._claim(worker, want, suspects=suspects))
        if worker in self.workers:
            self.kill_worker(worker, crashed=crashed)

    @rule(times=st.sampled_from([2, 5, 12]), want=st.sampled_from([1, 3]))
    def crash_again_and_again(self, times: int, want: int) -> None:
        """Whatever is handed out first kills its worker, in the end so often that it is poison."""
        for _ in range(times):
            self.do(self._claim(self.workers[0], want, suspects=True))
            self.kill_worker(self.workers[0], crashed=True)

    @rule(seed=SEEDS)
    def work(self, seed: int) -> None:
        """A worker claims and answers most of it, so that the story gets on."""
        worker = self.workers[seed % 3]
        self.do(self._claim(worker, 8, suspects=True))
        if worker in self.workers:
            self._answer(worker, random.Random(seed), part=6)

    @rule(who=st.integers(0, 6), seed=SEEDS, part=st.sampled_from([1, 2, 5, 30]))
    def commit(self, who: int, seed: int, part: int) -> None:
        party = self.workers + self.zombies
        self._answer(party[who % len(party)], random.Random(seed), part)

    def _answer(self, worker: Worker, chance: random.Random, part: int) -> None:
        finished, returned = [], []
        for index in chance.sample(sorted(worker.mine), min(len(worker.mine), part)):
            claimed = worker.mine.pop(index)
            if claimed.poison or chance.random() < 0.75:
                finished.append(self._finished(claimed, chance.choice(OUTCOMES)))
            else:
                delay_ms = chance.choice([0, TTL_MS])
                returned.append(Returned(index, claimed.claim, delay_ms, charged=chance.choice([0, 1, 2])))
        if finished or returned:
            self.do(self._commit(worker.token, finished, returned))

    @precondition(lambda self: self.log)
    @rule(pick=SEEDS, recent=st.booleans())
    def replay(self, pick: int, recent: bool) -> None:
        log = self.log[-4:] if recent else self.log
        generation, step = log[pick % len(log)]
        before = copy.deepcopy(self.model)
        self.do(step())
        if generation == self.generation:
            assert self.model == before, "I13: a replay changed something"

    @rule(who=st.integers(0, 2), crashed=st.booleans(), comes_back=st.booleans())
    def kill(self, who: int, crashed: bool, comes_back: bool) -> None:
        worker = self.busy(who)
        if comes_back:
            self.zombies = [*self.zombies, self._twin(worker)][-4:]
        self.kill_worker(worker, crashed=crashed)

    def kill_worker(self, worker: Worker, *, crashed: bool) -> None:
        old = self._replace(worker)
        self.do(self._reap(old.token, crashed=crashed))

    @rule(who=st.integers(0, 2))
    def lease_runs_out(self, who: int) -> None:
        self.do(self._lease_runs_out(self.busy(who).token))

    @rule(who=st.integers(0, 2), adopt=st.booleans())
    def renew_and_reconcile(self, who: int, adopt: bool) -> None:
        self.do(self._reconcile(self.busy(who), adopt=adopt))

    @rule()
    def delays_end(self) -> None:
        self.do(self._delays_end())

    # -- collector

    @rule(max_bytes=st.sampled_from([1, 600, 1 << 20]), acks=st.sampled_from([0, 1, 3, 100]))
    def collect(self, max_bytes: int, acks: int) -> None:
        self.do(self._collect(max_bytes, acks))

    @rule()
    def second_collector(self) -> None:
        self.do(self._second_collector())

    # -- control

    @rule()
    def pause(self) -> None:
        self.model.pause()
        self.do(self._control(self.queue.pause(PauseReason.USER, "by the test")))

    @rule()
    def resume(self) -> None:
        self.model.resume()
        self.do(self._control(self.queue.resume()))

    @rule(sure=st.sampled_from([False] * 4 + [True]))
    def cancel(self, sure: bool) -> None:
        if sure:
            self.model.cancel()
            self.do(self._control(self.queue.cancel()))

    @rule(force=st.sampled_from([False, False, True]))
    def settle(self, force: bool) -> None:
        self.model.settle(force=force)
        self.do(self._control(self.queue.settle(force=force)))

    # -- the store loses a suffix

    @precondition(lambda self: not self.saved)
    @rule()
    def save(self) -> None:
        self.do(self._save())

    @precondition(lambda self: self.saved)
    @rule(really=st.sampled_from([False, False, True]))
    def restore(self, really: bool) -> None:
        if really:
            self.do(self._restore())

    # -- after every step

    @invariant()
    def store_equals_model(self) -> None:
        self.do(self._compare())

    # -- the end: whatever happened, the job can be finished

    def teardown(self) -> None:
        try:
            if not self.broken and hasattr(self, "queue"):
                self.runner.run(self._finish())
        finally:
            if hasattr(self, "redis"):
                self.runner.run(self.redis.aclose())
            self.runner.close()
