"""A primary is killed in mid-job: the job ends with each result once, behind sentinels and in a cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis as SyncRedis
from tests.process.daemons import Daemon
from tests.support.cli import Background, command, environment, write_requests
from tests.support.ha import ClusterStore, SentinelStore, Server
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until_sync

N = int(os.environ.get("GRISTMILL_HA_REQUESTS", "2000"))
PATIENCE_S = 60 + N / 100


@pytest.fixture(params=[SentinelStore, ClusterStore], ids=["sentinel", "cluster"])
def store(request: pytest.FixtureRequest) -> Iterator[SentinelStore | ClusterStore]:
    made = request.param()
    try:
        yield made.start()
    finally:
        made.close()


def server_of(store: SentinelStore | ClusterStore, job: str) -> Server:
    return store.primary if isinstance(store, SentinelStore) else store.owner(f"gm:{{{job}}}:m")


def fail_over(store: SentinelStore | ClusterStore, job: str) -> Server:
    """Kill the primary that has the job; the one that has taken its place."""
    return store.kill_primary() if isinstance(store, SentinelStore) else store.kill_owner(f"gm:{{{job}}}:m")


def done(client: SyncRedis, job: str) -> int:
    return int(client.hget(f"gm:{{{job}}}:m", "done") or 0)


def assert_each_once(out: Path, n: int) -> None:
    """OUT has every request once, in order, and answered."""
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == [f"c{i}" for i in range(n)]
    assert all(row["gristmill"]["status"] == "ok" for row in rows)


def test_a_killed_primary_costs_no_result(store: SentinelStore | ClusterStore, tmp_path: Path):
    """`submit --wait` and a daemon live through it: exit code 0, every line once, in order, nobody was restarted."""
    write_requests(tmp_path / "in.jsonl", N)
    with StandinProcess("--latency", "0.02") as standin:
        daemon = Daemon(tmp_path, "-e", standin.url, "--workers", "2", "--concurrency", "16", "--no-metrics",
                        "--no-control", redis=store.url)  # fmt: skip
        argv = command("submit", tmp_path / "in.jsonl", "-m", "standin", "--wait", "-o", tmp_path / "out.jsonl")
        try:
            with Background(argv, environment(GRISTMILL_REDIS_URL=store.url)) as submit:
                job = submit.wait_for_line("job ").split("job ")[1].split()[0].strip(",;:.")
                old = server_of(store, job)
                wait_until_sync(
                    lambda: done(old.client, job) > N // 4, timeout_s=PATIENCE_S, description="a quarter is done"
                )
                new = fail_over(store, job)
                assert done(new.client, job) < N
                code = submit.wait(PATIENCE_S)
                assert code == 0, submit.stderr + daemon.log[-3000:]
            assert "generation 1" not in daemon.log, "a child has died of it"
            assert daemon.stop() == 0
        finally:
            daemon.close()
    assert_each_once(tmp_path / "out.jsonl", N)
