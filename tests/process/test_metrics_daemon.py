"""Metrics of the whole daemon: supervisor, control, workers and server as they are started by ``gristmilld up``."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis
from tests.process.daemons import Daemon
from tests.support import pages
from tests.support.jobs import chat, sealed_job
from tests.support.standin import StandinProcess
from tests.support.store import StoreProcess
from tests.support.wait import wait_until_sync

from gristmilld.config import DEFAULT_METRICS_PORT
from gristmilld.server.listen import ListenError, listen

NOWHERE = "http://127.0.0.1:9"


class Served(Daemon):
    """A daemon that serves metrics on a port of its own."""

    @property
    def url(self) -> str:
        self.says("metrics are served on ")
        found = re.search(r"metrics are served on (\S+) port (\d+)", self.log)
        assert found is not None
        return f"http://{found[1]}:{found[2]}"

    def get(self, path: str) -> tuple[int, str]:
        return pages.get(self.url + path)

    def value(self, name: str, **labels: str) -> float | None:
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        return None

    def ready(self) -> bool:
        return self.get("/readyz") == (200, "ready\n")


@pytest.fixture
def start(tmp_path, own_store: StoreProcess):
    """Starts daemons on the test's store; each has a state dir, and leaves no metrics in it."""
    started: list[Served] = []

    def start(*options: str) -> Served:
        folder = tmp_path / f"d{len(started)}"
        folder.mkdir()
        given = ["--workers", "1", "--state-dir", str(folder / "state"), *options]
        one = Served(folder, *given, *([] if "-e" in options else ["-e", NOWHERE]), redis=own_store.url)
        started.append(one)
        return one

    yield start
    for one in started:
        one.close()


def folders(daemon: Served) -> list[Path]:
    base = daemon.log_path.parent / "state" / "metrics"
    return [path for path in base.iterdir() if path.is_dir()] if base.exists() else []


def test_a_daemon_is_ready_once_it_is_up_and_registered(start):
    """Alive at once, ready when control has registered it; its parts are seen; nothing stays when it has stopped."""
    daemon = start("--metrics-port", "0", "--workers", "2")
    wait_until_sync(lambda: daemon.get("/healthz")[0] == 200, description="it is alive")
    wait_until_sync(daemon.ready, description="it is ready")
    for slot in ("control", "server", "worker-0", "worker-1"):
        wait_until_sync(
            lambda slot=slot: daemon.value("gristmill_process_up", process=slot) == 1, description=f"{slot} is up"
        )
        assert daemon.value("gristmill_process_restarts_total", process=slot) == 0
    assert daemon.value("gristmill_daemons") == 1
    assert daemon.value("gristmill_store_up") == 1
    assert len(folders(daemon)) == 1
    assert daemon.stop() == 0
    assert folders(daemon) == []


async def test_what_the_workers_do_is_counted(start, own_store, tmp_path):
    """A job of 300 requests through two workers, three of which fail once: every count agrees with the store's."""
    client = Redis.from_url(own_store.url)
    with StandinProcess() as standin:
        standin.control(faults=[{"kind": "status", "status": 500, "times": 3}])
        config = tmp_path / "g.toml"
        config.write_text(f'[endpoints.near]\nurl = "{standin.url}"\n')
        daemon = start("--config", str(config), "-e", "near", "--metrics-port", "0", "--workers", "2")
        queue = await sealed_job(client, [chat(n) for n in range(300)])

        def counted() -> bool:
            return daemon.value("gristmill_committed_results_total", status="new") == 300

        await asyncio.to_thread(wait_until_sync, counted, description="all results are counted")
        snapshot = await queue.snapshot()
        assert (snapshot.done, snapshot.failed) == (300, 0)
        assert daemon.value("gristmill_requests_total", endpoint="near", **{"class": "ok"}) == 300
        assert daemon.value("gristmill_attempts_total", endpoint="near", outcome="ok") == 300
        assert daemon.value("gristmill_attempts_total", endpoint="near", outcome="transient") == 3
        assert daemon.value("gristmill_call_duration_seconds_count", endpoint="near", result="ok") == 300
        assert daemon.value("gristmill_call_duration_seconds_count", endpoint="near", result="failed") == 3
        assert daemon.value("gristmill_first_byte_seconds_count", endpoint="near") == 303
        assert daemon.value("gristmill_tokens_total", endpoint="near", direction="prompt") == snapshot.prompt_tokens
        assert daemon.value("gristmill_committed_results_total", status="duplicate") == 0
        assert daemon.value("gristmill_claimed_requests_total") >= 300
        assert daemon.value("gristmill_in_flight_requests") == 0
        assert daemon.value("gristmill_slots") == 2 * 256
        assert daemon.value("gristmill_endpoint_state", endpoint="near", state="ok") == 2
        assert daemon.value("gristmill_endpoint_in_flight_calls", endpoint="near") == 0
        for slot in ("worker-0", "worker-1"):
            assert daemon.value("gristmill_loop_lag_seconds_count", process=slot) > 0
        assert await asyncio.to_thread(daemon.stop) == 0
    await client.aclose()


