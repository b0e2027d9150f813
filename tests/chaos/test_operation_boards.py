"""Every expression of the dashboards and every alert, on a real Prometheus that watches a daemon's bad day.

Nothing fires while all is well. Then a model server refuses, stalls and goes, workers are killed, feeders die and fall
asleep, nobody collects, and at last the store and the daemon go: each alert fires, and each expression has had data.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as BlockingRedis
from tests.process.daemons import Daemon
from tests.support.cli import Background, command, environment, producer
from tests.support.pictures import quarters, saved
from tests.support.prometheus import OPS, Prometheus, shown_on_boards
from tests.support.queues import fed_job
from tests.support.standin import StandinProcess
from tests.support.store import StoreProcess
from tests.support.wait import wait_until_sync

from gristmill.queue.store import connect

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Prometheus.is_installed(), reason="prometheus is not installed"),
]

FAULTS = [
    {"kind": "status", "status": 400, "text": "FAIL"},
    {"kind": "status", "status": 401, "text": "REFUSED"},
    {"kind": "stall", "text": "HANG"},
]
SETTINGS = """
stalled_after_s = 2
[endpoints.one]
url = "{one}"
[endpoints.two]
url = "{two}"
"""
BY_WORK = {
    "GristmillNoProgress", "GristmillFailures", "GristmillJobPaused", "GristmillRedeliveries", "GristmillFeederLost",
    "GristmillFeederStalled", "GristmillResultsNotCollected", "GristmillCrashLoop",
}  # fmt: skip
ALERTS = set(re.findall(r"- alert: (\w+)", (OPS / "prometheus/rules/gristmill.yml").read_text("utf-8")))
BUSY_FILES = 60
"""An idle worker has some twenty."""
FIRING = 'ALERTS{alertstate="firing"}'
NEIGHBOURS = """
redis_memory_used_bytes 1
redis_memory_used_rss_bytes 1
redis_aof_current_size_bytes 1
redis_aof_base_size_bytes 1
redis_aof_last_write_status 1
redis_aof_last_bgrewrite_status 1
redis_aof_delayed_fsync 0
redis_commands_processed_total 1
redis_connected_clients 1
sglang:num_running_reqs{model_name="m"} 1
sglang:num_queue_reqs{model_name="m"} 1
sglang:token_usage{model_name="m"} 0.5
llamacpp:requests_processing 1
llamacpp:requests_deferred 1
llamacpp:kv_cache_usage_ratio 0.5
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
"""
"""What the store's exporter and other model servers show, by name; the stand-in shows the rest of vLLM's."""


class _Neighbours(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(NEIGHBOURS.encode())

    def log_message(self, *_: object) -> None:
        """Nothing: a scrape a second."""


@pytest.fixture
def neighbours() -> Iterator[str]:
    """HOST:PORT of a page of metrics that are not ours."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Neighbours) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def standins() -> Iterator[list[StandinProcess]]:
    with StandinProcess() as one, StandinProcess() as two:
        for each in (one, two):
            each.control(latency="3", faults=FAULTS)
        yield [one, two]


@pytest.fixture
def daemon(tmp_path: Path, own_store: StoreProcess, standins: list[StandinProcess]) -> Iterator[Daemon]:
    settings = tmp_path / "gristmill.toml"
    settings.write_text(SETTINGS.format(one=standins[0].url, two=standins[1].url))
    options = ["--config", settings, "--workers", 2, "--concurrency", 64, "--state-dir", tmp_path / "state"]
    one = Daemon(tmp_path, *map(str, options), "--metrics-port", "0", redis=own_store.url)
    yield one
    one.close()


