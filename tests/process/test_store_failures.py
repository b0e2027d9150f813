"""The store fails under a job as users meet it: the whole daemon and a command that waits, on a real server.

Whatever it is, both wait and say so, no worker ends, and once the store is well the job completes with each result
once. (RQ's workers end when their queue is away, and are started again.)
"""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, ReadOnlyError
from redis.retry import Retry
from tests.process.daemons import Daemon
from tests.support.cli import Background, command, environment, producer, write_requests
from tests.support.standin import StandinProcess
from tests.support.store import StoreProcess, server_binary
from tests.support.wait import wait_until_sync

from gristmill.queue.connection import StoreDiskError

LINES = 100
WAITING = "the store does not answer, waiting for it"


@pytest.fixture
def standin() -> Iterator[StandinProcess]:
    with StandinProcess("--latency", "0.05") as one:
        yield one


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProcess]:
    """A server that survives it when its files may grow no more; loading takes it a moment for each key."""
    wrapper = tmp_path / "server"
    wrapper.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec '{server_binary()}' \"$@\"\n")
    wrapper.chmod(0o700)
    monkeypatch.setenv("GRISTMILL_TEST_STORE", str(wrapper))
    one = StoreProcess("--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024").start()
    yield one
    one.close()


@pytest.fixture
def daemon(tmp_path: Path, store: StoreProcess, standin: StandinProcess) -> Iterator[Daemon]:
    folder = tmp_path / "daemon"
    folder.mkdir()
    options = ("-e", standin.url, "--workers", "2", "--concurrency", "4", "--no-metrics")
    one = Daemon(folder, *options, redis=store.url)
    yield one
    one.close()


def refuses(client: Redis, error: type[Exception]) -> Callable[[], bool]:
    """Whether the store refuses a write in this way."""

    def look() -> bool:
        try:
            client.set("test:probe", "x" * 100)
        except Exception as refusal:  # noqa: BLE001  it may as well be away
            return isinstance(refusal, error)
        return False

    return look


def killed(store: StoreProcess, client: Redis, daemon: Daemon) -> None:
    """It is away for a while, then reads its log."""
    store.kill()
    daemon.says(WAITING)
    store.start()


def loading(store: StoreProcess, client: Redis, daemon: Daemon) -> None:
    """It answers that it reads its log, for some seconds."""
    client.mset({f"test:{number}": os.urandom(2000) for number in range(150)})
    client.bgrewriteaof()
    wait_until_sync(
        lambda: not client.info("persistence")["aof_rewrite_in_progress"], description="the log is written anew"
    )
    client.delete(*client.scan_iter("test:*"))
    store.kill()
    starting = threading.Thread(target=store.start)
    starting.start()
    wait_until_sync(refuses(client, BusyLoadingError), description="it is loading")
    starting.join()


def forgetful(store: StoreProcess, client: Redis, daemon: Daemon) -> None:
    """It forgets its scripts, again and again."""
    for _ in range(20):
        client.script_flush()
        time.sleep(0.05)  # so often


def replica(store: StoreProcess, client: Redis, daemon: Daemon) -> None:
    """It becomes a replica under its clients, as after a failover, and then a primary again."""
    client.replicaof("127.0.0.1", 1)
    wait_until_sync(refuses(client, ReadOnlyError), description="it refuses writes")
    daemon.says(WAITING)
    client.replicaof("NO", "ONE")


def full_disk(store: StoreProcess, client: Redis, daemon: Daemon) -> None:
    """Its log can't grow, so it refuses writes (MISCONF)."""
    assert store.process is not None
    pid, (_, hard) = store.process.pid, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, hard))
    wait_until_sync(refuses(client, StoreDiskError), description="it refuses writes")
    daemon.says(WAITING)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
    wait_until_sync(lambda: not refuses(client, StoreDiskError)(), description="it takes writes again")


@pytest.mark.parametrize("hurt", [killed, loading, forgetful, replica, full_disk], ids=lambda hurt: hurt.__name__)
def test_a_job_outlives_it(
    store: StoreProcess, daemon: Daemon, standin: StandinProcess, tmp_path: Path, hurt: Callable[..., None]
):
    """It waits, and says so where there is something to wait for; no worker ends; every line has its answer."""
    source, out = write_requests(tmp_path / "in.jsonl", LINES), tmp_path / "out.jsonl"
    words = command("submit", source, "-m", "standin", "--wait", "-o", out, "--redis", store.url)
    daemon.says("worker-1 ready")
    with Redis.from_url(store.url, retry=Retry(NoBackoff(), 0)) as client, Background(words, environment()) as running:
        wait_until_sync(lambda: out.exists() and out.stat().st_size > 0, description=f"it works: {running.stderr}")
        hurt(store, client, daemon)
        assert running.wait() == 0, running.stderr
    assert [json.loads(line)["custom_id"] for line in out.read_text().splitlines()] == [f"c{i}" for i in range(LINES)]
    assert daemon.stop() == 0
    assert all(f"{name} started, generation 1" not in daemon.log for name in ("worker-0", "worker-1", "control"))


def test_input_waits_for_room_in_the_store(store: StoreProcess, daemon: Daemon, tmp_path: Path):
    """A store at its own memory limit takes no more input, and lets out what it has: the job goes on as it empties."""
    source, out = write_requests(tmp_path / "in.jsonl", 3 * LINES, words=6000), tmp_path / "out.jsonl"
    words = command("submit", source, "-m", "standin", "--wait", "-o", out, "--redis", store.url)
    daemon.says("worker-1 ready")
    with Redis.from_url(store.url) as client, Background(words, environment()) as running:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 8_000_000)
        wait_until_sync(lambda: out.exists() and out.stat().st_size > 0, description=f"it works: {running.stderr}")
        assert running.wait() == 0, running.stderr
        refused = client.info("errorstats").get("errorstat_OOM", {"count": 0})["count"]
    assert refused > 0, "the limit was never met"
    assert len(out.read_text().splitlines()) == 3 * LINES
    assert all(f"{name} started, generation 1" not in daemon.log for name in ("worker-0", "worker-1", "control"))


def test_a_job_that_a_full_store_cannot_take_is_refused(store: StoreProcess, tmp_path: Path):
    """Exit 2 and a sentence; nothing was sent."""
    source = write_requests(tmp_path / "in.jsonl", 3)
    with Redis.from_url(store.url) as client:
        client.config_set("maxmemory", 1)
        done = producer("submit", source, "-m", "standin", "--redis", store.url)
    assert done.returncode == 2
    assert "the store is at its memory limit and takes no new payload" in done.stderr
