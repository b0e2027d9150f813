"""Run clients in turn and measure them: one `Sample` a run, medians over all runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.endpoint import Endpoint
from bench.store import Store

ROOT = Path(__file__).resolve().parent.parent
PRODUCER = str(Path(sys.executable).with_name("producer"))
RUN_LIMIT_S = 900


@dataclass(frozen=True)
class Sample:
    """One run: CPU of all client processes, CPU of the store, wall time, all in seconds."""

    cpu_s: float
    store_s: float
    wall_s: float


@dataclass(frozen=True)
class Load:
    """What is sent: an input of `requests` lines, `in_flight` at a time in all, by `processes`."""

    source: Path
    requests: int
    in_flight: int
    base: str = "/v1"
    extra: tuple[str, ...] = ()
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)


@dataclass
class Bench:
    """What a scenario needs: where to write, what to measure against, how often."""

    folder: Path
    endpoint: Endpoint
    store: Store
    runs: int
    scale: float
    log: dict[str, list[Sample]] = field(default_factory=dict)

    def requests(self, full: int) -> int:
        return max(40, int(full * self.scale))

    def producer(self, load: Load) -> Sample:
        """`producer run`, from exec to exit, on an empty store."""
        out = self.folder / "out.jsonl"
        self._forget(out)
        per_worker = max(1, load.in_flight // load.processes)
        argv = self._producer_argv(load.source, out, self._url(load))
        argv += ["--workers", str(load.processes), "--concurrency", str(per_worker), "--json", *load.extra]
        sample = self._measure(argv, load)
        ok = sum(b'"status":"ok"' in line for line in out.read_bytes().splitlines())
        if ok != load.requests:
            raise RuntimeError(f"producer run brought back {ok} good answers for {load.requests} requests")
        self._forget(out)
        return sample

    def limit(self, load: Load, body_bytes: int = 2048) -> Sample:
        numbers = [str(n) for n in (body_bytes, load.requests, load.in_flight, load.processes)]
        return self._measure([sys.executable, "-m", "bench.clients.limit", self._url(load), *numbers], load)

    def slices(self, load: Load) -> Sample:
        out = self.folder / "slices.jsonl"
        numbers = [str(n) for n in (load.in_flight, load.processes)]
        argv = [sys.executable, "-m", "bench.clients.slices", str(load.source), str(out), self._url(load), *numbers]
        return self._measure(argv, load)

    def alternate(self, name: str, clients: Mapping[str, Callable[[], Sample]]) -> dict[str, Sample]:
        """Every client once a round, so that a slow minute of the machine hits all; the median of each figure."""
        samples: dict[str, list[Sample]] = {client: [] for client in clients}
        for number in range(self.runs):
            for client, run in clients.items():
                sample = run()
                samples[client].append(sample)
                tell(
                    f"  {name:13} {client:9} {number + 1}/{self.runs}  {sample.cpu_s:7.2f} s CPU {sample.wall_s:7.2f} s"
                )
        self.log |= {f"{name} {client}": taken for client, taken in samples.items()}
        return {client: median(taken) for client, taken in samples.items()}

    def first_request_s(self, source: Path) -> float:
        """Seconds from exec of `producer run` to its first request at the endpoint; the run is then ended."""
        out = self.folder / "first.jsonl"
        self._forget(out)
        self.endpoint.reset()
        argv = self._producer_argv(source, out, f"{self.endpoint.url}/v1")
        started_s = time.time()
        process = subprocess.Popen(
            argv, env=self._env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            while (first_s := self.endpoint.stats()["first_s"]) is None:
                if time.time() - started_s > RUN_LIMIT_S or (process.poll() or 0) > 1:
                    raise RuntimeError("producer run ended without a request")
                time.sleep(0.01)
        finally:
            end_group(process)
            self._forget(out)
        return first_s - started_s

    def _producer_argv(self, source: Path, out: Path, url: str) -> list[str]:
        where = ["-o", str(out), "--state-dir", str(self.store.state_dir)]
        return [PRODUCER, "run", str(source), *where, "-m", "bench", "-e", url]

    def _url(self, load: Load) -> str:
        return self.endpoint.url + load.base

    def _env(self) -> dict[str, str]:
        return {k: v for k, v in os.environ.items() if not k.startswith(("GRISTMILL_", "OPENAI_"))}

    def _forget(self, out: Path) -> None:
        self.store.empty()
        out.unlink(missing_ok=True)
        shutil.rmtree(out.with_name(out.name + ".gm"), ignore_errors=True)

    def _measure(self, argv: list[str], load: Load) -> Sample:
        result, log = self.folder / "reaper.json", self.folder / "client.log"
        self.endpoint.reset()
        store_s = self.store.cpu_s()
        command = [sys.executable, "-m", "bench.reaper", str(result), "--", *argv]
        with log.open("wb") as out:
            subprocess.run(command, cwd=ROOT, env=self._env(), stdout=out, stderr=out, timeout=RUN_LIMIT_S, check=True)
        used = json.loads(result.read_text(encoding="utf-8"))
        answered = self.endpoint.stats()["requests"]
        if used["code"] != 0 or answered < load.requests // load.processes * load.processes:
            tail = log.read_text(encoding="utf-8", errors="replace")[-1500:]
            raise RuntimeError(f"{argv[:3]} ended with {used['code']} after {answered} requests:\n{tail}")
        return Sample(used["user_s"] + used["sys_s"], self.store.cpu_s() - store_s, used["wall_s"])


def median(samples: list[Sample]) -> Sample:
    return Sample(
        statistics.median(s.cpu_s for s in samples),
        statistics.median(s.store_s for s in samples),
        statistics.median(s.wall_s for s in samples),
    )


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a client with all its processes: two Ctrl-C, then by force."""
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(timeout=5 if number == signal.SIGINT else None)
        except subprocess.TimeoutExpired:
            continue


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
