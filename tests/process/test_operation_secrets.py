"""A key, a prompt and a picture's bytes are planted, and looked for in all that is left or said when everything fails.

Where they belong: the key in the environment alone; prompts and pictures in INPUT, in the store's keys for payloads and
stages, and in answers that repeat them (results, OUT). Nowhere else: no log, message, metric, process list, other key.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis
from tests.process.daemons import Daemon
from tests.support import secrets
from tests.support.cli import Background, command, environment, producer
from tests.support.desk import Desk, desk, half_done, shared_standin, standin
from tests.support.pictures import quarters, saved
from tests.support.secrets import KEY, PICTURE, PROMPT
from tests.support.standin import StandinProcess
from tests.support.store import StoreProcess
from tests.support.wait import wait_until_sync

__all__ = ["desk", "shared_standin", "standin"]

REQUESTS = 160
REFUSAL = [{"kind": "status", "status": 401, "body": json.dumps({"error": {"message": f"no such key: {KEY}"}})}]
FAULTS = [
    {"kind": "status", "status": 400, "text": f"{PROMPT}-1 ", "echo": True},
    {"kind": "error_200", "text": f"{PROMPT}-2 ", "echo": True, "times": 2},
    {"kind": "status", "status": 500, "text": f"{PROMPT}-3 ", "echo": True, "times": 3},
    {"kind": "status", "status": 429, "retry_after": 0.1, "text": f"{PROMPT}-4 ", "echo": True, "times": 1},
    {"kind": "truncated", "text": f"{PROMPT}-5 ", "times": 1},
    {"kind": "reset", "text": f"{PROMPT}-6 ", "times": 1},
    {"kind": "html", "text": f"{PROMPT}-7 ", "times": 1},
    {"kind": "finish", "reason": "content_filter", "text": f"{PROMPT}-8 "},
]
CLASSES = {"bad_request", "content_filter", "bad_image", "bad_input"}
HOLDS_REQUESTS = {"p", "s", "r"}
SETTINGS = """
[endpoints.local]
url = "{url}"
key_env = "LOCAL_KEY"
"""


def write_input(path: Path) -> Path:
    """Prompts, pictures that are sent as they are, one that can't be decoded, and a line that is no JSON."""
    picture = saved(quarters(), "JPEG", comment=PICTURE.encode())
    (path.parent / "good.jpg").write_bytes(picture)
    (path.parent / "torn.jpg").write_bytes(picture[: len(picture) // 2])
    lines = [json.dumps(request(i)) for i in range(REQUESTS)]
    path.write_text("\n".join([*lines, f'{{"messages": "{PROMPT}']) + "\n")
    return path


def request(i: int) -> dict[str, object]:
    content: object = f"{PROMPT}-{i} tell me"
    if i % 10 == 0:
        url = "torn.jpg" if i == 20 else "good.jpg"
        content = [{"type": "text", "text": content}, {"type": "image_url", "image_url": {"url": url}}]
    return {"custom_id": f"c{i}", "messages": [{"role": "user", "content": content}]}


class Place:
    """A daemon with a configured key on a store of its own, and whoever looks at it."""

    def __init__(self, folder: Path, store: StoreProcess, endpoint: str) -> None:
        self.folder = folder
        self.redis = store.url
        self.store_log = store.dir / "log"
        self.settings = folder / "gristmill.toml"
        self.settings.write_text(SETTINGS.format(url=endpoint))
        self.log_folder = folder / "daemon"
        self.log_folder.mkdir()
        options = ["--config", self.settings, "--workers", 2, "--concurrency", 8, "--allow-root", folder]
        options += ["--state-dir", folder / "state", "--metrics-port", 0]
        self.daemon = Daemon(self.log_folder, *map(str, options), redis=self.redis, LOCAL_KEY=KEY)

    def ask(self, *words: object) -> subprocess.CompletedProcess[str]:
        return producer(*words, "--redis", self.redis)

    def metrics(self) -> str:
        self.daemon.says("metrics are served on ")
        found = re.search(r"metrics are served on (\S+) port (\d+)", self.daemon.log)
        assert found is not None
        with urllib.request.urlopen(f"http://{found[1]}:{found[2]}/metrics", timeout=20) as reply:
            return reply.read().decode()

    def doctor(self) -> str:
        argv = [sys.executable, "-m", "gristmilld", "doctor", "--config", str(self.settings), "--redis", self.redis]
        done = subprocess.run(argv, capture_output=True, text=True, env=environment(LOCAL_KEY=KEY), check=False)
        return done.stdout + done.stderr

    def looks(self, job: str) -> dict[str, str]:
        """What a person sees of it, by where."""
        verbs = [("status", job, "--full"), ("status", job, "--full", "--json"), ("ls",), ("top", "--once")]
        seen = {" ".join(verb): self.ask(*verb) for verb in (*verbs, ("stragglers", job))}
        told = {name: done.stdout + done.stderr for name, done in seen.items()}
        return told | {"doctor": self.doctor(), "metrics": self.metrics(), "log": self.daemon.log}

    def tells_nothing(self, job: str) -> None:
        for name, text in self.looks(job).items():
            assert text, name
            assert not secrets.told_by(text), name
        assert not secrets.told_by_processes()
        stored = secrets.told_by_store(self.redis)
        assert stored.pop(PROMPT) <= HOLDS_REQUESTS
        assert stored.pop(PICTURE, set()) <= {"p", "s"}
        assert stored == {}

    def state(self, job: str) -> Callable[[str], bool]:
        return lambda wanted: json.loads(self.ask("status", job, "--json").stdout)["state"] == wanted


@pytest.fixture
def place(tmp_path: Path, own_store: StoreProcess, standin: StandinProcess) -> Iterator[Place]:
    one = Place(tmp_path, own_store, standin.url)
    yield one
    one.daemon.close()


def test_a_daemon_and_its_jobs_tell_no_secret(place: Place, standin: StandinProcess):
    """A server that repeats the refused key, failures of many classes, a worker's death, feeding and collecting by the
    daemon: commands, metrics, the log at level debug, process lists and the store's other keys are clean throughout.
    """
    standin.control(latency="0.1", faults=REFUSAL)
    submitted = place.ask("submit", write_input(place.folder / "in.jsonl"), "-m", "m", "--inline")
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    there = place.state(job)
    wait_until_sync(lambda: there("paused"), description="the job is paused for its key")
    place.tells_nothing(job)
    standin.control(latency="0.1", faults=FAULTS)
    place.ask("resume", job)
    out = place.folder / "out2.jsonl"
    again = write_input(place.folder / "in2.jsonl")
    other = place.ask("submit", again, "-m", "m", "--detach", "--output", out)
    assert other.returncode == 0, other.stderr
    wait_until_sync(lambda: standin.stats["in_flight"] > 0, description="calls are under way")
    os.kill(place.daemon.pid_of("worker-0"), signal.SIGKILL)
    place.tells_nothing(job)
    wait_until_sync(lambda: there("complete"), description="the job is complete", timeout_s=40)
    there = place.state(other.stdout.strip())
    wait_until_sync(lambda: there("complete"), description="so is the other job", timeout_s=40)
    collected = Path(f"{out}.failed.jsonl").exists
    wait_until_sync(collected, description="the daemon has collected it", timeout_s=40)
    place.tells_nothing(job)
    done = place.ask("results", job, "-o", place.folder / "out.jsonl")
    assert done.returncode == 1
    assert set(json.loads(place.ask("status", job, "--json").stdout)["by_class"]) == CLASSES
    assert place.daemon.stop() == 0
    assert place.daemon.pid_of("worker-0", 1), "it was started again"
    said = [text for each in (submitted, other, done) for text in (each.stdout, each.stderr)]
    for text in (*said, place.daemon.log, place.store_log.read_text()):
        assert not secrets.told_by(text)
    left = secrets.files_that_tell([place.folder])
    assert left[PROMPT] == {f"{name}.jsonl{more}" for name in ("out", "out2") for more in ("", ".failed.jsonl")} | {
        "in.jsonl",
        "in2.jsonl",
    }
    assert left[PICTURE] == {"good.jpg", "torn.jpg"}
    assert KEY not in left


def test_a_run_that_dies_and_goes_on_tells_no_secret(desk: Desk, standin: StandinProcess):
    """kill -9 of the whole of it in the middle, then the same command: its streams, its log, its private store, the
    commands that look at it and process lists are clean all the time."""
    write_input(desk.input)
    standin.control(latency="0.2", faults=FAULTS)
    argv = desk.argv("-m", "m", "--concurrency", 8, "--inline")
    with Background(command(*argv), environment(OPENAI_API_KEY=KEY)) as first:
        wait_until_sync(half_done(desk), description="some results are durable")
        store = f"unix://{(desk.state / 'store' / 'socket').read_text()}"
        stored = secrets.told_by_store(store)
        assert stored.pop(PROMPT) <= HOLDS_REQUESTS
        assert stored.pop(PICTURE, {"p"}) <= {"p", "s"}
        assert stored == {}
        for verb in (["ls"], ["top", "--once"]):
            looked = producer(*verb, "--state-dir", desk.state)
            assert "in.jsonl" in looked.stdout
            assert not secrets.told_by(looked.stdout + looked.stderr)
        assert not secrets.told_by_processes()
        log = (Path(f"{desk.out}.gm") / "daemon.log").read_text()
    done = producer(*argv, OPENAI_API_KEY=KEY)
    assert done.returncode == 1, done.stderr
    for text in (log, first.stdout, first.stderr, done.stdout, done.stderr):
        assert not secrets.told_by(text)
    left = secrets.files_that_tell([desk.folder])
    assert left[PROMPT] == {"in.jsonl", "out.jsonl", "out.jsonl.failed.jsonl"}
    assert left[PICTURE] == {"good.jpg", "torn.jpg"}
    assert KEY not in left


def test_a_leak_would_be_found(own_store: StoreProcess, tmp_path: Path):
    """In any kind of key, as base64 at any place, in arguments, in a file."""
    with Redis.from_url(own_store.url) as redis:
        redis.set("rq:job:1", f"x{KEY}")
        redis.hset("gm:{j}:m", "detail", f"no answer to {PROMPT}")
        redis.xadd("gm:{j}:ev", {b"e": b"x" + secrets.traces(PICTURE)[2] + b"y"})
        redis.zadd(f"gm:{{{PROMPT}}}:q", {"a": 1})
        redis.sadd("gm:{j}:u", PICTURE)
        redis.rpush("rq:queue:x", PICTURE)
    assert secrets.told_by_store(own_store.url) == {
        KEY: {"rq:job:1"},
        PROMPT: {"m", "q"},
        PICTURE: {"ev", "u", "rq:queue:x"},
    }
    with subprocess.Popen([sys.executable, "-c", "input()", KEY], stdin=subprocess.PIPE) as process:
        assert secrets.told_by_processes() == {KEY}
        process.communicate(b"\n")
    (tmp_path / "a.log").write_text(PROMPT)
    assert secrets.files_that_tell([tmp_path]) == {PROMPT: {"a.log"}}
