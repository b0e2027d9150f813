"""`producer run` whose every part is killed again and again: the same command must end with each row once.

One user, one input, one private store. At seeded random moments kill -9 falls on the command itself, its feeder, its
daemon's supervisor, control or workers, or the private store, one or several at once; then the same command is given
again, also while what is left of the last attempt is still dying.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tests.chaos.report import Report
from tests.support.chaos_input import REFUSED, Sheet, examine
from tests.support.chaos_people import Command, children, producer, slay
from tests.support.cli import environment
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until

WORKERS, CONCURRENCY = 2, 32
AT_STAKE = 2 * CONCURRENCY + CONCURRENCY // 2 + 128


class Desk:
    """One input on its way through `producer run`."""

    def __init__(self, folder: Path, url: str, sheet: Sheet, chance: random.Random, kills: int) -> None:
        self._state = folder / "state"
        self._chance = chance
        self._left = kills
        self.sheet = sheet
        self.input = folder / "in.jsonl"
        self.out = folder / "out.jsonl"
        words = ("run", self.input, "-o", self.out, "-e", url, "-m", "standin", "--state-dir", self._state)
        more = ("--workers", WORKERS, "--concurrency", CONCURRENCY, "--max-attempts", 12, "--payload-mark", "1M")
        # 1: some requests have failed, as was planted; or the command broke down, and has left its work folder
        work = self.out.with_name(self.out.name + ".gm")
        log, good = folder / "run.log", frozenset((0, 1))
        self.command = Command(producer(*words, *more), environment(), log, good, lambda: not work.exists())
        self.killed: list[str] = []

    async def run(self) -> None:
        """From the first command to the last; then nothing of it runs any more."""
        await asyncio.to_thread(self.sheet.write, self.input)
        killing = asyncio.create_task(self._kill())
        try:
            await self.command.run()
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
            await self.command.stop()
        await wait_until(lambda: not self._servers(), description="the private store has ended", timeout_s=30)

    async def _kill(self) -> None:
        while self._left:
            await asyncio.sleep(0.2 + self._chance.expovariate(0.5))
            victims = self._victims()
            count = 1 if self._chance.random() < 0.75 else self._chance.randint(1, max(1, len(victims)))
            for kind, pid in self._chance.sample(victims, min(count, len(victims))):
                if slay(pid):
                    self.killed.append(kind)
                    self._left -= 1

    def _victims(self) -> list[tuple[str, int]]:
        """What runs now of this desk: kind and pid."""
        pid = self.command.pid
        found = [] if pid is None else [("command", pid)]
        for child in [] if pid is None else children(pid):
            words = Path(f"/proc/{child}/cmdline").read_bytes() if Path(f"/proc/{child}").exists() else b""
            found.append(("feeder" if b"feed_main" in words else "supervisor", child))
            found += [("worker or control", below) for below in children(child)]
        return found + [("store", server) for server in self._servers()]

    def _servers(self) -> list[int]:
        """The private store's server, by its command line or, where it has renamed itself, its socket."""
        rows = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
        found = (re.match(rf"\s*(\d+) \S*server .*{re.escape(str(self._state))}/", row) for row in rows.splitlines())
        return [int(match[1]) for match in found if match]


async def run(*, rows: int, kills: int, seed: int) -> Report:
    """One input of `rows` rows, with so many kills spread over it."""
    began_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="gm-desk-"))
    report = Report(requests=rows, jobs=1)
    with StandinProcess("--latency", "lognormal:0.05:0.6", "--seed", str(seed)) as standin:
        standin.control(faults=[{"kind": "status", "status": 400, "text": REFUSED}])
        desk = Desk(folder, standin.url, Sheet(f"d{seed}", rows), random.Random(seed), kills)
        try:
            await desk.run()
            report.take(examine(desk.sheet, desk.out), desk.sheet.name)
        except Exception as error:  # noqa: BLE001  whatever ends the run is a finding, and the report tells it
            report.violations.append(f"{type(error).__name__}: {error}")
        report.executions = standin.stats["requests"]
    report.extra = report.executions - sum(desk.sheet.kind(row) != "bad" for row in range(rows))
    report.allowed = len(desk.killed) * WORKERS * AT_STAKE
    if report.extra > report.allowed:
        report.violations.append(f"{report.extra} executions too many, of {report.allowed}")
    report.kills = {f"run: {kind}": desk.killed.count(kind) for kind in sorted(set(desk.killed))}
    report.refusals = dict(desk.command.refusals)
    report.wall_s = round(time.monotonic() - began_s, 1)
    if report.clean:
        shutil.rmtree(folder)
    else:
        report.violations.append(f"the files are in {folder}")
    return report
