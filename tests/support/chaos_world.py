"""Everything that runs in one chaos run: the store, its proxies, the endpoints and the daemons; and how it is hurt.

Clients reach the store only through proxies: one for each daemon, one for the commands. So a stall can part one daemon
from the store while another goes on, and behind closed proxies the store is quiet and can be inspected.

What may be run twice is summed in `allowance`, from what was really at stake each time: an HTTP call cannot be fenced,
so a request that was in flight in a killed worker is run again, and no other.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gristmill.queue import LeaseQueue
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.registry import list_jobs
from gristmill.queue.store import connect
from tests.support.chaos_input import REFUSED
from tests.support.chaos_people import Command, daemon, slay, watched
from tests.support.chaos_store import Watermark
from tests.support.cli import environment
from tests.support.invariants import check_invariants
from tests.support.proxy import Proxy, to_url
from tests.support.standin import StandinProcess
from tests.support.store import StoreProcess

LEASE_TTL_S = 8
COMMIT_BYTES = 250
"""The least that one committed record takes in the store's log."""


@dataclass(frozen=True)
class Profile:
    """What is run, and how it is hurt: `kills` of each kind for 100,000 requests; `moody`: share refused."""

    fsync: str = "everysec"
    power_cuts: bool = True
    rows: int = 20_000
    at_once: int = 4
    daemons: int = 2
    workers: int = 2
    concurrency: int = 48
    latency: str = "lognormal:0.015:0.8"
    poison: bool = False
    moody: float = 0.0
    network: bool = True
    kills: tuple[tuple[str, int], ...] = (
        ("worker", 55), ("store", 11), ("feeder", 11), ("collector", 11), ("supervisor", 4), ("control", 4),
        ("freeze", 3),
    )  # fmt: skip

    @property
    def at_stake(self) -> int:
        """Most requests that a worker can hold: running, next in line, and answered but not committed."""
        return 2 * self.concurrency + self.concurrency // 2 + 128


class World:
    """``async with World(profile, folder, seed) as world``."""

    def __init__(self, profile: Profile, folder: Path, seed: int) -> None:
        self.profile = profile
        self.folder = folder
        self.chance = random.Random(seed)
        self.store = StoreProcess(fsync=profile.fsync)
        self.watermark = Watermark(self.store)
        self.pids = folder / "pids"
        self.daemons: list[Command] = []
        self.store_proxies: list[Proxy] = []
        self.endpoint_proxies: list[Proxy] = []
        self.endpoints: list[StandinProcess] = []
        self.kills: Counter[str] = Counter()
        self.deeds: Counter[str] = Counter()
        self.allowance: Counter[str] = Counter()
        self.violations: list[str] = []
        self.cut_at_s = 0.0
        self._tasks: list[asyncio.Task[str]] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.pids.mkdir(parents=True)
        self.store.start()
        self._stack.callback(self.store.close)
        self.direct: Redis = await self._stack.enter_async_context(connect(self.store.url))
        for _ in range(self.profile.daemons + 1):
            proxy = await self._stack.enter_async_context(Proxy(to_url(self.store.url), heed=b"WAITAOF"))
            self.store_proxies.append(proxy)
        for number in range(2):
            await self._endpoint(number)
        for number in range(self.profile.daemons):
            self._daemon(number)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(command.stop() for command in self.daemons))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for role in ("worker", "control"):
            for pid in watched(self.pids, role).values():
                slay(pid)
        await self._stack.aclose()

    async def _endpoint(self, number: int) -> None:
        one = self._stack.enter_context(StandinProcess("--latency", self.profile.latency, "--seed", str(number)))
        faults = [
            {"kind": "status", "status": 400, "text": REFUSED},
            {"kind": "status", "status": 429, "retry_after": 0.2, "rate": 0.002},
            {"kind": "status", "status": 500, "rate": 0.003},
            {"kind": "status", "status": 503, "rate": 0.001},
            {"kind": "reset", "rate": 0.002},
            {"kind": "status", "status": 400, "rate": self.profile.moody, "times": None if self.profile.moody else 0},
        ]
        one.control(faults=faults)
        self.endpoints.append(one)
        self.endpoint_proxies.append(await self._stack.enter_async_context(Proxy(to_url(one.url))))

    def _daemon(self, number: int) -> None:
        config = self.folder / f"daemon{number}.toml"
        lines = [f'redis = "{self.url_of(number)}"', f"workers = {self.profile.workers}"]
        lines += [f"concurrency = {self.profile.concurrency}", f"lease_ttl_s = {LEASE_TTL_S}", "drain_s = 3"]
        lines += ["metrics = false", f'state_dir = "{self.folder / f"state{number}"}"']
        for place, proxy in enumerate(self.endpoint_proxies):
            lines += [f"[endpoints.e{place}]", f'url = "http://127.0.0.1:{proxy.port}/v1"']
        config.write_text("\n".join(lines) + "\n")
        command = Command(daemon(self.pids, config), environment(), self.folder / f"daemon{number}.log", frozenset())
        self.daemons.append(command)
        self._tasks.append(asyncio.create_task(command.run()))

    def url_of(self, place: int) -> str:
        """The store's address for a daemon, or with -1 for the commands."""
        return f"redis://127.0.0.1:{self.store_proxies[place].port}/0"

    # -- what is at stake -----------------------------------------------------------------------------------------

    async def held(self, prefix: str = "") -> int:
        """How many requests the tokens of a worker, or of all, hold now; the most it can be when the store is away."""
        try:
            keys = [key async for key in self.direct.scan_iter(match=f"gm:*:h:{prefix}*", count=1000)]
            return sum([int(await self.direct.hlen(key)) for key in keys])
        except (RedisError, OSError):
            return self.profile.at_stake * (1 if prefix else self.profile.workers * self.profile.daemons)

    # -- the store ------------------------------------------------------------------------------------------------

    @property
    def promises(self) -> int:
        """How often a command has been told that what it wrote is synced."""
        return sum(proxy.heeded for proxy in self.store_proxies)

    async def kill_store(self) -> None:
        """kill -9 the store, take its log's tail where a power cut would, inspect what is left, and let it back."""
        profile, chance = self.profile, self.chance
        at_stake = await self.held()
        self.store.kill()
        for proxy in self.store_proxies:
            proxy.stall()
        if profile.power_cuts and profile.fsync == "everysec" and chance.random() < 0.6:
            lost = self.watermark.cut(chance, self.promises)
            if lost:
                self.kills["power cut"] += 1
                self.allowance["power cut"] += lost // COMMIT_BYTES + at_stake
                self.cut_at_s = asyncio.get_running_loop().time()
        await asyncio.sleep(chance.choice((0.0, 0.2, 1.0, 3.0, LEASE_TTL_S + 1.0)))
        await asyncio.to_thread(self.store.start)
        await self.inspect()
        for proxy in self.store_proxies:
            proxy.flow()

    async def inspect(self) -> None:
        """Assert the store's invariants on every job; nothing else may talk to it meanwhile."""
        for row in await list_jobs(self.direct):
            try:
                queue = await LeaseQueue.attach(self.direct, row.job)
                await check_invariants(self.direct, queue, lost_suffix=self.cut_at_s > 0)
            except JobNotFoundError:
                continue
            except AssertionError as error:
                self.violations.append(f"job {row.job} after a restart of the store: {error}")
