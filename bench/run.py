"""Run clients in turn and measure them: one `Sample` a run, medians over all runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.endpoint import Endpoint
from bench.store import Store

ROOT = Path(__file__).resolve().parent.parent
RUN_LIMIT_S = 900
BODY_BYTES = 2048
"""Of a request of `limit`."""


def script(name: str) -> str:
    """The command of that name that belongs to this interpreter."""
    return str(Path(sys.executable).with_name(name))


@dataclass(frozen=True)
class Sample:
    """One run: CPU of all client processes, of the store and of the endpoint, and wall time, all in seconds."""

    requests: int
    cpu_s: float
    store_s: float
    endpoint_s: float
    wall_s: float

    @property
    def cpu_us(self) -> float:
        """Microseconds of the client's CPU per request."""
        return self.cpu_s / self.requests * 1e6

    @property
    def store_us(self) -> float:
        return self.store_s / self.requests * 1e6

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.wall_s


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

    @property
    def modules(self) -> Path:
        """Where a `producer submit` tells what it imported."""
        return self.folder / "modules.json"

    @property
    def mark(self) -> Path:
        """Where a `producer submit` tells when it had its imports."""
        return self.folder / "mark.json"

    def log_file(self, name: str) -> Path:
        return self.folder / name

    def requests(self, full: int) -> int:
        return max(40, int(full * self.scale))

    def producer(self, load: Load) -> Sample:
        """`producer run`, from exec to exit, on an empty store.

        Raises:
            RuntimeError: it failed, or not every answer is there.
        """
        out = self.folder / "out.jsonl"
        self._forget(out)
        per_worker = max(1, load.in_flight // load.processes)
        argv = [script("producer"), "run", str(load.source), "-o", str(out), "-m", "bench", "-e", self._url(load)]
        argv += ["--state-dir", str(self.store.state_dir), "--json", *load.extra]
        argv += ["--workers", str(load.processes), "--concurrency", str(per_worker)]
        sample = self._measure(argv, load)
        with out.open("rb") as lines:
            ok = sum(b'"status":"ok"' in line for line in lines)
        if ok != load.requests:
            raise RuntimeError(f"producer run brought back {ok} good answers for {load.requests} requests")
        self._forget(out)
        return sample

    def limit(self, load: Load) -> Sample:
        numbers = [str(n) for n in (BODY_BYTES, load.requests, load.in_flight, load.processes)]
        return self._measure([sys.executable, "-m", "bench.clients.limit", self._url(load), *numbers], load)

    def slices(self, load: Load, *, as_they_are: bool = False) -> Sample:
        """Today's way; with `as_they_are` without re-encoding, and without what making the messages takes."""
        out = self.folder / "slices.jsonl"
        numbers = [str(n) for n in (load.in_flight, load.processes)]
        argv = [sys.executable, "-m", "bench.clients.slices", str(load.source), str(out), self._url(load), *numbers]
        if not as_they_are:
            return self._measure(argv, load)
        sample = self._measure([*argv, "--as-they-are"], load)
        spent = json.loads(out.with_name(out.name + ".prepared").read_text(encoding="utf-8"))
        return replace(sample, cpu_s=sample.cpu_s - spent["cpu_s"], wall_s=sample.wall_s - spent["wall_s"])

    def pil(self, pictures: int) -> dict[str, float]:
        """What `clients/pil.py` found: speeds of Pillow alone and of the SDK, and their ratio."""
        argv = [sys.executable, "-m", "bench.clients.pil", str(pictures)]
        done = subprocess.run(
            argv, cwd=ROOT, env=self.env(), stdout=subprocess.PIPE, timeout=RUN_LIMIT_S, check=True, text=True
        )
        found: dict[str, float] = json.loads(done.stdout)
        return found

    def alternate(self, name: str, clients: Mapping[str, Callable[[], Sample]]) -> dict[str, Sample]:
        """Every client once a round, so that a slow minute of the machine hits all; the median of each figure."""
        samples: dict[str, list[Sample]] = {client: [] for client in clients}
        for number in range(self.runs):
            for client, run in clients.items():
                sample = run()
                samples[client].append(sample)
                tell(f"  {name:9} {client:9} {number + 1}/{self.runs}  {shown(sample)}")
        self.log |= {f"{name} {client}": taken for client, taken in samples.items()}
        return {client: median(taken) for client, taken in samples.items()}

    def _url(self, load: Load) -> str:
        return self.endpoint.url + load.base

    def env(self) -> dict[str, str]:
        """The environment of every client: nothing that would tell it of another store, endpoint or key."""
        return {k: v for k, v in os.environ.items() if not k.startswith(("GRISTMILL_", "OPENAI_"))}

    def _forget(self, out: Path) -> None:
        self.store.empty()
        out.unlink(missing_ok=True)
        shutil.rmtree(out.with_name(out.name + ".gm"), ignore_errors=True)

    def _measure(self, argv: list[str], load: Load) -> Sample:
        result, log = self.folder / "reaper.json", self.folder / "client.log"
        self.endpoint.reset()
        store_s, endpoint_s = self.store.cpu_s(), self.endpoint.cpu_s()
        command = [sys.executable, "-m", "bench.reaper", str(result), "--", *argv]
        with log.open("wb") as out:
            subprocess.run(command, cwd=ROOT, env=self.env(), stdout=out, stderr=out, timeout=RUN_LIMIT_S, check=True)
        used = json.loads(result.read_text(encoding="utf-8"))
        answered = self.endpoint.stats()["requests"]
        if used["code"] != 0 or answered < load.requests // load.processes * load.processes:
            tail = log.read_text(encoding="utf-8", errors="replace")[-1500:]
            raise RuntimeError(f"{argv[:3]} ended with {used['code']} after {answered} requests:\n{tail}")
        return Sample(
            requests=load.requests,
            cpu_s=used["user_s"] + used["sys_s"],
            store_s=self.store.cpu_s() - store_s,
            endpoint_s=self.endpoint.cpu_s() - endpoint_s,
            wall_s=used["wall_s"],
        )


def median(samples: list[Sample]) -> Sample:
    """The median of each figure by itself."""
    names = ("cpu_s", "store_s", "endpoint_s", "wall_s")
    return Sample(samples[0].requests, *(statistics.median(getattr(s, name) for s in samples) for name in names))


def shown(sample: Sample) -> str:
    return (
        f"{sample.requests:8,} requests {sample.cpu_us:7.0f} us CPU each {sample.store_us:5.0f} us of the store, "
        f"{sample.wall_s:6.2f} s ({sample.endpoint_s:.2f} s CPU of the endpoint)"
    )


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a client with all its processes: two Ctrl-C, then by force; one that has ended is left alone."""
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
