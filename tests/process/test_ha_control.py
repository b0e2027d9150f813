"""What daemons do for jobs while nobody looks, and what the doctor says, behind sentinels and in a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.process.daemons import Daemon
from tests.support.cli import environment, producer, write_requests
from tests.support.ha import ClusterStore, SentinelStore, running
from tests.support.standin import StandinProcess
from tests.support.store import StoreProcess
from tests.support.wait import wait_until_sync

from gristmill import blocking
from gristmill.contract.keys import JobKeys

N = 200


@pytest.fixture
def sentinels() -> Iterator[SentinelStore]:
    with running(SentinelStore()) as store:
        yield store


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterStore]:
    with running(ClusterStore(replicas=False)) as store:
        yield store


@contextmanager
def daemon(folder: Path, url: str, standin: StandinProcess, *options: str) -> Iterator[Daemon]:
    running = Daemon(folder, "-e", standin.url, "--workers", "1", "--no-metrics", "--allow-root", str(folder),
                     "--concurrency", "8", *options, redis=url)  # fmt: skip
    try:
        yield running
    finally:
        running.close()


def leave(folder: Path, url: str) -> tuple[str, Path]:
    """Leave a job to the daemon, with all that it can do; its id and its OUT."""
    out = folder / "out.jsonl"
    write_requests(folder / "in.jsonl", N)
    done = producer(
        "submit", folder / "in.jsonl", "-m", "standin", "--detach", "--output", out, GRISTMILL_REDIS_URL=url
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), out


def is_whole(out: Path) -> bool:
    if not out.exists():
        return False
    ids = [json.loads(line)["custom_id"] for line in out.read_text().splitlines()]
    return ids == [f"c{i}" for i in range(N)]


def test_daemons_feed_and_export_through_a_failover(sentinels: SentinelStore, tmp_path: Path):
    """RQ's keys lie behind the same sentinels; its workers find the new primary, too, and OUT is whole."""
    with StandinProcess("--latency", "0.05") as standin, daemon(tmp_path, sentinels.url, standin) as running:
        job, out = leave(tmp_path, sentinels.url)
        old = sentinels.primary
        wait_until_sync(lambda: int(old.client.hget(JobKeys(job).meta, "done") or 0) > N // 4, description="it works")
        sentinels.fail_over(job)
        wait_until_sync(lambda: is_whole(out), timeout_s=90, description="OUT is whole")
        assert running.stop() == 0


def test_a_daemon_of_a_cluster_says_what_it_leaves_to_others(cluster: ClusterStore, tmp_path: Path):
    """Without `--control-redis` one sentence; with it the control plane works, and RQ's keys are in that store."""
    with StandinProcess() as standin:
        with daemon(tmp_path, cluster.url, standin) as running:
            running.says(
                "feeds, exports and announces no jobs, since RQ cannot use a cluster; name another store for it"
            )
            job, out = leave(tmp_path, cluster.url)
            assert running.stop() == 0
        other = StoreProcess().start()
        try:
            with daemon(tmp_path, cluster.url, standin, "--control-redis", other.url) as running:
                wait_until_sync(lambda: is_whole(out), timeout_s=60, description=f"OUT of {job} is whole")
                assert running.stop() == 0
        finally:
            other.close()
        refused = Daemon(tmp_path, "-e", standin.url, "--control-redis", cluster.url, redis=other.url)
        assert refused.wait() == 2
        assert "control_redis names a cluster, which RQ cannot use" in refused.log


def test_the_doctor_looks_at_every_node(cluster: ClusterStore, tmp_path: Path):
    """Each primary is judged under its address, and what RQ lacks is a warning."""
    argv = [sys.executable, "-m", "gristmilld", "doctor", "--json", "-e", "http://127.0.0.1:9", "--redis", cluster.url]
    cluster.primaries[1].client.config_set("appendonly", "no")
    done = subprocess.run(argv, capture_output=True, text=True, env=environment(), check=False, cwd=tmp_path)
    cluster.primaries[1].client.config_set("appendonly", "yes")
    checks = json.loads(done.stdout)["checks"]
    stores = [check["text"] for check in checks if check["check"] == "store"]
    assert [f"127.0.0.1:{server.port} of {cluster.url}" in text for server, text in
            zip(sorted(cluster.primaries, key=lambda s: s.port), stores, strict=True)] == [True] * 3  # fmt: skip
    levels = [check["level"] for check in checks if check["check"] == "store persistence"]
    assert sorted(levels) == ["ok", "ok", "warn"]
    (plane,) = (check for check in checks if check["check"] == "control plane")
    assert plane["level"] == "warn"
    assert "--control-redis" in plane["fix"]


def test_a_program_asks_through_a_cluster(cluster: ClusterStore, tmp_path: Path):
    """The client of the SDK takes the URL: answers in order, several jobs at a time, and none is left behind."""
    with (
        StandinProcess() as standin,
        daemon(tmp_path, cluster.url, standin),
        blocking.Client(redis=cluster.url, model="standin") as client,
    ):
        jobs = [client.submit([f"{number}: {i}" for i in range(20)]) for number in range(4)]
        for job in jobs:
            assert [result.require().index for result in job.results()] == list(range(20))
            job.remove()
        assert client.ask("one more").ok