def test_deaths_and_restarts_are_counted(start):
    """kill -9 of a worker, then of the server itself, which comes back on its port and knows both."""
    daemon = start("--metrics-port", "0")
    url = daemon.url
    wait_until_sync(daemon.ready, description="it is ready")
    os.kill(daemon.pid_of("worker-0"), signal.SIGKILL)
    daemon.pid_of("worker-0", 1)
    os.kill(daemon.pid_of("server"), signal.SIGKILL)
    daemon.pid_of("server", 1)
    assert daemon.url == url
    assert daemon.value("gristmill_process_restarts_total", process="worker-0") == 1
    assert daemon.value("gristmill_process_deaths_total", process="worker-0", cause="crashed") == 1
    assert daemon.value("gristmill_process_deaths_total", process="server", cause="crashed") == 1
    wait_until_sync(daemon.ready, description="it is ready again")
    assert daemon.stop() == 0


def test_a_daemon_without_its_store_says_why_it_is_not_ready(start, own_store):
    """Alive, but not ready: 503 and a sentence."""
    daemon = start("--metrics-port", "0")
    wait_until_sync(daemon.ready, description="it is ready")
    own_store.kill()
    wait_until_sync(lambda: not daemon.ready(), description="the outage is seen")
    status, text = daemon.get("/readyz")
    assert status == 503
    assert "not ready: the store" in text
    assert daemon.get("/healthz") == (200, "alive\n")
    own_store.start()
    wait_until_sync(daemon.ready, description="it is ready again")


def test_a_daemon_that_was_killed_leaves_its_folder_to_the_next(start, tmp_path):
    """kill -9 of the supervisor: its folder stays, and the next daemon of the state dir removes it."""
    daemon = start("--metrics-port", "0")
    wait_until_sync(daemon.ready, description="it is ready")
    server = daemon.pid_of("server")
    daemon.process.kill()
    daemon.wait()
    wait_until_sync(lambda: not Path(f"/proc/{server}").exists(), description="the server has died with it")
    [left] = folders(daemon)
    second = start("--metrics-port", "0", "--state-dir", str(tmp_path / "d0" / "state"))
    wait_until_sync(second.ready, description="the next is ready")
    assert left not in folders(daemon)
    assert second.stop() == 0


def test_a_port_that_was_asked_for_and_is_taken_is_refused(start):
    """Exit code 2, one sentence, nothing forked."""
    with listen("127.0.0.1", 0) as taken:
        daemon = start("--metrics-port", str(taken.getsockname()[1]))
        assert daemon.wait() == 2
    assert "for metrics, is in use: give another with --metrics-port PORT, or --no-metrics" in daemon.log
    assert "started, generation" not in daemon.log


def test_a_default_port_that_is_taken_is_a_warning(start):
    """A second daemon of a machine runs, without metrics, and says so."""
    try:
        taken = listen("127.0.0.1", DEFAULT_METRICS_PORT)
    except ListenError:
        taken = None  # somebody else has it, which is as good
    daemon = start()
    daemon.says(f"no metrics: port {DEFAULT_METRICS_PORT} of 127.0.0.1, for metrics, is in use")
    daemon.pid_of("worker-0")
    assert daemon.stop() == 0
    assert "server started" not in daemon.log
    if taken is not None:
        taken.close()


@pytest.mark.parametrize("options", [("--no-metrics",), ("--metrics-port", "0", "--no-metrics")])
def test_metrics_can_be_turned_off(start, options):
    """No server, no folder."""
    daemon = start(*options)
    daemon.pid_of("worker-0")
    assert daemon.stop() == 0
    assert "server started" not in daemon.log
    assert folders(daemon) == []


def test_a_private_daemon_has_no_metrics_unless_asked(start):
    """One that ends with whoever started it takes no port by itself; its stdin is at its end, so it stops at once."""
    quiet = start("--exit-with-parent")
    assert quiet.wait() == 0
    assert "metrics" not in quiet.log
    asked = start("--exit-with-parent", "--metrics-port", "0")
    assert asked.wait() == 0
    assert "metrics are served on 127.0.0.1 port" in asked.log
