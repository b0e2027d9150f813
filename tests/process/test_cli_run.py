"""`producer run` end to end: real command, real daemon, real store, real HTTP; and what stands in its way at the start.

Each obstacle gives one clear sentence and its exit code, and once it is gone the same command completes.
"""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest
from tests.support.cli import producer, write_requests
from tests.support.desk import Desk, desk, shared_standin, standin
from tests.support.standin import StandinProcess
from tests.support.store import StoreProcess

__all__ = ["desk", "shared_standin", "standin"]


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
    """Without -m, a single served model is taken; where nothing lists models, exit 3 doubts the URL and asks for -m."""
    write_requests(desk.input, 3)
    right, desk.url = desk.url, desk.url.replace("/v1", "/nothing/v1")
    done = desk.run()
    assert done.returncode == 3
    assert "check the base URL" in done.stderr
    assert "-m MODEL" in done.stderr
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


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("more", [[], ["--overwrite"]])
def test_out_that_is_the_input(desk: Desk, more: list[str], link: bool):
    """INPUT as OUT is refused under any name, also with --overwrite: the requests would be gone."""
    write_requests(desk.input, 3)
    before = desk.input.read_bytes()
    if link:
        desk.out.symlink_to(desk.input)
    else:
        desk.out = desk.input
    done = desk.run("--limit", 1, *more)
    assert (done.returncode, done.stderr) == (
        2,
        f"Error: {desk.out} is INPUT itself: name another file for the results\n",
    )
    done = producer("submit", desk.input, "--wait", "-o", desk.out, "--state-dir", desk.state)
    assert (done.returncode, "is INPUT itself" in done.stderr) == (2, True)
    assert desk.input.read_bytes() == before


def test_out_whose_neighbours_would_have_too_long_a_name(desk: Desk):
    """One sentence before anything is begun, also where the name itself is still allowed."""
    write_requests(desk.input, 1)
    for length in (240, 300):
        desk.out = desk.folder / ("n" * length)
        done = desk.run()
        assert (done.returncode, done.stderr) == (2, "Error: the name of OUT is too long: give it 230 bytes at most\n")
