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
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from redis.asyncio import Redis

from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import PauseReason
from gristmill.queue import LeaseQueue
from gristmill.queue.replies import Claimed, Finished, Returned, Run
from tests.support.invariants import check_invariants
from tests.support.queue_model import ENDED, Model
from tests.support.queues import COLLECTOR, FEEDER, TTL_MS, frame, make_job, record_of

LINES = 100
SEEDS = st.integers(0, 1 << 16)
OUTCOMES = [None, None, None, None, FailureClass.BAD_REQUEST, FailureClass.BAD_INPUT]


class Worker:
    """What one worker process believes."""

    count = 0

    def __init__(self) -> None:
        Worker.count += 1
        self.token = f"w{Worker.count}"
        self.believed = False
        self.mine: dict[int, Claimed] = {}


class QueueMachine(RuleBasedStateMachine):
    """Run it with `for_store(url)`."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.broken = False
        self.workers = [Worker() for _ in range(3)]
        self.zombies: list[Worker] = []
        self.log: list[tuple[int, Callable[[], Coroutine[Any, Any, None]]]] = []
        self.generation = 0
        self.lost_suffix = False
        self.saved: tuple[dict[bytes, bytes], Model, int] | None = None
        self.position = (0, 0)
        self.file: dict[int, bytes] = {}
        self.ever: dict[int, set[bytes]] = {}
        self.serial = 0

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
        first_alone=st.sampled_from([0, 0, 2]),
        max_in_flight=st.sampled_from([0, 0, 7]),
        max_failures=st.sampled_from([0, 0, 3]),
        payload_mark=st.sampled_from([1 << 20, 3000]),
        results_mark=st.sampled_from([1 << 20, 2000]),
    )
    def begin(
        self, first_alone: int, max_in_flight: int, max_failures: int, payload_mark: int, results_mark: int
    ) -> None:
        async def step() -> None:
            self.redis = Redis.from_url(self.url)
            limits = {"first_alone": first_alone, "max_in_flight": max_in_flight, "max_failures": max_failures}
            marks = {"payload_mark_bytes": payload_mark, "results_mark_bytes": results_mark}
            self.queue: LeaseQueue = await make_job(self.redis, **limits, **marks)
            self.model = Model(**limits)
            for count in (9, 7):
                await self._feed(*self.position, count)

        self.do(step())

    def busy(self, who: int) -> Worker:
        """One of the workers, of those that hold something if there are any."""
        some = [w for w in self.workers if w.mine] or self.workers
        return some[who % len(some)]

    def remember(self, replay: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.log.append((self.generation, replay))

    # -- feeder

    @rule(count=st.integers(1, 12), tear=st.sampled_from([False] * 7 + [True]), lost=st.booleans())
    def feed(self, count: int, tear: bool, lost: bool) -> None:
        run, first = self.position
        if first < LINES:
            self.do(self._feed(run, first, min(count, LINES - first), tear=tear, lost=lost))

    async def _feed(self, run: int, first: int, count: int, *, tear: bool = False, lost: bool = False) -> None:
        fields: dict[bytes | str, bytes] = {str(i): frame(i) for i in range(first, first + count)}
        fields[f"i:{run:032x}"] = b"p" * 30
        before = await self.queue.snapshot()
        staged = await self.queue.stage(FEEDER, dict(list(fields.items())[: -1 if tear else None]))
        full = before.payload_bytes and before.payload_bytes + staged + 100 * len(fields) > before.payload_mark_bytes
        cursor = b"%d" % (first + count)
        spec = Run(run=run, first=first, count=count, bytes=staged, fields=len(fields), cursor=cursor)
        expected = self.model.seal(run, first, count, torn=tear, full=bool(full))
        reply = await self.queue.seal(FEEDER, spec)
        assert reply.status == expected
        if expected in ("OK", "DUP", "GAP") and not lost:
            self.position = (reply.sealed_runs, int(reply.cursor or 0))
        if expected == "OK":
            self.remember(lambda: self._feed(run, first, count, lost=True))

    @rule(back=st.integers(1, 3))
    def feeder_starts_from_an_older_place(self, back: int) -> None:
        run = max(self.position[0] - back, 0)
        if run < len(self.model.runs):
            self.position = (run, self.model.runs[run][0])

    @rule(short=st.booleans())
    def close(self, short: bool) -> None:
        if self.position[1] == LINES or short:
            self.do(self._close(self.position[0], self.position[1] + (3 if short else 0)))

    async def _close(self, runs: int, n: int) -> None:
        expected = self.model.close(runs, n)
        assert (await self.queue.close(runs, n)).status == expected

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

    @rule(times=st.integers(2, 5), want=st.sampled_from([1, 3]))
    def crash_again_and_again(self, times: int, want: int) -> None:
        """Whatever is handed out first kills its worker: in the end it is poison."""
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

    async def _claim(self, worker: Worker, want: int, *, suspects: bool, lost: bool = False) -> None:
        refused = self.model.claim_refused(worker.token, believed=worker.believed)
        before = await self.queue.snapshot()
        full = before.results_bytes > before.results_mark_bytes
        reply = await self.queue.claim(worker.token, want, 1 << 30, TTL_MS, believed=worker.believed, suspects=suspects)
        if refused:
            assert reply.status == refused
            if refused == "LOST":
                self.zombies = [*self.zombies, self._replace(worker)][-4:]
            return
        assert reply.status == ("OK" if reply.claimed else "EMPTY")
        self.model.claimed(worker.token, want, reply.claimed, suspects=suspects, full=full)
        frames = await self.queue.fetch(reply.claimed)
        assert frames == [frame(c.index) for c in reply.claimed], "I12: a claimed index without its payload"
        if not lost and reply.claimed:
            worker.believed = True
            worker.mine |= {c.index: c for c in reply.claimed}

    @staticmethod
    def _twin(worker: Worker) -> Worker:
        twin = copy.copy(worker)
        twin.mine = dict(worker.mine)
        return twin

    def _replace(self, worker: Worker) -> Worker:
        """The worker goes on with a new token; gives its old self, which may still come back."""
        old = self._twin(worker)
        self.workers = [Worker() if w is worker else w for w in self.workers]
        return old

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

    def _finished(self, claimed: Claimed, cls: FailureClass | None) -> Finished:
        self.serial += 1
        return Finished(claimed.index, claimed.run, record_of(claimed.index, cls, b"[%d]" % self.serial))

    async def _commit(self, token: str, finished: list[Finished], returned: list[Returned]) -> None:
        expected = self.model.commit(token, finished, returned)
        reply = await self.queue.commit(token, finished, returned)
        assert {name: getattr(reply, name) for name in expected} == expected
        for item in finished:
            self.ever.setdefault(item.index, set()).add(item.record)
        self.remember(lambda: self._commit(token, finished, returned))

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

    async def _reap(self, token: str, *, crashed: bool) -> None:
        expected = self.model.reap(token, crashed=crashed)
        reply = await self.queue.reap(token, force=True, crashed=crashed)
        assert (reply.status, reply.moved) == expected
        self.remember(lambda: self._reap(token, crashed=crashed))

    @rule(who=st.integers(0, 2))
    def lease_runs_out(self, who: int) -> None:
        async def step() -> None:
            token = self.busy(who).token
            known = await self.redis.zadd(self.queue.keys.workers, {token: 1}, xx=True, ch=True)
            assert await self.queue.reap_expired() == known
            assert self.model.reap(token, crashed=False)[0] == ("OK" if known else "NONE")

        self.do(step())

    @rule(who=st.integers(0, 2), adopt=st.booleans())
    def renew_and_reconcile(self, who: int, adopt: bool) -> None:
        self.do(self._reconcile(self.busy(who), adopt=adopt))

    async def _reconcile(self, worker: Worker, *, adopt: bool) -> None:
        reply = await self.queue.renew(worker.token, TTL_MS)
        assert (reply.status == "LOST") == (worker.token not in self.model.tokens)
        if reply.status != "OK":
            return
        held = await self.queue.held(worker.token)
        assert reply.held == len(held)
        unknown = {i: claim for i, claim in held.items() if i not in worker.mine}
        worker.mine = {i: c for i, c in worker.mine.items() if i in held}
        if unknown and adopt:
            await self._commit(worker.token, [], [Returned(i, claim, 0, charged=0) for i, claim in unknown.items()])

    @rule()
    def delays_end(self) -> None:
        async def step() -> None:
            for key, places in (
                (self.queue.keys.waiting, self.model.waiting),
                (self.queue.keys.suspects, self.model.suspects),
            ):
                if places:
                    await self.redis.zadd(key, dict.fromkeys(map(str, places), 1), xx=True)
                    places.update(dict.fromkeys(places, True))

        self.do(step())

    # -- collector

    @rule(max_bytes=st.sampled_from([1, 600, 1 << 20]), acks=st.sampled_from([0, 1, 3, 100]))
    def collect(self, max_bytes: int, acks: int) -> None:
        self.do(self._collect(max_bytes, acks))

    async def _collect(self, max_bytes: int, acks: int) -> None:
        blocks = await self.queue.read_blocks(max_bytes)
        for records in blocks.values():
            for index, data in records.items():
                assert data == self.model.records[index], "I4: a record changed"
                assert index not in self.model.acked, "I7: an acked record came back"
                self.file.setdefault(index, data)
        some = {block: list(records)[:acks] for block, records in blocks.items()}
        await self._ack(some)

    async def _ack(self, some: dict[int, list[int]]) -> None:
        expected = self.model.ack([i for indices in some.values() for i in indices])
        reply = await self.queue.ack(COLLECTOR, some)
        assert (reply.acked, reply.unknown) == expected
        if any(some.values()):
            self.remember(lambda: self._ack(some))

    @rule()
    def second_collector(self) -> None:
        async def step() -> None:
            blocks = await self.queue.read_blocks(1 << 20)
            reply = await self.queue.ack("someone-else", {b: list(r) for b, r in blocks.items()} or {0: [0]})
            assert reply.status == "LOST"

        self.do(step())

    # -- control

    @rule()
    def pause(self) -> None:
        self.model.pause()
        self.do(self._control(self.queue.pause(PauseReason.USER, "by the test")))

    @rule()
    def resume(self) -> None:
        self.model.resume()
        self.do(self._control(self.queue.resume()))

    @rule(sure=st.sampled_from([False] * 9 + [True]))
    def cancel(self, sure: bool) -> None:
        if sure:
            self.model.cancel()
            self.do(self._control(self.queue.cancel()))

    @rule(force=st.sampled_from([False, False, True]))
    def settle(self, force: bool) -> None:
        self.model.settle(force=force)
        self.do(self._control(self.queue.settle(force=force)))

    async def _control(self, call: Coroutine[Any, Any, Any]) -> None:
        assert (await call).state == self.model.state

    # -- the store loses a suffix

    @precondition(lambda self: not self.saved)
    @rule()
    def save(self) -> None:
        async def step() -> None:
            keys = [k async for k in self.redis.scan_iter(match=self.queue.keys.pattern) if b":s:" not in k]
            dump = {key: await self.redis.dump(key) for key in keys}
            self.saved = (dump, copy.deepcopy(self.model), self.queue.version)

        self.do(step())

    @precondition(lambda self: self.saved)
    @rule(really=st.sampled_from([False, False, True]))
    def restore(self, really: bool) -> None:
        if really:
            self.do(self._restore())

    async def _restore(self) -> None:
        dump, model, version = self.saved
        self.saved = None
        newest = self.queue.version
        async for key in self.redis.scan_iter(match=self.queue.keys.pattern):
            await self.redis.delete(key)
        for key, value in dump.items():
            await self.redis.restore(key, 0, value)
        self.model, self.lost_suffix = model, True
        self.generation += 1
        self.queue.rolled_back = False
        await self.queue.snapshot()
        assert self.queue.rolled_back == (version < newest), "a version that goes backwards is a lost suffix"
        assert self.queue.version == version

    # -- after every step

    @invariant()
    def store_equals_model(self) -> None:
        self.do(self._compare())

    async def _compare(self) -> None:
        seen = await check_invariants(self.redis, self.queue, lost_suffix=self.lost_suffix)
        model = self.model
        assert seen.state == model.state
        assert (seen.prod, seen.done, seen.acked) == (model.prod, set(model.records), model.acked)
        assert {t: h for t, h in seen.held.items() if h} == {t: h for t, h in model.held.items() if h}
        assert seen.tokens == model.tokens
        assert all(seen.records[i] == model.records[i] for i in seen.records)
        if model.state not in ENDED:
            assert seen.cur == model.cur
            assert (seen.waiting, seen.suspects) == (set(model.waiting), set(model.suspects))
            past = {i: p.as_tuple() for i, p in model.past.items() if any(p.as_tuple())}
            assert {i: p for i, p in seen.history.items() if any(p)} == past

    # -- the end: whatever happened, the job can be finished

    def teardown(self) -> None:
        try:
            if not self.broken and hasattr(self, "queue"):
                self.runner.run(self._finish())
        finally:
            if hasattr(self, "redis"):
                self.runner.run(self.redis.aclose())
            self.runner.close()

    async def _finish(self) -> None:
        for token in list(self.model.tokens):
            await self._reap(token, crashed=False)
        for _ in range(400):
            if self.model.state in ("complete", "cancelled"):
                break
            await self._push_on()
            await self._collect(1 << 20, 1000)
        await self._collect(1 << 20, 1000)
        await self._compare()
        assert set(self.file) == set(self.model.records), "I14: the file has every done index"
        if self.model.state == "complete":
            assert set(self.file) == set(range(LINES)), "I14: the file has every line"
        assert all(data in self.ever[i] for i, data in self.file.items()), "I14: a record nobody committed"
        await self.queue.settle(force=True)
        snapshot = await self.queue.snapshot()
        assert (snapshot.payload_bytes, snapshot.results_bytes, snapshot.in_flight) == (0, 0, 0), "I16"
        await self.queue.remove()
        left = [key async for key in self.redis.scan_iter(match=self.queue.keys.pattern)]
        assert not left, "I18: a key is left after removal"

    async def _push_on(self) -> None:
        self.model.resume()
        await self.queue.resume()
        if not self.model.closed and self.model.state != "cancelling":
            self.position = (len(self.model.runs), self.model.prod)
            if self.model.prod < LINES:
                await self._feed(*self.position, min(10, LINES - self.model.prod))
            else:
                await self._close(*self.position)
        worker = Worker()
        for queue in (self.queue.keys.waiting, self.queue.keys.suspects):
            members = await self.redis.zrange(queue, 0, -1)
            if members:
                await self.redis.zadd(queue, dict.fromkeys(members, 1))
        for places in (self.model.waiting, self.model.suspects):
            places.update(dict.fromkeys(places, True))
        await self._claim(worker, 20, suspects=True)
        finished = [self._finished(c, None) for c in worker.mine.values()]
        if finished:
            await self._commit(worker.token, finished, [])
        await self._reap(worker.token, crashed=False)
