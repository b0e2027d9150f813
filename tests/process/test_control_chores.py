"""The control plane: daemons feed, export and notify for jobs that wish it, whatever is killed on the way."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as SyncRedis
from tests.process.daemons import Daemon
from tests.support.cli import producer, write_requests
from tests.support.standin import StandinProcess
from tests.support.store import StoreProcess
from tests.support.wait import wait_until_sync

SECRET = "a secret of the test"


class Hook:
    """A webhook on the loopback that keeps what it is told.

    Attributes:
        calls: headers and body of each call.
        statuses: what the next calls are answered; then 204.
        stall: a call waits for it before it is answered.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.stall = threading.Event()
        self.stall.set()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                hook.calls.append(({k.lower(): v for k, v in self.headers.items()}, body))
                hook.stall.wait(30)
                try:
                    self.send_response(hook.statuses.pop(0) if hook.statuses else 204)
                    self.end_headers()
                except OSError:
                    return  # the caller was killed

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/ended?token=hidden"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.stall.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.close()


@pytest.fixture(scope="module")
def standin() -> Iterator[StandinProcess]:
    with StandinProcess() as process:
        yield process


@pytest.fixture
def url(shared_store: StoreProcess, standin: StandinProcess) -> str:
    standin.control(latency="0", faults=[])
    standin.reset_stats()
    with SyncRedis.from_url(shared_store.url) as client:
        client.flushall()
    return shared_store.url


Start = Callable[..., Daemon]


@pytest.fixture
def start(tmp_path: Path, url: str, standin: StandinProcess) -> Iterator[Start]:
    """Starts a daemon with a control plane that may use the test's folder and call private webhooks."""
    running: list[Daemon] = []

    def begin(*options: str, root: bool = True, private: bool = True) -> Daemon:
        folder = tmp_path / f"daemon-{len(running)}"
        folder.mkdir()
        config = folder / "gristmill.toml"
        config.write_text(f'[webhooks]\nsecret_env = "HOOK_SECRET"\nprivate = {str(private).lower()}\n')
        roots = ["--allow-root", str(tmp_path)] if root else []
        words = ["--config", str(config), "--workers", "1", "--no-metrics", "-e", standin.url, *roots, *options]
        daemon = Daemon(folder, *words, redis=url, HOOK_SECRET=SECRET)
        running.append(daemon)
        daemon.says("connected to the store")
        return daemon

    yield begin
    for daemon in running:
        daemon.stop()


def submit(path: Path, url: str, *options: object) -> str:
    done = producer("submit", path, "-m", "standin", *options, "--redis", url)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def status(job: str, url: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(producer("status", job, "--json", "--redis", url).stdout)
    return told


def wait_for(job: str, url: str, state: str = "complete") -> None:
    with SyncRedis.from_url(url) as client:
        meta = f"gm:{{{job}}}:m"
        wait_until_sync(
            lambda: client.hget(meta, "state") == state.encode(), description=f"job {job} is {state}", timeout_s=60
        )


def horse_of(worker_pid: int) -> int:
    """The process that an RQ worker has forked for its job, once it has."""
    path = Path(f"/proc/{worker_pid}/task/{worker_pid}/children")
    wait_until_sync(lambda: bool(path.read_text().split()), description="the RQ worker has a horse", timeout_s=30)
    return int(path.read_text().split()[0])


def check_whole(out: Path, n: int) -> None:
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["gristmill"]["index"] for line in lines] == list(range(n))
    assert [line["custom_id"] for line in lines] == [f"c{i}" for i in range(n)]
    assert {line["gristmill"]["status"] for line in lines} == {"ok"}


def test_a_detached_job_is_fed_exported_and_told_of(tmp_path: Path, url: str, start: Start, hook: Hook):
    """`submit --detach --output --notify` returns at once; a daemon does the rest, and signs what it tells."""
    start()
    out = tmp_path / "out.jsonl"
    wishes = ("--detach", "--output", out, "--notify", hook.url)
    job = submit(write_requests(tmp_path / "in.jsonl", 500), url, *wishes)
    wait_until_sync(lambda: bool(hook.calls), description="the webhook is called", timeout_s=60)
    check_whole(out, 500)
    assert not Path(f"{out}.gm").exists()
    headers, body = hook.calls[0]
    told = json.loads(body)
    assert {k: told[k] for k in ("type", "job", "state", "total", "ok", "failed", "output")} == {
        "type": "job.ended", "job": job, "state": "complete", "total": 500, "ok": 500, "failed": 0, "output": str(out),
    }  # fmt: skip
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    with SyncRedis.from_url(url) as client:
        wait_until_sync(lambda: client.scard("gm:due") == 0, description="nothing is due any more")
        assert client.hget(f"gm:{{{job}}}:c", "notify:done") == b"1"
    assert len(hook.calls) == 1


