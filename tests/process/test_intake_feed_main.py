"""The feeder as a process: its spec, its exit codes, and that it ends when it should."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis
from tests.support.store import StoreProcess
from tests.support.wait import wait_until

from gristmill.contract.manifest import Manifest
from gristmill.intake.feed_spec import FeedSpec
from gristmill.intake.feeder import FeedResult
from gristmill.intake.options import EncodeOptions
from gristmill.intake.source import identify
from gristmill.queue.leasequeue import LeaseQueue

ARGV = [sys.executable, "-m", "gristmill.intake.feed_main"]


class Feeding:
    """Started feeders; what still runs at the end of the test is killed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, job: str, **spec: Any) -> subprocess.Popen[bytes]:
        made = FeedSpec(redis_url=self.url, job=job, token=secrets.token_hex(4), holder="test", **spec)
        process = subprocess.Popen(ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.running.append(process)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(made) + b"\n")
        process.stdin.flush()
        return process

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()


@pytest.fixture
def feeding(shared_store: StoreProcess) -> Iterator[Feeding]:
    feeders = Feeding(shared_store.url)
    yield feeders
    feeders.close()


async def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Exit code, stdout and stderr, stdin being left open."""
    code = await asyncio.to_thread(process.wait, 30)
    assert process.stdout is not None
    assert process.stderr is not None
    return code, process.stdout.read(), process.stderr.read()


async def new_job(redis: Redis, path: Path, **more: Any) -> LeaseQueue:
    job = f"j{secrets.token_hex(4)}"
    fields = {"job": job, "epoch": secrets.token_hex(4), "name": "n", "created_at_ms": 1, "source": identify(path)}
    return await LeaseQueue.create(redis, Manifest(**{**fields, **more}))


def write(path: Path, count: int, size: int = 20) -> Path:
    path.write_text("".join(json.dumps({"prompt": f"{i} ".ljust(size, "x")}) + "\n" for i in range(count)))
    return path


async def test_feeds_and_says_what_it_did(redis: Redis, feeding: Feeding, tmp_path: Path) -> None:
    """Exit 0, the result on the last line of stdout, warnings on stderr, no prompt in either."""
    path = write(tmp_path / "in", 500)
    path.write_text(path.read_text() + '{"custom_id": "a", "SENTINEL": 1}\n')
    queue = await new_job(redis, path)
    code, out, err = await ended(feeding.start(queue.job, options=EncodeOptions(model="m")))
    assert code == 0
    result = msgspec.json.decode(out.splitlines()[-1], type=FeedResult)
    assert (result.sealed, result.closed, result.refused) == (501, True, 1)
    assert b"line 501" in err
    assert b"SENTINEL" not in out + err
    assert (await queue.snapshot()).n == 501


async def test_input_errors_are_exit_2(redis: Redis, feeding: Feeding, tmp_path: Path) -> None:
    """The sentence is on stderr, without a traceback."""
    path = write(tmp_path / "in", 5)
    queue = await new_job(redis, path)
    path.write_text("changed")
    code, out, err = await ended(feeding.start(queue.job))
    assert (code, out) == (2, b"")
    assert err.count(b"\n") == 1
    assert b"has changed since the job was made" in err


async def test_other_errors_are_exit_1(redis: Redis, feeding: Feeding, tmp_path: Path) -> None:
    """An unknown job is named."""
    code, _, err = await ended(feeding.start("nosuchjob"))
    assert code == 1
    assert b"nosuchjob" in err
    assert b"Traceback" not in err


def test_nothing_to_feed_is_no_error() -> None:
    """A feeder that was started early and is not needed ends in silence."""
    idle = subprocess.run(ARGV, input=b"", capture_output=True, timeout=30)
    assert (idle.returncode, idle.stdout, idle.stderr) == (0, b"", b"")


def test_broken_spec_is_exit_1() -> None:
    """A spec that is none says so, without a traceback."""
    broken = subprocess.run(ARGV, input=b'{"job": 1}\n', capture_output=True, timeout=30)
    assert broken.returncode == 1
    assert b"spec" in broken.stderr
    assert b"Traceback" not in broken.stderr


async def waiting_feeder(redis: Redis, feeding: Feeding, path: Path) -> tuple[LeaseQueue, subprocess.Popen[bytes]]:
    """A feeder that is held up by a full hopper."""
    queue = await new_job(redis, write(path, 2000, size=1000), payload_mark_bytes=100_000)
    process = feeding.start(queue.job)

    async def held_up() -> bool:
        snapshot = await queue.snapshot()
        if snapshot.feeder is None:
            return False
        return snapshot.sealed_runs == 1 and await redis.exists(queue.keys.stage(snapshot.feeder.token)) == 1

    await wait_until(held_up, description="the hopper is full")
    return queue, process


@pytest.mark.parametrize("how", ["SIGTERM", "stdin"])
async def test_stops_cleanly_and_gives_the_lease_back(redis: Redis, feeding: Feeding, tmp_path: Path, how: str) -> None:
    """SIGTERM, or the end of stdin, ends it at once; another feeder may begin without waiting for the lease."""
    queue, process = await waiting_feeder(redis, feeding, tmp_path / "in")
    if how == "stdin":
        assert process.stdin is not None
        process.stdin.close()
    else:
        process.send_signal(signal.SIGTERM)
    code, out, err = await ended(process)
    assert (code, out, err) == (0, b"", b"")
    snapshot = await queue.snapshot()
    assert (snapshot.feeder, snapshot.feeder_lost) == (None, True)


async def test_ctrl_c_is_left_to_the_parent(redis: Redis, feeding: Feeding, tmp_path: Path) -> None:
    """SIGINT from the shared terminal, and a hang-up while the parent lives, do not end the feeder."""
    queue, process = await waiting_feeder(redis, feeding, tmp_path / "in")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    code, _, err = await ended(process)
    assert (code, err) == (0, b"")
    assert (await queue.snapshot()).feeder is None


def started_parent(reader: int) -> subprocess.Popen[bytes]:
    """A process that starts a feeder whose stdin is `reader`, prints its pid and sleeps."""
    program = f"import subprocess as s, time; print(s.Popen({ARGV!r}, stdin={reader}).pid, flush=True); time.sleep(60)"
    return subprocess.Popen([sys.executable, "-c", program], pass_fds=[reader], stdout=subprocess.PIPE)


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
async def test_dies_with_a_parent_that_is_killed(
    redis: Redis, shared_store: StoreProcess, feeding: Feeding, tmp_path: Path
) -> None:
    """Even when someone else still holds its stdin open, a killed parent ends it, and the lease is given back."""
    queue = await new_job(redis, write(tmp_path / "in", 2000, size=1000), payload_mark_bytes=100_000)
    spec = FeedSpec(redis_url=shared_store.url, job=queue.job, token="t", holder="test")
    reader, writer = os.pipe()
    parent = started_parent(reader)
    os.close(reader)
    try:
        assert parent.stdout is not None
        os.write(writer, msgspec.json.encode(spec) + b"\n")
        child = int(await asyncio.to_thread(parent.stdout.readline))

        async def feeds() -> bool:
            snapshot = await queue.snapshot()
            return snapshot.feeder is not None and snapshot.sealed_runs == 1

        await wait_until(feeds, description="the feeder feeds")
        parent.kill()
        await asyncio.to_thread(parent.wait, 10)

        async def released() -> bool:
            return (await queue.snapshot()).feeder is None

        await wait_until(released, description="the lease is given back", timeout_s=10)
        await wait_until(lambda: not Path(f"/proc/{child}/exe").exists(), description="the feeder is gone")
    finally:
        os.close(writer)
        parent.kill()
        parent.communicate()


async def test_store_that_is_not_there_yet_is_waited_for(own_store: StoreProcess, tmp_path: Path) -> None:
    """A feeder that starts while the store is down says so, and feeds once it is back."""
    redis = Redis.from_url(own_store.url)
    queue = await new_job(redis, write(tmp_path / "in", 30))
    await redis.aclose()
    own_store.kill()
    feeders = Feeding(own_store.url)
    process = feeders.start(queue.job)
    assert process.stderr is not None
    assert b"does not answer" in await asyncio.to_thread(process.stderr.readline)
    await asyncio.to_thread(own_store.start)
    code, out, _ = await ended(process)
    assert (code, msgspec.json.decode(out, type=FeedResult).sealed) == (0, 30)
    feeders.close()


async def test_wrong_password_is_named_not_waited_for(redis: Redis, feeding: Feeding, tmp_path: Path) -> None:
    """A store that refuses us is a sentence and exit 1, and the password is not in it."""
    queue = await new_job(redis, write(tmp_path / "in", 3))
    feeding.url = feeding.url.replace("unix://", "unix://nobody:SENTINEL@")
    code, _, err = await ended(feeding.start(queue.job))
    assert code == 1
    assert b"check user and password" in err
    assert b"SENTINEL" not in err
    assert b"Traceback" not in err
