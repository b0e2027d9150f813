"""`producer run` end to end: real command, real daemon, real store, real HTTP; then everything that gets in the way.

Each obstacle gives one clear sentence and its exit code, and loses nothing: the same command, once the obstacle is
gone, completes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from tests.support.cli import Background, command, environment, producer, write_requests
from tests.support.standin import StandinProcess
from tests.support.store import StoreProcess
from tests.support.wait import wait_until_sync

from gristmill.embedded import server_lives


@pytest.fixture(scope="module")
def shared_standin() -> Iterator[StandinProcess]:
    with StandinProcess() as process:
        yield process


@pytest.fixture
def standin(shared_standin: StandinProcess) -> StandinProcess:
    """A stand-in that answers at once, its counts at zero."""
    shared_standin.control(latency="0", concurrency=0, faults=[])
    shared_standin.reset_stats()
    return shared_standin


class Desk:
    """One user's folder: INPUT, OUT and a state folder of their own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.input = folder / "in.jsonl"
        self.out = folder / "out.jsonl"
        self.state = folder / "state"

    def argv(self, *more: object) -> list[object]:
        return ["run", self.input, "-o", self.out, "-e", self.url, "--state-dir", self.state, "--workers", 1, *more]

    def run(self, *more: object, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        return producer(*self.argv(*more), **kwargs)

    def start(self, *more: object) -> Background:
        return Background(command(*self.argv(*more)), environment())

    def server_pid(self) -> int:
        """The process of the private store."""
        socket_path = (self.state / "store" / "socket").read_text()
        with Redis.from_url(f"unix://{socket_path}") as client:
            return int(client.info("server")["process_id"])

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def assert_complete(self, n: int) -> None:
        """OUT has each line of INPUT once, ok, in order; the work folder and the store's data are gone."""
        assert [line["gristmill"]["index"] for line in self.lines] == list(range(n))
        assert [line["custom_id"] for line in self.lines] == [f"c{i}" for i in range(n)]
        assert {line["gristmill"]["status"] for line in self.lines} == {"ok"}
        assert all(line["response"]["body"]["choices"] and line["error"] is None for line in self.lines)
        assert not Path(f"{self.out}.gm").exists()


@pytest.fixture
def desk(tmp_path: Path, standin: StandinProcess) -> Iterator[Desk]:
    """A desk whose private store is gone when the test ends."""
    made = Desk(tmp_path, standin.url)
    yield made
    store = made.state / "store"
    if store.is_dir():
        wait_until_sync(lambda: not server_lives(store), description="the private store has ended")


def half_done(desk: Desk) -> Callable[[], bool]:
    """Whether some, but not all, lines have come back."""
    return lambda: desk.out.exists() and desk.out.stat().st_size > 0


# --- what works


def test_run_answers_every_line_in_order(desk: Desk, standin: StandinProcess):
    """One result per line in input order, each request sent once, and nothing left behind but OUT."""
    write_requests(desk.input, 300)
    done = desk.run("--json")
    assert done.returncode == 0, done.stderr
    desk.assert_complete(300)
    told = json.loads(done.stdout)
    assert {k: told[k] for k in ("state", "total", "ok", "failed", "waiting", "in_flight", "not_run")} == {
        "state": "complete", "total": 300, "ok": 300, "failed": 0, "waiting": 0, "in_flight": 0, "not_run": 0,
    }  # fmt: skip
    assert told["attempts"] == 300
    assert told["tokens"]["completion"] > 0
    stats = standin.stats
    assert (stats["requests"], stats["distinct"]) == (300, 300)
    assert "\x1b" not in done.stderr
    assert not (desk.state / "store" / "appendonlydir").exists()


def test_each_answer_is_that_of_its_own_prompt(desk: Desk):
    """The stand-in's hash of the text shows that the right answer stands at the right line."""
    import hashlib

    write_requests(desk.input, 50)
    assert desk.run().returncode == 0
    prompts = [json.loads(line)["messages"][0]["content"] for line in desk.input.read_text().splitlines()]
    for prompt, line in zip(prompts, desk.lines, strict=True):
        seen = json.loads(line["response"]["body"]["choices"][0]["message"]["content"])
        assert seen["text_sha256"] == hashlib.sha256(prompt.encode()).hexdigest()


@pytest.mark.parametrize("inline", [[], ["--inline"]])
def test_pictures_reach_their_own_line(desk: Desk, inline: list[str]):
    """Pictures given by relative path arrive whole, by reference or through the store."""
    from PIL import Image

    for i in range(4):
        Image.new("RGB", (40 + i, 30), (60 * i, 0, 0)).save(desk.folder / f"p{i}.png")
    desk.input.write_text("".join(f'{{"prompt": "what?", "image": "p{i}.png"}}\n' for i in range(4)))
    done = desk.run(*inline)
    assert done.returncode == 0, done.stderr
    widths = [
        json.loads(line["response"]["body"]["choices"][0]["message"]["content"])["images"][0]["width"]
        for line in desk.lines
    ]
    assert widths == [40, 41, 42, 43]


def test_standard_input_to_standard_output(desk: Desk):
    """In a pipe: INPUT - and OUT -; data alone on stdout."""
    text = write_requests(desk.input, 20).read_text()
    done = producer("run", "-", "-o", "-", "-e", desk.url, "--state-dir", desk.state, "--workers", 1, stdin=text)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["custom_id"] for line in done.stdout.splitlines()] == [f"c{i}" for i in range(20)]


