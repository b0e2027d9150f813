"""A primary is killed in mid-job: the job ends with each result once, behind sentinels and in a cluster.

The replica has been cut off for a moment, so that what takes over has lost the last part of the job's history.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis as SyncRedis
from tests.process.daemons import Daemon
from tests.support.cli import Background, command, environment, write_requests
from tests.support.ha import ClusterStore, SentinelStore, running
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until_sync

from gristmill.contract.keys import JobKeys

FEW = 800
N = 2000
LARGE = pytest.param(20_000, marks=pytest.mark.chaos)
PATIENCE_S = 240


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


@contextmanager
def at_work(
    store: SentinelStore | ClusterStore, folder: Path, n: int, *options: object
) -> Iterator[tuple[str, Background]]:
    """A job over n requests, its `submit --wait`, and a daemon; at the end the daemon is well, no child has died."""
    write_requests(folder / "in.jsonl", n)
    words = ("submit", folder / "in.jsonl", "-m", "standin", "--wait", "-o", folder / "out.jsonl", *options)
    with StandinProcess("--latency", "0.03") as standin:
        daemon = Daemon(folder, "-e", standin.url, "--workers", "2", "--concurrency", "16", "--no-metrics",
                        "--no-control", redis=store.url)  # fmt: skip
        try:
            with Background(command(*words), environment(GRISTMILL_REDIS_URL=store.url)) as submit:
                yield submit.wait_for_line("job ").split("job ")[1].split()[0], submit
                print(standin.stats, submit.stderr, sep="\n")
            assert "generation 1" not in daemon.log, "a child has died of it"
            assert daemon.stop() == 0
        finally:
            daemon.close()


@pytest.mark.parametrize("n", [N, LARGE])
def test_a_killed_primary_costs_no_result(store: SentinelStore | ClusterStore, tmp_path: Path, n: int):
    """`submit --wait` and a daemon live through it: exit code 0, every line once, in order, no child was restarted."""
    with at_work(store, tmp_path, n) as (job, submit):
        old = store.server_of(job)
        has_done(old.client, job, n // 8)
        store.replica_of(old).lose_sight_of(old)
        had = done(old.client, job)
        has_done(old.client, job, had + n // 8)
        lost = done(old.client, job)
        new = store.fail_over(job)
        assert done(new.client, job) < lost < n
        assert submit.wait(PATIENCE_S) == 0, submit.stderr
        print(f"{had} were done when the replica was cut off, {lost} when the primary died")
    assert_each_once(tmp_path / "out.jsonl", n)


def test_input_that_was_fed_to_its_end_and_lost_is_fed_again(tmp_path: Path):
    """The feeder has ended, and what takes over knows nothing of the last lines: the command that waits feeds them."""
    with running(SentinelStore()) as store, at_work(store, tmp_path, FEW, "--payload-mark", "50KB") as (job, submit):
        old, meta = store.server_of(job), JobKeys(job).meta
        has_done(old.client, job, FEW // 8)
        replica = store.replica_of(old)
        replica.lose_sight_of(old)
        wait_until_sync(lambda: old.client.hget(meta, "closed") == b"1", timeout_s=PATIENCE_S, description="fed")
        assert replica.client.hget(meta, "closed") == b"0"
        store.fail_over(job)
        assert submit.wait(PATIENCE_S) == 0, submit.stderr
        assert "the store has lost the end of the input: feeding it again" in submit.stderr
    assert_each_once(tmp_path / "out.jsonl", FEW)