def kill_horse_and_worker(daemon: Daemon, slot: str, again: Callable[[], None]) -> None:
    """SIGKILL to the process that does the job, then, once `again` has seen it go on, to the RQ worker itself."""
    worker = daemon.pid_of(slot)
    first = horse_of(worker)
    os.kill(first, signal.SIGKILL)
    again()
    second = horse_of(worker)
    assert second != first
    os.kill(worker, signal.SIGKILL)
    wait_until_sync(lambda: not Path(f"/proc/{second}").exists(), description="the horse dies with its worker")
    daemon.pid_of(slot, generation=1)
    again()


def test_feeding_goes_on_after_kills(tmp_path: Path, url: str, start: Start, standin: StandinProcess):
    """A feeder that is killed in the middle, alone and with its RQ worker, is followed by one that goes on."""
    standin.control(faults=[{"kind": "stall", "seconds": 2}])
    daemon = start()
    source = write_requests(tmp_path / "in.jsonl", 3000, words=60)
    job = submit(source, url, "--detach", "--payload-mark", "300KB", "--first-alone", "0")
    holders: set[bytes] = set()
    with SyncRedis.from_url(url) as client:
        meta = f"gm:{{{job}}}:m"

        def fed_by_another() -> None:
            """Somebody new has the lease, and waits for room in the middle of the input."""

            def seen() -> bool:
                token, who, runs = client.hmget(meta, "feeder_token", "feeder_holder", "sealed_runs")
                return token is not None and who not in holders and int(runs or 0) > 0

            wait_until_sync(seen, description="another feeder is at it", timeout_s=40)
            holders.add(client.hget(meta, "feeder_holder"))

        fed_by_another()
        assert client.hget(meta, "closed") != b"1"
        kill_horse_and_worker(daemon, "rq-feed", fed_by_another)
        assert client.hget(meta, "closed") != b"1"
    standin.control(faults=[])
    wait_for(job, url)
    out = tmp_path / "out.jsonl"
    assert producer("results", job, "-o", out, "--redis", url).returncode == 0
    check_whole(out, 3000)
    stats = standin.stats
    assert (stats["requests"], stats["distinct"]) == (3000, 3000)


def test_exporting_goes_on_after_kills(tmp_path: Path, url: str, start: Start, standin: StandinProcess):
    """An export that is killed in the middle, alone and with its RQ worker, ends in a file with each line once."""
    standin.control(faults=[{"kind": "stall", "seconds": 0.5}])
    daemon = start("--concurrency", "100")
    out = tmp_path / "out.jsonl"
    job = submit(write_requests(tmp_path / "in.jsonl", 3000), url, "--output", out, "--first-alone", "0")
    seen = [0]

    def more_lines() -> None:
        """OUT has grown since the last look, and is not whole."""
        wait_until_sync(
            lambda: out.exists() and out.stat().st_size > seen[0], description="OUT grows", timeout_s=40
        )  # fmt: skip
        seen[0] = out.stat().st_size

    more_lines()
    kill_horse_and_worker(daemon, "rq-export", more_lines)
    assert Path(f"{out}.gm").exists()
    standin.control(faults=[])
    with SyncRedis.from_url(url) as client:
        control = f"gm:{{{job}}}:c"
        wait_until_sync(lambda: client.hget(control, "export:done") == b"1", description="it is exported", timeout_s=60)
    check_whole(out, 3000)
    assert not Path(f"{out}.gm").exists()


def test_a_webhook_is_told_at_least_once_with_one_key(tmp_path: Path, url: str, start: Start, hook: Hook):
    """Killed in mid call, alone and with its RQ worker, and refused once: it is called again, by the same key."""
    hook.stall.clear()
    daemon = start()
    job = submit(write_requests(tmp_path / "in.jsonl", 3), url, "--notify", hook.url)
    told = [0]

    def called_again() -> None:
        wait_until_sync(lambda: len(hook.calls) > told[0], description="the webhook is called again", timeout_s=40)
        told[0] = len(hook.calls)

    called_again()
    kill_horse_and_worker(daemon, "rq-notify", called_again)
    hook.statuses = [503] * len(hook.calls)
    hook.stall.set()
    with SyncRedis.from_url(url) as client:
        control = f"gm:{{{job}}}:c"
        wait_until_sync(lambda: client.hget(control, "notify:done") == b"1", description="it is told", timeout_s=60)
        assert not client.hexists(control, "notify:error")
    assert len(hook.calls) >= 4
    assert len({headers["webhook-id"] for headers, _ in hook.calls}) == 1
    assert {json.loads(body)["job"] for _, body in hook.calls} == {job}
    assert "hidden" not in daemon.log


