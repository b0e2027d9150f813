"""The verbs that act on jobs, as a user calls them: real command, real feeder, real store."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis
from tests.support.cli import command, producer, write_requests
from tests.support.store import StoreProcess
from tests.support.wait import wait_until_sync

from gristmill.contract.record import Detail, Record, encode
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import Claimed, Finished


@pytest.fixture
def url(shared_store: StoreProcess) -> str:
    with SyncRedis.from_url(shared_store.url) as client:
        client.flushall()
    return shared_store.url


def submit(tmp_path: Path, url: str, n: int = 10, *more: str) -> str:
    """Submit `n` requests and return the job's id."""
    done = producer("submit", write_requests(tmp_path / "in.jsonl", n), "-m", "m", "--redis", url, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


async def answer(url: str, job: str, indices: list[int]) -> None:
    """Be the worker: answer `indices`, and put back the rest of what was claimed on the way."""
    redis = Redis.from_url(url)
    try:
        queue, left, known = await LeaseQueue.attach(redis, job), set(indices), False
        while left:
            claimed = (await queue.claim("w.1", 1000, 1 << 30, 30_000, believed=known, suspects=True)).claimed
            known = True
            assert claimed, f"nothing more to claim, {left} missing"
            await queue.commit("w.1", [finished(c) for c in claimed if c.index in left], [])
            left -= {c.index for c in claimed}
        await queue.reap("w.1", force=True, crashed=False)
    finally:
        await redis.aclose()


def finished(claimed: Claimed) -> Finished:
    """A good answer to `claimed`."""
    detail = Detail(claimed.index, f"c{claimed.index}", bytes(16), 200, body=b"{}")
    return Finished(claimed.index, claimed.run, encode(Record(None, 1, 2, 3, detail)))


def test_submit_prints_the_id_on_both_streams_and_warns(tmp_path: Path, url: str):
    """stdout has the id alone; stderr has it first, and the warning that nobody works on it."""
    done = producer("submit", write_requests(tmp_path / "in.jsonl", 10), "-m", "m", "--redis", url)
    job = done.stdout.strip()
    assert done.returncode == 0
    assert done.stderr.splitlines()[0] == f"job {job}"
    assert "no daemon connected" in done.stderr
    assert "\x1b" not in done.stderr


def test_ls_and_status_tell_the_same(tmp_path: Path, url: str):
    """Human and JSON forms of `ls` and `status` show the job and its counts."""
    job = submit(tmp_path, url, 10, "--name", "my batch")
    listed = json.loads(producer("ls", "--json", "--redis", url).stdout)
    status = json.loads(producer("status", job, "--json", "--redis", url).stdout)
    assert [row["job"] for row in listed] == [job]
    assert {k: listed[0][k] for k in ("state", "total", "waiting", "name")} == {
        "state": "running", "total": 10, "waiting": 10, "name": "my batch",
    }  # fmt: skip
    keys = {
        "job",
        "state",
        "total",
        "ok",
        "failed",
        "waiting",
        "in_flight",
        "not_run",
        "by_class",
        "attempts",
        "tokens",
    }
    assert keys | {"wall_s"} <= status.keys()
    table = producer("ls", "--redis", url).stdout.splitlines()
    assert table[0].split()[:3] == ["JOB", "STATE", "DONE"]
    assert "0/10" in table[1]
    assert "no daemon connected" in producer("status", job, "--redis", url).stdout


def test_pause_resume_cancel_rm(tmp_path: Path, url: str):
    """Each verb changes the state once and says so; what does not apply exits with 2; rm leaves no key."""
    job = submit(tmp_path, url)

    def state() -> str:
        return json.loads(producer("status", job, "--json", "--redis", url).stdout)["state"]

    assert producer("pause", job, "--redis", url).returncode == 0
    assert state() == "paused"
    assert producer("resume", job, "--redis", url).returncode == 0
    assert state() == "running"
    assert producer("resume", job, "--redis", url).returncode == 2
    refused = producer("rm", job, "--redis", url)
    assert (refused.returncode, "cancel" in refused.stderr) == (2, True)
    assert producer("cancel", job, "--redis", url).returncode == 0
    assert state() == "cancelled"
    assert producer("rm", job, "--redis", url).returncode == 0
    with SyncRedis.from_url(url) as client:
        assert client.keys("gm:{*") == []


@pytest.mark.parametrize("verb", ["status", "watch", "results", "cancel", "pause", "resume", "rm"])
def test_unknown_job_is_a_sentence(url: str, verb: str):
    """Each verb exits with 2 and one sentence when there is no such job, also for names that no job can have."""
    for name in ("nope", "a b{c}"):
        done = producer(verb, name, "--redis", url)
        assert done.returncode == 2
        assert done.stderr.startswith(f"Error: there is no job {name!r}")
        assert done.stderr.count("\n") == 1


async def test_results_are_read_without_a_lease_and_collected_with_one(tmp_path: Path, url: str):
    """Without -o lines are printed and stay; with --partial they are durable in OUT, then freed; OUT is added to."""
    job = submit(tmp_path, url)
    await answer(url, job, [0, 2, 3])
    printed = producer("results", job, "--redis", url)
    assert [json.loads(line)["gristmill"]["index"] for line in printed.stdout.splitlines()] == [0, 2, 3]
    out = tmp_path / "out.jsonl"
    first = producer("results", job, "-o", out, "--partial", "--redis", url)
    assert first.returncode == 0, first.stderr
    assert [json.loads(line)["custom_id"] for line in out.read_text().splitlines()] == ["c0", "c2", "c3"]
    assert producer("results", job, "--redis", url).stdout == ""
    await answer(url, job, [1, *range(4, 10)])
    last = producer("results", job, "-o", out, "--json", "--redis", url)
    assert last.returncode == 0, last.stderr
    assert [json.loads(line)["gristmill"]["index"] for line in out.read_text().splitlines()] == list(range(10))
    assert json.loads(last.stdout)["ok"] == 10
    assert not (tmp_path / "out.jsonl.gm").exists()


async def test_watch_ends_with_the_job(tmp_path: Path, url: str):
    """`watch` shows plain lines off a terminal, and exits like a run when the job has ended."""
    job = submit(tmp_path, url)
    watching = await asyncio.create_subprocess_exec(*command("watch", job, "--redis", url), stderr=subprocess.PIPE)
    assert watching.stderr
    assert b"waiting for" in await watching.stderr.readline()
    await answer(url, job, list(range(10)))
    async with asyncio.timeout(20):
        err = await watching.stderr.read()
        assert await watching.wait() == 0
    assert b"complete: 10 lines: 10 ok, 0 failed" in err


@contextmanager
def half_fed(path: Path, url: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A submit that waits for room with some lines of `path` fed, and its job."""
    argv = command("submit", path, "-m", "m", "--payload-mark", "300k", "--redis", url)
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as submitting:
        assert submitting.stderr
        job = submitting.stderr.readline().split()[1]
        wait_until_sync(
            lambda: json.loads(producer("status", job, "--json", "--redis", url).stdout)["total"] > 0,
            description="some lines have been fed",
        )
        yield submitting, job


def test_killed_submit_is_resumed_by_the_same_command(tmp_path: Path, url: str):
    """kill -9 of submit in the middle of feeding: its feeder ends with it, and the same command goes on."""
    path = write_requests(tmp_path / "in.jsonl", 400, words=400)
    with half_fed(path, url) as (submitting, job):
        submitting.kill()
        submitting.communicate()
    again = producer("submit", path, "-m", "m", "--payload-mark", "300k", "--redis", url, timeout_s=3)
    assert again.returncode == 124  # it waits, the hopper is full: it went on with the same job
    assert again.stderr.startswith(f"job {job}\n")
    assert len(json.loads(producer("ls", "--json", "--redis", url).stdout)) == 1


def test_changed_input_is_refused(tmp_path: Path, url: str):
    """A half-fed job is not continued from another file of the same name."""
    path = write_requests(tmp_path / "in.jsonl", 400, words=400)
    with half_fed(path, url) as (submitting, job):
        submitting.send_signal(signal.SIGTERM)
        _, err = submitting.communicate(timeout=20)
    assert submitting.returncode == 130
    assert "the same command goes on from there" in err
    path.write_bytes(path.read_bytes() + b'{"prompt":"one more"}\n')
    done = producer("submit", path, "-m", "m", "--payload-mark", "300k", "--redis", url)
    assert done.returncode == 2
    assert f"has changed since job {job} was begun" in done.stderr


def test_unknown_option_and_verb_get_a_suggestion(tmp_path: Path):
    """A slip costs one line of reading: exit 2 and what was meant."""
    slip = producer("run", "x", "-o", "y", "--concurency", "3")
    assert (slip.returncode, "--concurrency" in slip.stderr) == (2, True)
    slip = producer("sbmit", "x")
    assert (slip.returncode, "Did you mean 'submit'?" in slip.stderr) == (2, True)


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "x", "-o", "y", "--payload-mark", "64XB"],
        ["run", "x", "-o", "y", "--max-failures", "0"],
        ["run", "x", "-o", "y", "--set", "temperature"],
        ["run", "x"],
        ["submit", "x", "--wait"],
        ["submit", "x", "-o", "y"],
        ["run", "x", "-o", "-", "--json"],
        ["results", "j", "--take"],
    ],
)
def test_options_that_cannot_work_exit_2(argv: list[str]):
    """Each has one sentence that starts with Error."""
    done = producer(*argv)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("Error: ")


def test_store_that_is_not_there_is_a_sentence():
    """A refused store names what to look at, and no traceback."""
    done = producer("ls", "--redis", "redis://:secret@127.0.0.1:1/0")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: the store cannot be reached")
    assert "secret" not in done.stderr


def test_check_shows_what_would_be_sent(tmp_path: Path):
    """`check` exits with 0 for a clean input, and 2 with both line numbers for a repeated id."""
    path = write_requests(tmp_path / "in.jsonl", 3)
    done = producer("check", path, "-m", "m", "--set", "temperature=0")
    assert done.returncode == 0, done.stderr
    assert '"temperature":0' in done.stdout
    path.write_bytes(path.read_bytes() + b'{"custom_id":"c0","prompt":"again"}\nnonsense\n')
    done = producer("check", path, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 2
    assert (report["lines"], report["refused"], report["duplicates"]) == (5, 1, 1)


def test_help_is_quick_and_loads_nothing_heavy():
    """`--help` imports neither redis nor rich nor pillow."""
    probe = """
import sys
sys.argv = ["producer", "--help"]
try:
    from gristmill.cli import main
    main()
except SystemExit:
    heavy = ("redis", "rich", "PIL", "asyncio", "aiohttp", "zstandard", "msgspec")
    print([m for m in heavy if m in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([*command()[:1], "-c", probe], capture_output=True, text=True, env=dict(os.environ))
    assert done.stderr.strip() == "[]"
    assert "submit" in done.stdout
