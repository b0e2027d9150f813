"""The actors around one job in the lease queue: each step is done to the store and to the model, and compared.

The steps are those of feeders, workers, collectors and controllers; which comes when is `queue_machine`'s to choose.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Coroutine
from typing import Any

from redis.asyncio import Redis

from gristmill.contract.failure import FailureClass
from gristmill.queue import LeaseQueue
from gristmill.queue.replies import Claimed, Finished, Returned, Run
from tests.support.invariants import check_invariants
from tests.support.queue_model import ENDED, Model
from tests.support.queues import COLLECTOR, FEEDER, TTL_MS, frame, make_job, record_of

LINES = 100


class Worker:
    """What one worker process believes."""

    count = 0

    def __init__(self) -> None:
        Worker.count += 1
        self.token = f"w{Worker.count}"
        self.believed = False
        self.mine: dict[int, Claimed] = {}


class Player:
    """The store's job, its model, and what every actor believes; `begin_job` first."""

    redis: Redis
    queue: LeaseQueue
    model: Model

    def __init__(self) -> None:
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

    async def begin_job(self, url: str, limits: dict[str, int], marks: dict[str, int]) -> None:
        self.redis = Redis.from_url(url)
        self.queue = await make_job(self.redis, **limits, **marks)
        self.model = Model(**limits)
        for count in (9, 7):
            await self._feed(*self.position, count)

    async def _save(self) -> None:
        keys = [k async for k in self.redis.scan_iter(match=self.queue.keys.pattern) if b":s:" not in k]
        dump = {key: await self.redis.dump(key) for key in keys}
        self.saved = (dump, copy.deepcopy(self.model), self.queue.version)

    async def _delays_end(self) -> None:
        keys = self.queue.keys
        for key, places in ((keys.waiting, self.model.waiting), (keys.suspects, self.model.suspects)):
            if places:
                await self.redis.zadd(key, dict.fromkeys(map(str, places), 1), xx=True)
                places.update(dict.fromkeys(places, True))

    async def _lease_runs_out(self, token: str) -> None:
        known = await self.redis.zadd(self.queue.keys.workers, {token: 1}, xx=True, ch=True)
        assert await self.queue.reap_expired() == known
        assert self.model.reap(token, crashed=False)[0] == ("OK" if known else "NONE")

    async def _second_collector(self) -> None:
        blocks = await self.queue.read_blocks(1 << 20)
        reply = await self.queue.ack("someone-else", {b: list(r) for b, r in blocks.items()} or {0: [0]})
        assert reply.status == "LOST"

    def busy(self, who: int) -> Worker:
        """One of the workers, of those that hold something if there are any."""
        some = [w for w in self.workers if w.mine] or self.workers
        return some[who % len(some)]

    def remember(self, replay: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.log.append((self.generation, replay))

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

    async def _close(self, runs: int, n: int) -> None:
        expected = self.model.close(runs, n)
        assert (await self.queue.close(runs, n)).status == expected

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

    async def _reap(self, token: str, *, crashed: bool) -> None:
        expected = self.model.reap(token, crashed=crashed)
        reply = await self.queue.reap(token, force=True, crashed=crashed)
        assert (reply.status, reply.moved) == expected
        self.remember(lambda: self._reap(token, crashed=crashed))

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

    async def _control(self, call: Coroutine[Any, Any, Any]) -> None:
        assert (await call).state == self.model.state

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
        extra = set(self.file) - set(self.model.records)
        assert not set(self.model.records) - set(self.file), "I14: the file has every done index"
        assert not extra or self.lost_suffix, "I14: the file has only what is done, unless the store has lost it since"
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
        await self._delays_end()
        await self._claim(worker, 20, suspects=True)
        finished = [self._finished(c, None) for c in worker.mine.values()]
        if finished:
            await self._commit(worker.token, finished, [])
        await self._reap(worker.token, crashed=False)
