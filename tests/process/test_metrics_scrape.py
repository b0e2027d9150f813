"""Real workers and a real server, scraped over HTTP and read by prometheus_client's own parser."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support import pages
from tests.support.queues import fed_job
from tests.support.store import StoreProcess
from tests.support.wait import wait_until_sync

from gristmill.queue.feedstats import FeedStats
from gristmilld.metricsdir import MetricsDir, Supervision
from gristmilld.server.listen import listen


class Daemon:
    """What the supervisor does for metrics, and the processes that take part."""

    def __init__(self, state_dir: Path, redis: str) -> None:
        self.folder = MetricsDir.create(str(state_dir), "d1")
        self.env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(self.folder.path)}
        self.redis = redis
        self.socket = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.processes: list[subprocess.Popen] = []
        self.heartbeat = os.pipe()
        self.parent = os.pipe()
        for fd in self.heartbeat:
            os.set_blocking(fd, False)

    def worker(self, name: str) -> subprocess.Popen:
        return self._start("worker", name, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def server(self) -> subprocess.Popen:
        fds = {"listen_fd": self.socket.fileno(), "heartbeat_fd": self.heartbeat[1], "parent_fd": self.parent[0]}
        spec = json.dumps({"redis": self.redis, "daemon_id": "d1", **fds})
        return self._start("server", spec, pass_fds=list(fds.values()))

    def _start(self, *args: str, **options) -> subprocess.Popen:
        argv = [sys.executable, "-m", "tests.process.metered", *args]
        process = subprocess.Popen(argv, env=self.env, **options)
        self.processes.append(process)
        if "stdout" in options:
            assert process.stdout.readline() == b"up\n"
        return process

    def tell(self, worker: subprocess.Popen, **what) -> None:
        worker.stdin.write(json.dumps(what).encode() + b"\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == b"done\n"

    def kill(self, worker: subprocess.Popen, name: str) -> None:
        """kill -9, and what the supervisor does at a death."""
        worker.kill()
        worker.wait(20)
        self.folder.forget(name)

    def get(self, path: str) -> tuple[int, str]:
        return pages.get(self.url + path)

    def samples(self) -> dict[tuple[str, ...], float]:
        """A scrape: (name, label values in order of their names) -> value."""
        found = {}
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for s in family.samples:
                key = (s.name, *(value for _, value in sorted(s.labels.items())))
                assert key not in found, f"{key} is there twice"
                found[key] = s.value
        return found

    def close(self) -> None:
        for process in self.processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.kill()
            process.wait(20)
        self.socket.close()
        for fd in (*self.heartbeat, *self.parent):
            os.close(fd)
        self.folder.remove()


@pytest.fixture
def daemon(tmp_path, shared_store):
    one = Daemon(tmp_path, shared_store.url)
    yield one
    one.close()


@pytest.fixture
def lone_daemon(tmp_path, own_store: StoreProcess):
    """With a store that the test may hurt."""
    one = Daemon(tmp_path, own_store.url)
    yield one
    one.close()


@pytest.fixture
async def job(redis):
    """A job in the shared store, whose feeder speaks."""
    queue = await fed_job(redis, 3)
    await queue.tell_feeding(FeedStats(pictures=1))
    return queue


def test_a_scrape_sums_the_workers(daemon):
    """Counters, histograms and gauges of two processes are one series each."""
    first, second = daemon.worker("worker-0"), daemon.worker("worker-1")
    daemon.server()
    daemon.tell(first, attempts=[["ok", 30], ["timeout", 900]], settled=["ok"], in_flight=3)
    daemon.tell(second, attempts=[["ok", 30]], settled=["bad_request"], in_flight=4)
    got = daemon.samples()
    assert got["gristmill_attempts_total", "here", "ok"] == 2
    assert got["gristmill_attempts_total", "here", "timeout"] == 1
    assert got["gristmill_requests_total", "ok", "here"] == 1
    assert got["gristmill_requests_total", "bad_request", "here"] == 1
    assert got["gristmill_tokens_total", "completion", "here"] == 60
    assert got["gristmill_slots",] == 128
    assert got["gristmill_in_flight_requests",] == 7
    assert got["gristmill_endpoint_state", "here", "ok"] == 2
    assert got["gristmill_endpoint_state", "here", "down"] == 0
    assert got["gristmill_call_duration_seconds_bucket", "here", "0.025", "ok"] == 0
    assert got["gristmill_call_duration_seconds_bucket", "here", "0.05", "ok"] == 2
    assert got["gristmill_call_duration_seconds_count", "here", "ok"] == 2
    assert got["gristmill_call_duration_seconds_sum", "here", "failed"] == pytest.approx(0.9)
    assert got["gristmill_first_byte_seconds_count", "here"] == 3


def test_a_restarted_worker_adds_no_file_and_counts_nothing_twice(daemon):
    """Ten kills: counters go on where they stood, the folder holds the same files as after the first start."""
    daemon.server()
    worker = daemon.worker("worker-0")
    daemon.tell(worker, attempts=[["ok", 30]], in_flight=5)
    files = sorted(p.name for p in daemon.folder.path.iterdir())
    for _ in range(10):
        daemon.kill(worker, "worker-0")
        worker = daemon.worker("worker-0")
        daemon.tell(worker, attempts=[["ok", 30]], in_flight=5)
    assert sorted(p.name for p in daemon.folder.path.iterdir()) == files
    got = daemon.samples()
    assert got["gristmill_attempts_total", "here", "ok"] == 11
    assert got["gristmill_call_duration_seconds_count", "here", "ok"] == 11
    assert got["gristmill_in_flight_requests",] == 5


def test_a_dead_worker_has_no_gauges(daemon):
    """What it had in flight is not in flight any more; what it counted stays."""
    daemon.server()
    dying, staying = daemon.worker("worker-1"), daemon.worker("worker-11")
    daemon.tell(dying, attempts=[["ok", 30]], in_flight=5)
    daemon.tell(staying, in_flight=2)
    daemon.kill(dying, "worker-1")
    got = daemon.samples()
    assert got["gristmill_in_flight_requests",] == 2
    assert got["gristmill_slots",] == 64
    assert got["gristmill_attempts_total", "here", "ok"] == 1


def test_a_worker_drops_the_gauges_of_its_predecessor(daemon):
    """Also where nobody could tidy up at the death, a new generation does not begin with old gauges."""
    daemon.server()
    first = daemon.worker("worker-0")
    daemon.tell(first, in_flight=5)
    first.kill()
    first.wait(20)
    daemon.worker("worker-0")
    assert daemon.samples()["gristmill_in_flight_requests",] == 0


def test_the_supervisors_word_is_served(daemon):
    """Who is up, restarts and deaths by cause."""
    daemon.server()
    up, starts = ["control", "worker-0"], {"control": 1, "worker-0": 3, "worker-1": 1}
    daemon.folder.publish(Supervision("running", up, starts, {"worker-0": {"crashed": 2}}))
    got = daemon.samples()
    assert got["gristmill_process_up", "worker-0"] == 1
    assert got["gristmill_process_up", "worker-1"] == 0
    assert got["gristmill_process_restarts_total", "worker-0"] == 2
    assert got["gristmill_process_deaths_total", "crashed", "worker-0"] == 2


def test_a_store_that_hangs_delays_no_answer(lone_daemon, own_store):
    """SIGSTOP of the store: every page answers within a second, metrics say the store is down, readyz says why."""
    worker = lone_daemon.worker("worker-0")
    lone_daemon.tell(worker, attempts=[["ok", 30]])
    lone_daemon.server()
    wait_until_sync(lambda: lone_daemon.samples()["gristmill_store_up",] == 1, description="a first look")
    os.kill(own_store.process.pid, signal.SIGSTOP)
    try:
        wait_until_sync(lambda: lone_daemon.samples()["gristmill_store_up",] == 0, description="the outage is seen")
        for path, status in (("/metrics", 200), ("/healthz", 200), ("/readyz", 503)):
            begun = time.monotonic()
            assert lone_daemon.get(path)[0] == status
            assert time.monotonic() - begun < 1
        assert "the store has not answered" in lone_daemon.get("/readyz")[1]
        assert lone_daemon.samples()["gristmill_attempts_total", "here", "ok"] == 1
    finally:
        os.kill(own_store.process.pid, signal.SIGCONT)
    wait_until_sync(lambda: lone_daemon.samples()["gristmill_store_up",] == 1, description="it is back")


def test_a_killed_server_comes_back_on_its_port(daemon):
    """The socket is the supervisor's: who connects between two servers is answered by the second."""
    daemon.server().kill()
    daemon.server()
    assert daemon.get("/healthz") == (200, "alive\n")


