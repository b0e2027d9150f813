"""Pool, client and retry together, as a worker's slots use them: nothing is lost and nothing is burnt."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from tests.support.standin import Standin
from tests.support.wait import wait_until

from gristmill.contract.failure import Failure
from gristmill.contract.manifest import Timeouts
from gristmilld.config import EndpointConfig
from gristmilld.engine.standin.faults import Fault
from gristmilld.engine.standin.server import StandIn
from gristmilld.engine.standin.settings import Control
from gristmilld.upstream.body import Body
from gristmilld.upstream.client import UpstreamClient
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.outcome import Answer
from gristmilld.upstream.pool import EndpointPool
from gristmilld.upstream.retry import Action, decide

TIMEOUTS = Timeouts(connect_s=5, first_byte_s=10, idle_s=10, total_s=20)
TEXT = Body([b'{"messages":[{"role":"user","content":"hello"}]}'])
CHANCE = random.Random(3)


class Slots:
    """`count` requests over as many slots; each ends in an answer or a final failure."""

    def __init__(self, client: UpstreamClient, pool: EndpointPool) -> None:
        self.client = client
        self.pool = pool
        self.charged = 0
        self.classes: Counter[str] = Counter()

    async def request(self) -> Answer | Failure:
        charged = 0
        fresh = False
        while True:
            endpoint = self.pool.pick()
            if endpoint is None:
                wait_s = self.pool.next_ready_in_s()
                await asyncio.sleep(0.01 if wait_s is None else min(wait_s, 0.1))
                continue
            with endpoint.begin() as call:
                call.outcome = await self.client.send(endpoint, "/chat/completions", TEXT, TIMEOUTS, fresh=fresh)
            if isinstance(call.outcome, Answer):
                return call.outcome
            assert call.outcome is not None
            self.classes[call.outcome.cls] += 1
            decision = decide(call.outcome, charged, 5, CHANCE.random())
            if decision.action is Action.FINAL:
                return call.outcome
            charged += decision.charged
            self.charged += decision.charged
            fresh = decision.action is Action.RETRY_NOW
            await asyncio.sleep(min(decision.delay_s, 0.05) if decision.action is not Action.WAIT else 0)

    async def run(self, count: int) -> list[Answer | Failure]:
        return await asyncio.gather(*(self.request() for _ in range(count)))


def pool_of(*urls: str) -> EndpointPool:
    return EndpointPool(Endpoint(EndpointConfig(name=f"e{i}", url=u)) for i, u in enumerate(urls))


async def test_a_storm_of_429_costs_nothing_and_is_not_fed():
    """64 refusals at once: no attempt is charged, and what follows is held back until the wait is over."""
    async with Standin(faults=[{"kind": "status", "status": 429, "retry_after": 0.5, "times": 64}]) as standin:
        standin.control(latency=0.02)
        async with UpstreamClient(64) as client:
            slots = Slots(client, pool_of(standin.url))
            outcomes = await slots.run(64)
        assert all(isinstance(o, Answer) for o in outcomes)
        assert slots.charged == 0
        assert standin.stats["requests"] == 128


async def test_an_endpoint_that_is_down_is_waited_for():
    """Requests wait while nobody listens, try little, and all are answered once it is back on the same port."""
    first = StandIn()
    await first.start()
    port = first.port
    await first.close()
    async with UpstreamClient(32) as client:
        pool = pool_of(f"http://127.0.0.1:{port}/v1")
        slots = Slots(client, pool)
        running = asyncio.create_task(slots.run(32))
        await wait_until(lambda: pool.endpoints[0].state == "down", description="the breaker is open")
        second = StandIn()
        await second.start(port=port)
        outcomes = await running
        await second.close()
    assert all(isinstance(o, Answer) for o in outcomes)
    assert slots.charged == 0
    assert slots.classes["endpoint_down"] <= 2 * 32


async def test_the_other_endpoint_takes_over():
    """One of two is down: its share goes to the other."""
    async with Standin() as standin, UpstreamClient(16) as client:
        dead = StandIn()
        await dead.start()
        url = f"http://127.0.0.1:{dead.port}/v1"
        await dead.close()
        slots = Slots(client, pool_of(standin.url, url))
        outcomes = await slots.run(64)
    assert {o.endpoint for o in outcomes if isinstance(o, Answer)} == {"e0"}
    assert len(outcomes) == 64
    assert slots.charged == 0


async def test_connections_cut_at_random_are_retried_to_the_end():
    """Resets, closes, half answers and 5xx among good answers: every request ends well within its attempts."""
    faults = [{"kind": k, "rate": 0.04} for k in ("reset", "close", "truncated", "empty", "garbage")]
    faults.append({"kind": "status", "status": 502, "rate": 0.04})
    async with Standin(faults=faults) as standin, UpstreamClient(32) as client:
        outcomes = await Slots(client, pool_of(standin.url)).run(300)
    assert sum(isinstance(o, Answer) for o in outcomes) >= 299


async def test_overload_shrinks_what_is_in_flight_and_lets_it_grow():
    """A server that answers 503 above its strength is given less, and no request is charged for it."""
    standin = StandIn(Control(latency=0.01))
    await standin.start()
    async with UpstreamClient(64) as client:
        pool = pool_of(f"http://127.0.0.1:{standin.port}/v1")
        slots = Slots(client, pool)
        await slots.run(64)
        standin.apply(Control(faults=[Fault(kind="status", status=503, times=64)]))
        await slots.run(64)
        shrunk = pool.endpoints[0].limits.limit
        assert shrunk < 64
        for _ in range(10):
            await slots.run(64)
        assert pool.endpoints[0].limits.limit > shrunk
    await standin.close()
    assert slots.charged == 0
    assert slots.classes == {"overloaded": 64}
