"""One job of a chaos run, on the way of a user: submit, results, rm; some are paused and resumed, some cancelled.

Each command is given again whenever it was killed or met a store that was away.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from typing import Any

from tests.support.chaos_input import Findings, Sheet, examine
from tests.support.chaos_people import AGAIN_S, Command, producer
from tests.support.chaos_world import World
from tests.support.cli import environment
from tests.support.invariants import check_invariants
from tests.support.wait import wait_until

from gristmill.queue import LeaseQueue
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.store import OUTAGES

JOB_LINE = r"^job (\S+)$"


class Job:
    """One input on its way through the product, with the commands that bring it there."""

    def __init__(self, world: World, sheet: Sheet) -> None:
        self._world = world
        self.sheet = sheet
        self.folder = world.folder / sheet.name
        self.folder.mkdir()
        self.input = self.folder / "in.jsonl"
        self.out = self.folder
        self.job = ""
        self.done = False
        self.findings = Findings()
        small = sheet.fate != "cancel"  # so that feeders and workers have to wait
        marks = ("--payload-mark", "1M" if small else "1G", "--results-mark", "2M")
        self.submit = self._command("submit", self.input, "-m", "standin", "--max-attempts", 12, *marks)
        self.results: Command | None = None
        self.others: list[Command] = []

    def _command(self, verb: str, *words: object, good: tuple[int, ...] = (0,), **more: Any) -> Command:
        env = environment(GRISTMILL_REDIS_URL=self._world.url_of(-1))
        return Command(producer(verb, *words), env, self.folder / f"{verb}.log", frozenset(good), **more)

    @property
    def commands(self) -> list[Command]:
        return [c for c in dict.fromkeys((self.submit, self.results, *self.others)) if c is not None]

    async def run(self) -> None:
        """From the input to the proof; then the job is gone from the store, and its files from the disk if all is well.

        Raises:
            StuckError: a command never came to a good end.
        """
        await asyncio.to_thread(self.sheet.write, self.input)
        collecting = asyncio.create_task(self._collect())  # the hopper is small: without it, the feeder waits for ever
        meddling = asyncio.create_task(self._meddle())
        try:
            self.job = (await self.submit.run()).strip()
            await collecting
        finally:
            for task in (collecting, meddling):
                task.cancel()
            await asyncio.gather(collecting, meddling, return_exceptions=True)
        await self._examine()
        await self._inspect()
        await self._remove()
        self.done = True
        if self.findings.clean:
            shutil.rmtree(self.folder)

    async def _collect(self) -> None:
        """Collect what submit names, sooner or later, until it has ended; whatever the store forgets meanwhile.

        A power cut may take a job that was just made: submit then makes another. It may take the end of a job that was
        not yet durable: the job is then fed, run and collected once more, over the lines that are there.
        """
        await asyncio.sleep(self._world.chance.choice((0.0, 1.0, 5.0)))
        while True:
            job, fed = self.submit.said(JOB_LINE), self.submit.code is not None
            if job is None:
                await asyncio.sleep(AGAIN_S)
                continue
            self.out = self.folder / f"{job}.jsonl"
            self.results = self._collector(job)
            ended = await self._follow(self.results, job)
            if ended and fed:
                return

    async def _follow(self, results: Command, job: str) -> bool:
        """Run a collection until it ends, or submit names another job; whether it ended."""
        running = asyncio.create_task(results.run())
        try:
            while not running.done() and self.submit.said(JOB_LINE) == job:
                await asyncio.wait({running}, timeout=AGAIN_S)
        finally:
            await results.stop()
            await asyncio.wait({running})
        self.others.append(results)
        running.result()
        return results.code is not None

    def _collector(self, job: str) -> Command:
        # 1: some requests have failed, as was planted; or the command broke down, and has left its work folder
        work = self.out.with_name(self.out.name + ".gm")
        good = (0, 1, 4) if self.sheet.fate == "cancel" else (0, 1)
        return self._command("results", job, "-o", self.out, good=good, over=lambda: not work.exists())

    async def _examine(self) -> None:
        assert self.results is not None
        part = self.results.code == 4  # cancelled: what was never sent has no line
        self.findings = await asyncio.to_thread(examine, self.sheet, self.out, part=part)

    async def _meddle(self) -> None:
        """Be the user who cancels the job, or pauses and resumes it, when a part of it is done."""
        if not self.sheet.fate:
            return
        moment = self.sheet.rows * self._world.chance.random()

        async def come() -> bool:
            return self.submit.code is not None and await self.done_rows() >= moment

        await wait_until(come, description=f"{moment:.0f} rows of {self.job} are done", timeout_s=3600)
        if self.sheet.fate == "cancel":
            self._world.allowance["cancel"] += await self._world.held()
            await self._control("cancel")
            return
        for verb in ("pause", "resume", "pause", "resume"):
            await self._control(verb)
            await asyncio.sleep(self._world.chance.random())

    async def _control(self, verb: str) -> None:
        control = self._command(verb, self.job, good=(0, 2))  # 2: the job has ended meanwhile
        self.others.append(control)
        await control.run()
        self._world.deeds[verb] += 1

    async def done_rows(self) -> int:
        """How many requests are done, by the store; 0 while it is away."""
        job = self.job or self.submit.said(JOB_LINE)
        if not job:
            return 0
        try:
            return int(await self._world.direct.hget(f"gm:{{{job}}}:m", "done") or 0)
        except OUTAGES:
            return 0

    async def _inspect(self) -> None:
        """What the store holds of a job that is done."""
        try:
            queue = await LeaseQueue.attach(self._world.direct, self.job)
            seen = await check_invariants(self._world.direct, queue, lost_suffix=self._world.cut_at_s > 0)
        except OUTAGES:
            return  # it is down just now: it is inspected when it comes back
        except JobNotFoundError:
            self._world.violations.append(f"job {self.job} is gone before it was removed")
            return
        except AssertionError as error:
            self._world.violations.append(f"job {self.job} when done: {error}")
            return
        if seen.state not in ("complete", "running", "cancelled"):  # running: the store lost its end
            self._world.violations.append(f"job {self.job} is {seen.state} when done")

    async def _remove(self) -> None:
        """`rm`; a job that the store has thrown back behind its end is collected again first, as rm asks."""
        while True:
            remove = self._command("rm", self.job, good=(0, 2))
            self.others.append(remove)
            await remove.run()
            if remove.code == 0 or "there is no job" in remove.last_words():
                return
            if not re.search(r"that nobody has collected|is running", remove.last_words()):
                await asyncio.sleep(0.5)
                continue
            again = self._collector(self.job)
            self.others.append(again)
            await again.run()
            await self._examine()