def test_same_command_again_sends_only_what_is_missing(desk: Desk, standin: StandinProcess):
    """A second run over the same OUT sends nothing; new and changed lines alone are sent, moved ones are found."""
    write_requests(desk.input, 30)
    assert desk.run().returncode == 0
    standin.reset_stats()
    assert desk.run().returncode == 0
    assert standin.stats["requests"] == 0
    lines = desk.input.read_text().splitlines()
    desk.input.write_text("\n".join([*reversed(lines), '{"custom_id": "new", "prompt": "hello"}']) + "\n")
    done = desk.run("--json")
    assert json.loads(done.stdout)["total"] == 31
    assert standin.stats["requests"] == 1
    assert [line["custom_id"] for line in desk.lines] == [*(f"c{i}" for i in reversed(range(30))), "new"]


def test_failed_lines_give_exit_1_and_their_class(desk: Desk):
    """A line that can't be sent is a failed result with its class; the others are answered."""
    write_requests(desk.input, 5)
    desk.input.write_text(desk.input.read_text() + "nonsense\n")
    done = desk.run("--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["by_class"] == {"bad_input": 1}
    assert "bad_input" in done.stderr
    assert desk.lines[5]["error"]["code"] == "bad_input"
    assert desk.lines[5]["response"] is None


# --- what stands in the way before the start


def test_no_endpoint(desk: Desk):
    """Exit 2, with both ways to name one; nothing is made."""
    write_requests(desk.input, 3)
    done = producer("run", desk.input, "-o", desk.out, "--state-dir", desk.state)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "-e URL" in done.stderr
    assert "OPENAI_BASE_URL" in done.stderr
    assert not desk.out.exists()
    assert not Path(f"{desk.out}.gm").exists()


def test_endpoint_of_the_environment(desk: Desk):
    """OPENAI_BASE_URL does what -e does, in any spelling."""
    write_requests(desk.input, 3)
    root = desk.url.removesuffix("/v1")
    done = producer("run", desk.input, "-o", desk.out, "--state-dir", desk.state, OPENAI_BASE_URL=root)
    assert done.returncode == 0, done.stderr


def test_refused_connection(desk: Desk):
    """Exit 3 well within 15 s, with the URL and what to do."""
    write_requests(desk.input, 3)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        desk.url = f"http://127.0.0.1:{s.getsockname()[1]}/v1"
    began = time.monotonic()
    done = desk.run("-m", "m")
    assert time.monotonic() - began < 10
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert f"{desk.url} refused the connection" in done.stderr


def test_wait_for_endpoint(desk: Desk):
    """With --wait-for-endpoint a server may come up later."""
    write_requests(desk.input, 3)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    desk.url = f"http://127.0.0.1:{port}/v1"
    with desk.start("--wait-for-endpoint", "60s") as running:
        running.wait_for_line("waiting: ")
        with StandinProcess("--port", str(port)):
            assert running.wait() == 0
    desk.assert_complete(3)


def test_wrong_key(desk: Desk):
    """Exit 3 with the variable's name and without its value; with the right key the same command completes."""
    write_requests(desk.input, 3)
    with StandinProcess("--key", "right-key") as locked:
        desk.url = locked.url
        done = desk.run("-m", "standin", OPENAI_API_KEY="wrong-key-271828")
        assert done.returncode == 3
        assert "OPENAI_API_KEY" in done.stderr
        assert "271828" not in done.stderr
        assert desk.run("-m", "standin", OPENAI_API_KEY="right-key").returncode == 0
    desk.assert_complete(3)


def test_wrong_base_url(desk: Desk):
    """Every request is 404: the job pauses before it burns a line, exit 3; the right URL completes it."""
    write_requests(desk.input, 300)
    right, desk.url = desk.url, desk.url.replace("/v1", "/nothing/v1")
    done = desk.run("-m", "standin")
    assert done.returncode == 3
    assert "paused, the setup is at fault" in done.stderr
    assert "base URL" in done.stderr
    assert desk.out.read_text() == ""
    desk.url = right
    assert desk.run("-m", "standin").returncode == 0
    desk.assert_complete(300)


def test_unreadable_input(desk: Desk):
    """Exit 2 and the reason, for a missing file and for a folder."""
    done = desk.run("-m", "m")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "No such file" in done.stderr
    desk.input.mkdir()
    done = desk.run("-m", "m")
    assert (done.returncode, "is a folder" in done.stderr) == (2, True)


def test_no_model_anywhere_lists_the_models(desk: Desk):
    """Without -m, a single served model is taken; when the endpoint lists none, exit 2 asks for -m."""
    write_requests(desk.input, 3)
    right, desk.url = desk.url, desk.url.replace("/v1", "/nothing/v1")
    done = desk.run()
    assert (done.returncode, "-m MODEL" in done.stderr) == (2, True)
    desk.url = right
    assert desk.run().returncode == 0
    assert desk.lines[0]["response"]["body"]["model"] == "standin"


def test_store_that_evicts(desk: Desk):
    """A store with an eviction policy is refused with the command that mends it."""
    write_requests(desk.input, 3)
    store = StoreProcess("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru").start()
    try:
        done = desk.run("-m", "m", "--redis", store.url)
    finally:
        store.close()
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "CONFIG SET maxmemory-policy noeviction" in done.stderr
    assert not Path(f"{desk.out}.gm").exists()


def test_out_of_somebody_else(desk: Desk):
    """A file that we did not write is left as it is, exit 2; --overwrite is the way to say so."""
    write_requests(desk.input, 3)
    desk.out.write_text("precious\n")
    done = desk.run()
    assert done.returncode == 2
    assert "--overwrite" in done.stderr
    assert desk.out.read_text() == "precious\n"
    assert not Path(f"{desk.out}.gm").exists()
    assert desk.run("--overwrite").returncode == 0
    desk.assert_complete(3)


# --- what happens on the way


def test_second_run_on_the_same_out(desk: Desk, standin: StandinProcess):
    """Exit 2 at once with job and pid of the first, which goes on undisturbed."""
    write_requests(desk.input, 300)
    standin.control(latency="0.2")
    with desk.start("--concurrency", 50) as running:
        wait_until_sync(half_done(desk), description="the first run has results")
        second = desk.run()
        assert second.returncode == 2
        assert f"pid {running.pid}" in second.stderr
        assert "producer watch " in second.stderr
        assert running.wait() == 0
    desk.assert_complete(300)


def test_kill_nine_of_everything(desk: Desk, standin: StandinProcess):
    """kill -9 of command, feeder, daemon, workers and store in mid-run: the same command completes, and sends at most
    what was in flight once more."""
    write_requests(desk.input, 400)
    standin.control(latency="0.2")
    with desk.start("--concurrency", 40) as running:
        wait_until_sync(half_done(desk), description="some results are durable")
        victims = [running.pid, *running.descendants(), desk.server_pid(), *running.matching(str(desk.state))]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):  # children die with their parents
                os.kill(pid, signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
    wait_until_sync(lambda: not any(map(running.alive, victims)), description="nothing of it lives")
    done = desk.run("--concurrency", 40)
    assert done.returncode == 0, done.stderr
    desk.assert_complete(400)
    stats = standin.stats
    assert stats["distinct"] == 400
    assert stats["requests"] <= 400 + 3 * 40


def test_kill_nine_of_the_command_alone(desk: Desk, standin: StandinProcess):
    """The children end by themselves; what they still brought back is taken from the store by the next run."""
    write_requests(desk.input, 400)
    standin.control(latency="0.2")
    with desk.start("--concurrency", 40) as running:
        wait_until_sync(half_done(desk), description="some results are durable")
        children = running.descendants()
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        wait_until_sync(lambda: not any(map(running.alive, children)), description="the children have ended")
    done = desk.run("--concurrency", 40)
    assert done.returncode == 0, done.stderr
    desk.assert_complete(400)
    assert standin.stats["requests"] == 400  # the daemon drained, so nothing was paid for twice


def test_kill_nine_of_the_feeder(desk: Desk, standin: StandinProcess):
    """The feeder is started anew where it was lost, and says so."""
    write_requests(desk.input, 400, words=400)
    standin.control(latency="0.05")
    with desk.start("--payload-mark", "200k", "--concurrency", 20) as running:
        wait_until_sync(half_done(desk), description="some results are durable")
        (feeder,) = running.matching("gristmill.intake.feed_main", among=running.descendants())
        os.kill(feeder, signal.SIGKILL)
        running.wait_for_line("feeder lost at line ")
        assert running.wait() == 0
    assert "resuming" in running.stderr
    desk.assert_complete(400)
    assert standin.stats["requests"] == 400


def test_kill_nine_of_the_private_store(desk: Desk, standin: StandinProcess):
    """The store is started again from its log, and the run goes on to the end."""
    write_requests(desk.input, 120)
    standin.control(latency="0.3")
    with desk.start("--concurrency", 20) as running:
        wait_until_sync(half_done(desk), description="some results are durable")
        os.kill(desk.server_pid(), signal.SIGKILL)
        assert running.wait() == 0, running.stderr
    desk.assert_complete(120)


def test_daemon_that_dies(desk: Desk, standin: StandinProcess):
    """Exit 1 with the end of its log; everything finished is kept, and the same command completes."""
    write_requests(desk.input, 300)
    standin.control(latency="0.2")
    with desk.start("--concurrency", 20) as running:
        wait_until_sync(half_done(desk), description="some results are durable")
        (daemon,) = [p for p in running.children() if p in running.matching("-m gristmilld up")]
        os.kill(daemon, signal.SIGKILL)
        assert running.wait() == 1
    assert "the daemon ended unexpectedly (signal 9)" in running.stderr
    assert "the same command goes on" in running.stderr
    assert desk.run().returncode == 0
    desk.assert_complete(300)


def test_first_ctrl_c_drains(desk: Desk, standin: StandinProcess):
    """Ctrl-C: what is in flight comes back, exit 130 with the command that goes on; nothing is sent twice."""
    write_requests(desk.input, 400)
    standin.control(latency="0.2")
    with desk.start("--concurrency", 40) as running:
        wait_until_sync(half_done(desk), description="some results are durable")
        os.kill(running.pid, signal.SIGINT)
        assert running.wait() == 130
    assert "the same command goes on from here:\n  producer run " in running.stderr
    kept = len(desk.lines)
    assert 0 < kept < 400
    assert standin.stats["requests"] == kept
    assert desk.run().returncode == 0
    desk.assert_complete(400)
    assert standin.stats["requests"] == 400


def test_second_ctrl_c_quits_at_once(desk: Desk, standin: StandinProcess):
    """With answers that take long, the second Ctrl-C does not wait for them, and leaves no process behind."""
    write_requests(desk.input, 40)
    standin.control(latency="30")
    with desk.start("-m", "m") as running:
        wait_until_sync(lambda: standin.stats["in_flight"] > 0, description="requests are on their way")
        os.kill(running.pid, signal.SIGINT)
        running.wait_for_line("draining")
        children = running.descendants()
        os.kill(running.pid, signal.SIGINT)
        assert running.wait(timeout_s=5) == 130
        wait_until_sync(lambda: not any(map(running.alive, children)), description="no child lives")


def test_full_disk(desk: Desk, standin: StandinProcess, own_store: StoreProcess):
    """OUT's disk is full (here: a limit on file size): paused, exit 3, one sentence; with room the same command
    completes, and what had been answered is not sent again."""
    write_requests(desk.input, 400)
    limit = 'ulimit -f 120; exec "$@"'  # blocks of 1 KiB in bash
    argv = ["/bin/bash", "-c", limit, "bash", *command(*desk.argv("--redis", own_store.url))]
    with Background(argv, environment()) as running:
        assert running.wait() == 3
    assert "paused, storage is at fault" in running.stderr
    assert str(desk.out) in running.stderr
    done = desk.run("--redis", own_store.url)
    assert done.returncode == 0, done.stderr
    desk.assert_complete(400)
    assert standin.stats["requests"] == 400


def test_cancel_from_another_terminal(desk: Desk, standin: StandinProcess, own_store: StoreProcess):
    """`producer cancel` ends a run with 4; finished lines are in OUT, the rest counts as not run."""
    write_requests(desk.input, 400)
    standin.control(latency="0.3")
    with desk.start("--redis", own_store.url, "--concurrency", 20, "--json") as running:
        wait_until_sync(half_done(desk), description="some results are durable")
        job = running.wait_for_line("job ").split()[1]
        assert producer("cancel", job, "--redis", own_store.url).returncode == 0
        assert running.wait() == 4
    told = json.loads(running.stdout)
    assert told["state"] == "cancelled"
    assert told["ok"] == len(desk.lines)
    assert told["ok"] + told["not_run"] == told["total"] == 400


def test_failure_budget(desk: Desk):
    """--max-failures pauses the run with the top error, exit 3."""
    desk.input.write_text("nonsense\n" * 50 + write_requests(desk.folder / "x", 100).read_text())
    done = desk.run("--max-failures", 10)
    assert done.returncode == 3
    assert "too many requests failed" in done.stderr
    assert "bad_input" in done.stderr


def test_strict_refuses_repeated_ids(desk: Desk):
    """--strict: exit 2 with both line numbers."""
    desk.input.write_text(
        '{"custom_id":"a","prompt":"x"}\n{"custom_id":"b","prompt":"y"}\n{"custom_id":"a","prompt":"z"}\n'
    )
    done = desk.run("--strict")
    assert done.returncode == 2
    assert done.stderr.count("lines 1 and 3 have the same custom_id") == 1


def test_submit_wait_with_a_daemon(desk: Desk, own_store: StoreProcess):
    """`submit --wait -o OUT` collects what a daemon of the same store answers, and exits like a run."""
    write_requests(desk.input, 100)
    daemon = [command()[0], "-m", "gristmilld", "up", "--redis", own_store.url, "-e", desk.url, "--workers", "1"]
    with Background(daemon, environment()):
        done = producer(
            "submit", desk.input, "-m", "standin", "--wait", "-o", desk.out, "--json", "--redis", own_store.url
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] == 100
    assert Counter(line["gristmill"]["status"] for line in desk.lines) == {"ok": 100}
    assert not Path(f"{desk.out}.gm").exists()