def test_a_server_ends_when_asked_to(daemon):
    """SIGTERM: exit code 0."""
    server = daemon.server()
    assert daemon.get("/healthz")[0] == 200
    server.terminate()
    assert server.wait(20) == 0


def test_a_server_ends_with_its_supervisor(daemon):
    """The supervisor's end of the pipe is closed: nothing is left to serve."""
    server = daemon.server()
    assert daemon.get("/healthz")[0] == 200
    os.close(daemon.parent[1])
    assert server.wait(20) == 1
    daemon.parent = (daemon.parent[0], os.open(os.devnull, os.O_RDONLY))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_say(daemon, job):
    """Names, units and help texts are as Prometheus wants them."""
    worker = daemon.worker("worker-0")
    daemon.tell(worker, attempts=[["ok", 30], ["timeout", 30]], settled=["ok", "bad_request"], in_flight=1)
    daemon.folder.publish(Supervision("running", ["worker-0"], {"worker-0": 2}, {"worker-0": {"crashed": 1}}))
    daemon.server()
    wait_until_sync(lambda: "gristmill_job_requests" in daemon.get("/metrics")[1], description="the job is seen")
    assert "gristmill_job_encoded_pictures" in daemon.get("/metrics")[1]
    text = daemon.get("/metrics")[1]
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_openmetrics_is_spoken_when_asked_for(daemon):
    """A Prometheus that asks for OpenMetrics gets it."""
    daemon.server()
    request = urllib.request.Request(
        daemon.url + "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request, timeout=20) as reply:
        assert reply.headers["Content-Type"].startswith("application/openmetrics-text")
        assert reply.read().endswith(b"# EOF\n")
