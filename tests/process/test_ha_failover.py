"""A primary is killed in mid-job: the job ends with each result once, behind sentinels and in a cluster.

The replica has been cut off for a moment, so that what takes over has lost the last part of the job's history.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis as SyncRedis
from tests.process.daemons import Daemon
from tests.support.cli import Background, command, environment, write_requests
from tests.support.ha import ClusterStore, SentinelStore
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until_sync

from gristmill.contract.keys import JobKeys

N = int(os.environ.get("GRISTMILL_HA_REQUESTS", "2000"))
PATIENCE_S = 60 + N / 100


@pytest.fixture(params=[SentinelStore, ClusterStore], ids=["sentinel", "cluster"])
def store(request: pytest.FixtureRequest) -> Iterator[SentinelStore | ClusterStore]:
    made = request.param()
    try:
        yield made.start()
    finally:
        made.close()


def done(client: SyncRedis, job: str) -> int:
    return int(client.hget(JobKeys(job).meta, "done") or 0)


def has_done(client: SyncRedis, job: str, count: int) -> None:
    wait_until_sync(lambda: done(client, job) > count, timeout_s=PATIENCE_S, description=f"{count} are done")


def assert_each_once(out: Path, n: int) -> None:
    """OUT has every request once, in order, and answered."""
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == [f"c{i}" for i in range(n)]
    assert {row["gristmill"]["status"] for row in rows} == {"ok"}


def test_a_killed_primary_costs_no_result(store: SentinelStore | ClusterStore, tmp_path: Path):
    """`submit --wait` and a daemon live through it: exit code 0, every line once, in order, no child was restarted."""
    write_requests(tmp_path / "in.jsonl", N)
    with StandinProcess("--latency", "0.03") as standin:
        daemon = Daemon(tmp_path, "-e", standin.url, "--workers", "2", "--concurrency", "16", "--no-metrics",
                        "--no-control", redis=store.url)  # fmt: skip
        argv = command("submit", tmp_path / "in.jsonl", "-m", "standin", "--wait", "-o", tmp_path / "out.jsonl")
        try:
            with Background(argv, environment(GRISTMILL_REDIS_URL=store.url)) as submit:
                job = submit.wait_for_line("job ").split("job ")[1].split()[0].strip(",;:.")
                old = store.server_of(job)
                has_done(old.client, job, N // 8)
                store.replica_of(old).lose_sight_of(old)
                had = done(old.client, job)
                has_done(old.client, job, had + N // 8)
                lost = done(old.client, job)
                new = store.fail_over(job)
                assert done(new.client, job) < lost < N
                code = submit.wait(PATIENCE_S)
                assert code == 0, submit.stderr + daemon.log[-3000:]
            print(f"{job}: {had} done when the replica was cut off, {lost} when the primary died", standin.stats)
            print(submit.stderr)
            assert "generation 1" not in daemon.log, "a child has died of it"
            assert daemon.stop() == 0
        finally:
            daemon.close()
    assert_each_once(tmp_path / "out.jsonl", N)