def test_a_lost_queue_is_made_good(tmp_path: Path, url: str, start: Start, standin: StandinProcess):
    """RQ's keys may vanish with all that was enqueued: our own state brings it up again."""
    daemon = start("--no-control")
    out = tmp_path / "out.jsonl"
    job = submit(write_requests(tmp_path / "in.jsonl", 50), url, "--detach", "--output", out)
    with SyncRedis.from_url(url) as client:
        # as if both had been enqueued as attempt 1, and RQ had lost them; and nobody had announced the job
        client.hset(f"gm:{{{job}}}:c", mapping={"feed:attempt": 1, "export:attempt": 1})
        client.delete("gm:due")
        start()
        control = f"gm:{{{job}}}:c"
        wait_until_sync(lambda: client.hget(control, "export:done") == b"1", description="it is exported", timeout_s=60)
        assert int(client.hget(control, "feed:attempt")) >= 2
    check_whole(out, 50)
    assert "rq-feed started" not in daemon.log


def test_what_a_daemon_may_not_touch_waits_for_one_that_may(tmp_path: Path, url: str, start: Start):
    """Without a root above its input nothing is read; a link that leads out of a root is no way in."""
    start(root=False)
    inside = tmp_path / "inside"
    inside.mkdir()
    source = write_requests(tmp_path / "secret.jsonl", 5)
    (inside / "in.jsonl").symlink_to(source)
    daemon = start("--allow-root", str(inside), root=False)
    job = submit(inside / "in.jsonl", url, "--detach")
    sealed = submit(write_requests(inside / "open.jsonl", 5), url, "--detach")
    wait_for(sealed, url)
    assert status(job, url)["total"] == 0
    assert "feed of job" not in daemon.log
    said = producer("status", job, "--redis", url).stdout
    assert "--allow-root" in said


def test_an_input_that_changed_pauses_the_job(tmp_path: Path, url: str, start: Start):
    """A detached input is checked as any other; the job says what is wrong, and goes on once it is put back."""
    source = write_requests(tmp_path / "in.jsonl", 20)
    kept, stat = source.read_bytes(), source.stat()
    job = submit(source, url, "--detach")
    source.write_bytes(kept + b'{"prompt": "more"}\n')
    start()
    wait_for(job, url, "paused")
    assert "has changed" in producer("status", job, "--redis", url).stdout
    source.write_bytes(kept)
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert producer("resume", job, "--redis", url).returncode == 0
    wait_for(job, url)


def test_a_private_webhook_is_refused(tmp_path: Path, url: str, start: Start, hook: Hook):
    """Unless the daemon's settings allow it, a job can't have the daemon call an address of its own network."""
    daemon = start(private=False)
    job = submit(write_requests(tmp_path / "in.jsonl", 2), url, "--notify", hook.url)
    daemon.says("has a private address")
    assert hook.calls == []
    assert "has a private address" in producer("status", job, "--redis", url).stdout
    assert "hidden" not in daemon.log


def test_rqs_keys_may_lie_in_another_store(tmp_path: Path, url: str, start: Start, own_store: StoreProcess, hook: Hook):
    """`--control-redis` keeps RQ out of the store of the jobs; `rq info` shows the daemon's workers there."""
    daemon = start("--control-redis", own_store.url)
    wishes = ("--detach", "--output", tmp_path / "out.jsonl", "--notify", hook.url)
    job = submit(write_requests(tmp_path / "in.jsonl", 20), url, *wishes)
    with SyncRedis.from_url(url) as client:
        control = f"gm:{{{job}}}:c"
        wait_until_sync(lambda: client.hget(control, "notify:done") == b"1", description="it is told", timeout_s=60)
        assert client.keys("rq:*") == []
    rq = [Path(sys.executable).parent / "rq", "info", "--raw", "--url", own_store.url]

    def shown() -> bool:
        said = subprocess.run(rq, capture_output=True, text=True, timeout=60).stdout
        wishes = ("feed", "export", "notify")
        return said.count("worker ") == 3 and all(f" idle gristmill-{wish}." in said for wish in wishes)

    wait_until_sync(shown, description="rq info shows the daemon's three workers")
    assert daemon.stop() == 0
    with SyncRedis.from_url(own_store.url) as client:
        assert client.smembers("rq:workers") == set()


def test_a_stop_puts_a_feed_down_at_once(tmp_path: Path, url: str, start: Start, standin: StandinProcess):
    """SIGTERM to the daemon ends a feed in the middle, its lease is given back, and another daemon goes on."""
    standin.control(faults=[{"kind": "stall", "seconds": 1}])
    daemon = start()
    source = write_requests(tmp_path / "in.jsonl", 2000, words=60)
    job = submit(source, url, "--detach", "--payload-mark", "200KB", "--first-alone", "0")
    with SyncRedis.from_url(url) as client:
        meta = f"gm:{{{job}}}:m"
        wait_until_sync(lambda: int(client.hget(meta, "sealed_runs") or 0) > 1, description="it is being fed")
        assert daemon.stop() == 0
        assert client.hget(meta, "closed") != b"1"
        assert client.hget(meta, "feeder_token") is None
    standin.control(faults=[])
    start()
    wait_for(job, url)
    assert status(job, url)["ok"] == 2000