class Jobs:
    """Who submits; feeders that are to stay run in the background."""

    def __init__(self, folder: Path, redis: str) -> None:
        self._folder = folder
        self._redis = redis
        self._feeders: list[Background] = []

    def submit(self, name: str, lines: list[Any], *options: object) -> str:
        done = producer(*self._words(name, lines), *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def keep_feeding(self, name: str, lines: list[Any], *options: object) -> Background:
        feeder = Background(command(*self._words(name, lines), *options), environment())
        self._feeders.append(feeder)
        feeder.wait_for_line("job ")
        return feeder

    def _words(self, name: str, lines: list[Any]) -> list[object]:
        path = self._folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return ["submit", path, "-m", "m", "--redis", self._redis]

    def close(self) -> None:
        """kill -9 of whoever still feeds."""
        for feeder in self._feeders:
            feeder.__exit__()


@pytest.fixture
def jobs(tmp_path: Path, own_store: StoreProcess) -> Iterator[Jobs]:
    made = Jobs(tmp_path, own_store.url)
    yield made
    made.close()


def prompts(count: int, word: str = "say") -> list[dict[str, str]]:
    return [{"prompt": f"{word} {i} ".ljust(200, "x")} for i in range(count)]


def some_fail(count: int) -> list[dict[str, str]]:
    """A third of them, but not the first."""
    return [{"prompt": f"{'FAIL' if i % 3 == 2 else 'say'} {i}"} for i in range(count)]


def pictured(folder: Path, count: int) -> list[dict[str, str]]:
    """Prompts with pictures that have to be encoded anew."""
    (folder / "big.png").write_bytes(saved(quarters(1200, 900), "PNG"))
    return [{"prompt": f"look {i}", "image": "big.png"} for i in range(count)]


def metrics_of(daemon: Daemon) -> str:
    daemon.says("metrics are served on ")
    found = re.search(r"metrics are served on (\S+) port (\d+)", daemon.log)
    assert found is not None
    return f"{found[1]}:{found[2]}"


def kill_workers(daemon: Daemon) -> None:
    """kill -9: of both with calls in flight, which are sent again, and of one as soon as it has been started again."""
    for worker in ("worker-0", "worker-1"):
        pid = daemon.pid_of(worker)
        wait_until_sync(lambda pid=pid: open_files(pid) > BUSY_FILES, description="calls are in flight")
        os.kill(pid, signal.SIGKILL)
    for generation in range(1, 5):
        os.kill(daemon.pid_of("worker-0", generation), signal.SIGKILL)


def open_files(pid: int) -> int:
    """A worker that calls has a connection for each call."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def trouble_with_jobs(jobs: Jobs, redis: str, folder: Path) -> None:
    """Failures, a refused key, answers that never come, results that nobody wants, a lost feeder, a pause."""
    jobs.submit("failing", some_fail(6000))
    jobs.submit("refused", prompts(20, "REFUSED"))
    jobs.submit("hanging", [*prompts(4), *prompts(3, "HANG")])
    jobs.submit("unwanted", prompts(400), "--results-mark", 2000)
    jobs.keep_feeding(
        "pictured", pictured(folder, 2000), "--inline", "--max-pixels", 100_000, "--payload-mark", 200_000
    )
    lost = jobs.keep_feeding("lost", prompts(5000), "--payload-mark", 50_000, "--priority", "-1")
    producer("pause", jobs.submit("paused", prompts(50)), "--redis", redis)
    lost.__exit__()


def fire(prometheus: Prometheus, names: set[str], timeout_s: float = 60) -> None:
    """Wait until each of the alerts has fired."""

    def missing() -> set[str]:
        return names - {series["metric"]["alertname"] for series in prometheus.ever(FIRING)}

    wait_until_sync(lambda: not missing(), description=f"these fire: {sorted(names)}", timeout_s=timeout_s)


def trouble_with_the_store(prometheus: Prometheus, store: StoreProcess) -> None:
    """Full, then unfit, then gone."""
    with BlockingRedis.from_url(store.url) as redis:
        redis.config_set("maxmemory", int(redis.info("memory")["used_memory"] * 1.1))
        fire(prometheus, {"GristmillStoreMemory"})
        redis.config_set("maxmemory", 0)
        redis.config_set("maxmemory-policy", "allkeys-lru")
        fire(prometheus, {"GristmillStoreUnfit"})
    store.kill()
    fire(prometheus, {"GristmillStoreDown"})


async def fall_asleep(url: str) -> None:
    """Be a feeder that lives and brings nothing any more."""
    redis = connect(url)
    await fed_job(redis, 5, close=False, name="asleep")
    await redis.aclose()


async def test_each_alert_fires_and_each_expression_has_data(
    tmp_path: Path, own_store: StoreProcess, standins: list[StandinProcess], daemon: Daemon, jobs: Jobs, neighbours: str
):
    """See the module's head."""
    servers = [one.root.removeprefix("http://") for one in standins]
    targets = {"gristmill": [metrics_of(daemon)], "store": [neighbours], "model-servers": [*servers, neighbours]}
    (tmp_path / "watcher").mkdir()
    with Prometheus(tmp_path / "watcher", targets) as prometheus:
        jobs.submit("good", prompts(6000), "--max-in-flight", 16)
        done = 'sum(gristmill_job_requests{place="ok"}) > 50'
        wait_until_sync(lambda: bool(prometheus.now(done)), description="work is done", timeout_s=60)
        assert prometheus.ever(FIRING) == []
        trouble_with_jobs(jobs, own_store.url, tmp_path)
        await fall_asleep(own_store.url)
        kill_workers(daemon)
        fire(prometheus, BY_WORK, timeout_s=90)
        standins[1].kill()
        fire(prometheus, {"GristmillEndpointDown"})
        standins[0].kill()
        fire(prometheus, {"GristmillAllEndpointsDown"})
        trouble_with_the_store(prometheus, own_store)
        daemon.close()
        fire(prometheus, {"GristmillNoDaemon"})
        shown = shown_on_boards()
        assert len(shown) > 100
        assert [one for one in shown if not prometheus.ever(one.expr)] == []
        assert {series["metric"]["alertname"] for series in prometheus.ever(FIRING)} == ALERTS
