"""Kills and network faults at seeded random moments.

Kills are spread over the requests of a run, not over its time: the n-th kill of a kind falls due when its share of the
requests is done, a little earlier or later by chance. So a slow machine runs the same story, only slower.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

from gristmill.queue import loader
from tests.support.chaos_people import Command, children, send, slay, watched
from tests.support.chaos_world import LEASE_TTL_S, World
from tests.support.proxy import Proxy, Snag

SNAGS: tuple[Snag, ...] = ("drop_reply", "cut_reply", "cut_request", "half_close", "reset")
CALLS = ("claim", "commit", "renew", "seal", "ack", "lease", "reap", "close", "")
GAP_S = 0.8
"""Mean time between two kills: much less would only kill what has not started yet."""


class Killer:
    """Kills what is due.

    Args:
        world: what there is to kill.
        total: requests of the whole run.
        progress: how many are done.
        feeders, collectors: the commands that run now.
    """

    def __init__(
        self,
        world: World,
        total: int,
        progress: Callable[[], int],
        feeders: Callable[[], Sequence[Command]],
        collectors: Callable[[], Sequence[Command]],
    ) -> None:
        self._world = world
        self._chance = world.chance
        self._total = total
        self._progress = progress
        self._feeders = feeders
        self._collectors = collectors
        self._due = {kind: self._moments(rate) for kind, rate in world.profile.kills}
        self._thawing: set[asyncio.Task[None]] = set()
        self._store_away: asyncio.Task[None] | None = None

    def _moments(self, rate: int) -> list[int]:
        """At how many finished requests each kill of a kind falls due; the last one first."""
        count = max(1, round(rate * self._total / 100_000))
        step = self._total * 0.96 / count
        return sorted((int(step * (i + self._chance.random())) for i in range(count)), reverse=True)

    async def run(self) -> None:
        """Kill until cancelled."""
        while True:
            done = self._progress()
            backlog = {kind: sum(moment <= done for moment in moments) for kind, moments in self._due.items()}
            due = [kind for kind, count in backlog.items() if count]
            if due:
                kind = self._chance.choices(due, [backlog[kind] for kind in due])[0]
                if await getattr(self, f"_{kind}")():
                    self._due[kind].pop()
                    self._world.kills[kind] += 1
            await asyncio.sleep(self._chance.expovariate(1 / GAP_S) if due else 0.2)

    async def _worker(self) -> bool:
        found = watched(self._world.pids, "worker")
        if not found:
            return False
        prefix = self._chance.choice(sorted(found))
        send(found[prefix], signal.SIGSTOP)  # so that what it holds can be counted at the moment of its death
        self._world.allowance["worker"] += await self._world.held(f"{prefix}.")
        return slay(found[prefix])

    async def _freeze(self) -> bool:
        """A worker that stalls past its lease and comes back: others run what it held, and so does it."""
        found = watched(self._world.pids, "worker")
        if not found:
            return False
        prefix = self._chance.choice(sorted(found))
        send(found[prefix], signal.SIGSTOP)
        self._world.allowance["freeze"] += await self._world.held(f"{prefix}.")
        task = asyncio.create_task(self._thaw(found[prefix]))
        self._thawing.add(task)
        task.add_done_callback(self._thawing.discard)
        return True

    async def _thaw(self, pid: int) -> None:
        try:
            await asyncio.sleep(LEASE_TTL_S + 1 + 3 * self._chance.random())
        finally:
            send(pid, signal.SIGCONT)

    async def _control(self) -> bool:
        found = watched(self._world.pids, "control")
        return bool(found) and slay(found[self._chance.choice(sorted(found))])

    async def _supervisor(self) -> bool:
        victim = self._chance.choice(self._world.daemons)
        if victim.pid is None:
            return False
        mine = set(children(victim.pid))
        for prefix, pid in watched(self._world.pids, "worker").items():
            if pid in mine:
                send(pid, signal.SIGSTOP)  # it dies with its supervisor
                self._world.allowance["supervisor"] += await self._world.held(f"{prefix}.")
        return victim.kill()

    async def _store(self) -> bool:
        """It is away for a while, and others die meanwhile."""
        if self._store_away is not None:
            if not self._store_away.done():
                return False
            self._store_away.result()
        self._store_away = asyncio.create_task(self._world.kill_store())
        return True

    async def settle(self) -> None:
        """Return when the store is back."""
        if self._store_away is not None:
            await self._store_away

    async def _feeder(self) -> bool:
        """The command, or the process in which it feeds."""
        victims = [one for one in self._feeders() if one.pid is not None]
        if not victims:
            return False
        victim = self._chance.choice(victims)
        return victim.kill_child() if self._chance.random() < 0.4 else victim.kill()

    async def _collector(self) -> bool:
        victims = [one for one in self._collectors() if one.pid is not None]
        return bool(victims) and self._chance.choice(victims).kill()


class Mischief:
    """Network faults, one at a time: in the way to the store, and in the way to the endpoints."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance

    async def run(self) -> None:
        """Make faults until cancelled; then every way is free again."""
        try:
            while True:
                await asyncio.sleep(self._chance.expovariate(1.2))
                if self._chance.random() < 0.75:
                    await self._before_the_store()
                else:
                    await self._before_an_endpoint()
        finally:
            for proxy in (*self._world.store_proxies, *self._world.endpoint_proxies):
                proxy.disarm()
                proxy.delay_s = 0.0

    async def _before_the_store(self) -> None:
        proxy, dice = self._chance.choice(self._world.store_proxies), self._chance.random()
        if dice < 0.72:
            call = self._chance.choice(CALLS)
            proxy.arm(self._chance.choice(SNAGS), loader.scripts()[call].sha.encode() if call else b"")
        elif dice < 0.80:
            proxy.reset_all()
        elif dice < 0.88:
            await self._slow(proxy)
        elif dice < 0.98:
            await self._stalled(proxy, 0.2 + 3 * self._chance.random())
        else:
            self._world.allowance["stall"] += await self._world.held()
            await self._stalled(proxy, 11 + 2 * self._chance.random())  # longer than a time-out, and than a lease

    async def _before_an_endpoint(self) -> None:
        proxy, dice = self._chance.choice(self._world.endpoint_proxies), self._chance.random()
        if dice < 0.7:
            for _ in range(self._chance.randint(1, 4)):
                proxy.arm(self._chance.choice(SNAGS), b"POST ")
        elif dice < 0.75:
            proxy.reset_all()
        elif dice < 0.85:
            await self._slow(proxy)
        else:
            await self._stalled(proxy, 2 * self._chance.random())

    async def _slow(self, proxy: Proxy) -> None:
        proxy.delay_s = 0.002 + 0.02 * self._chance.random()
        await asyncio.sleep(1 + 2 * self._chance.random())
        proxy.delay_s = 0.0

    async def _stalled(self, proxy: Proxy, seconds: float) -> None:
        proxy.stall()
        try:
            await asyncio.sleep(seconds)
        finally:
            proxy.flow()
