"""One chaos run: many jobs through real processes that are killed, and the proof that nothing was lost or doubled.

Every job goes the way of a user: `producer submit`, `producer results -o`, `producer rm`, each given again whenever it
was killed or met a store that was away. At the end the files decide: every row of every input stands in its OUT exactly
once, with the answer to its own text, or failed where failure was planted. The store's invariants hold whenever the
store comes back from a kill and when a job is done; after `rm` no key is left; and the endpoints were not asked more
often than what was in flight when something died allows.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos.job import JOB_LINE, Job
from tests.chaos.report import Report
from tests.support.chaos_input import Fate, Sheet
from tests.support.chaos_killer import Killer, Mischief
from tests.support.chaos_people import Command, StuckError, producer
from tests.support.chaos_world import Profile, World
from tests.support.cli import environment

from gristmill.queue import LeaseQueue
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.registry import list_jobs
from gristmill.queue.store import OUTAGES

PROFILES = {
    "full": Profile(moody=0.02),
    "always": Profile(fsync="always", power_cuts=False),
    "poison": Profile(rows=5_000, poison=True, kills=(("store", 40), ("feeder", 40), ("collector", 40))),
    "short": Profile(
        rows=4_000, at_once=2, moody=0.02,
        kills=(("worker", 75), ("store", 25), ("feeder", 25), ("collector", 25), ("supervisor", 8), ("control", 8),
               ("freeze", 6)),
    ),
}  # fmt: skip
STUCK_S = 120.0
FATES: dict[int, Fate] = {1: "pause", 4: "cancel"}
"""Of seven jobs, one is paused and resumed, and one is cancelled."""


class Run:
    """All jobs of one run, a few at a time, while the world is hurt."""

    def __init__(self, world: World, total: int, seconds: float, seed: int) -> None:
        self._world = world
        self._seed = seed
        rows = min(world.profile.rows, total)
        self._sheets = [self._sheet(i, rows) for i in range(max(1, total // rows))]
        self._until_s = time.monotonic() + seconds
        self._jobs: list[Job] = []
        self._done: dict[str, int] = {}

    def _sheet(self, number: int, rows: int) -> Sheet:
        poison = rows // 2 + 1 if self._world.profile.poison and number == 0 else -1
        fate = FATES.get(number % 7, "") if poison < 0 else ""
        return Sheet(f"s{self._seed}-{number}", rows, poison, fate, self._world.profile.moody > 0)

    async def run(self) -> Report:
        world, began_s = self._world, time.monotonic()
        killer = Killer(world, sum(s.rows for s in self._sheets), self._progress, self._feeders, self._collectors)
        tasks = [asyncio.create_task(make) for make in (killer.run(), self._watch(), self._know_what_is_synced())]
        if world.profile.network:
            tasks.append(asyncio.create_task(Mischief(world).run()))
        jobs = asyncio.gather(*(self._lane() for _ in range(world.profile.at_once)))
        try:
            await asyncio.wait({jobs, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in (*tasks, jobs):
                if task.done():
                    task.result()
        except Exception as error:  # noqa: BLE001  whatever ends the run is a finding, and the report tells it
            world.violations.append(f"{type(error).__name__}: {error}")
        finally:
            for task in (jobs, *tasks):
                task.cancel()
            await asyncio.gather(jobs, *tasks, return_exceptions=True)
            await asyncio.gather(*(command.stop() for job in self._jobs for command in job.commands))
        await killer.settle()
        if not world.violations:
            await self._leave_nothing()
        return self._report(time.monotonic() - began_s)

    async def _lane(self) -> None:
        while self._sheets and time.monotonic() < self._until_s:
            job = Job(self._world, self._sheets.pop(0))
            self._jobs.append(job)
            await job.run()

    # -- what the killer asks -------------------------------------------------------------------------------------

    def _progress(self) -> int:
        return sum(self._done.values())

    def _feeders(self) -> list[Command]:
        return [job.submit for job in self._jobs if not job.done]

    def _collectors(self) -> list[Command]:
        """Collections, and removals of what was collected."""
        return [command for job in self._jobs if not job.done for command in job.commands if command is not job.submit]

    # -- what goes on beside --------------------------------------------------------------------------------------

    async def _know_what_is_synced(self) -> None:
        while True:
            await self._world.watermark.look(self._world.direct, self._world.promises)
            await asyncio.sleep(0.1)

    async def _watch(self) -> None:
        """Note the progress.

        Raises:
            StuckError: there was none for long.
        """
        best, since_s = 0, time.monotonic()
        while True:
            await asyncio.sleep(0.2)
            await self._count()
            done = self._progress() + sum(job.done for job in self._jobs)
            if done > best:
                best, since_s = done, time.monotonic()
            if time.monotonic() - since_s > STUCK_S:
                raise StuckError(f"no progress for {STUCK_S:g} s: {await self._standing()}")

    async def _count(self) -> None:
        for job in self._jobs:
            name = job.sheet.name
            done = job.sheet.rows if job.done else await job.done_rows()
            self._done[name] = max(self._done.get(name, 0), done)

    async def _standing(self) -> str:
        """How the jobs that are not done stand."""
        said = []
        for job in self._jobs:
            if not job.done:
                try:
                    known = job.job or job.submit.said(JOB_LINE) or ""
                    snapshot: Any = await (await LeaseQueue.attach(self._world.direct, known)).snapshot()
                except (*OUTAGES, JobNotFoundError, ValueError) as error:
                    snapshot = repr(error)
                said.append(f"{job.sheet.name}: {snapshot}; {[c.last_words() for c in job.commands]}")
        return " | ".join(said)

    # -- the end --------------------------------------------------------------------------------------------------

    async def _leave_nothing(self) -> None:
        """No job but ours was made, and after `rm` no key of any is left.

        A power cut may bring back a job that had just been removed: such a one is removed again first.
        """
        ours = {job.job for job in self._jobs}
        for row in await list_jobs(self._world.direct):
            if row.job not in ours:
                self._world.violations.append(f"job {row.job} was made for an input that had another one")
            elif not self._world.kills["power cut"]:
                self._world.violations.append(f"job {row.job} is listed after rm")
            env = environment(GRISTMILL_REDIS_URL=self._world.url_of(-1))
            argv = producer("rm", row.job, "--force")
            await Command(argv, env, self._world.folder / "rm.log", frozenset({0})).run()
        left = [key async for key in self._world.direct.scan_iter(match="gm:{*", count=1000)]
        if left:
            self._world.violations.append(f"{len(left)} keys are left after rm: {sorted(left)[:5]}")

    def _report(self, wall_s: float) -> Report:
        world = self._world
        done = [job for job in self._jobs if job.done]
        report = Report(jobs=len(done), requests=sum(job.findings.rows for job in done), wall_s=round(wall_s, 1))
        for job in self._jobs:
            report.take(job.findings, job.sheet.name)
            if not job.done:
                report.violations.append(f"{job.sheet.name} was not brought to its end")
            for command in job.commands:
                for words, count in command.refusals.items():
                    words = re.sub(r"s\d+-\d+|[0-9a-z]{8,}", "#", words)
                    report.refusals[words] = report.refusals.get(words, 0) + count
        for command in world.daemons:
            report.violations += [f"a daemon ended by itself: {words}" for words in command.refusals]
        self._count_executions(report, done)
        report.violations += world.violations
        return report

    def _count_executions(self, report: Report, done: list[Job]) -> None:
        world = self._world
        poisoned = len(list(world.pids.glob("poison.*")))
        world.kills["poison"] += poisoned
        world.allowance["poison"] += poisoned * world.profile.at_stake
        world.allowance["endpoint"] += sum(sum(proxy.hurt.values()) for proxy in world.endpoint_proxies)
        for endpoint in world.endpoints:
            stats = endpoint.stats
            planted = sum(count for kind, count in stats["faulted"].items() if kind != "400")
            report.executions += stats["requests"] - planted
        never_sent = sum(job.findings.never_sent for job in done)
        report.extra = report.executions - (report.requests - never_sent)
        report.allowed = world.allowance.total()
        report.kills = dict(sorted(world.kills.items()))
        hurt = Counter(world.deeds)
        for proxy in (*world.store_proxies, *world.endpoint_proxies):
            hurt.update(proxy.hurt)
        report.hurt = dict(sorted(hurt.items()))
        if report.extra > report.allowed and all(job.done for job in self._jobs):
            report.violations.append(f"{report.extra} executions too many, of {report.allowed}: {world.allowance}")


async def run(profile: Profile, *, requests: int, seconds: float, seed: int) -> Report:
    """One run; no job is begun after `seconds`. The files of a run that found something are kept."""
    folder = Path(tempfile.mkdtemp(prefix="gm-chaos-"))
    async with World(profile, folder, seed) as world:
        report = await Run(world, requests, seconds, seed).run()
    if report.clean:
        shutil.rmtree(folder)
    else:
        report.violations.append(f"the files are in {folder}")
    return report
