"""`producer run` over an OUT that has failed lines, or that nobody reads to its end."""

from __future__ import annotations

import os
import signal
import subprocess

from redis import Redis
from tests.support.cli import command, environment, write_requests
from tests.support.desk import Desk, desk, half_done, shared_standin, standin
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until_sync

from gristmill.contract.keys import JobKeys
from gristmill.embedded import EmbeddedStore

__all__ = ["desk", "shared_standin", "standin"]


def test_rerun_of_rows_that_are_bad_for_good(desk: Desk, standin: StandinProcess):
    """Only the failed rows are sent again, refused in the same words: exit 1 as before, never a wrong setup."""
    standin.control(faults=[{"kind": "status", "status": 400, "text": "bad"}])
    texts = ["bad" if i % 5 == 0 else f"fine {i}" for i in range(40)]
    desk.input.write_text("".join(f'{{"custom_id":"c{i}","prompt":"{t} {i}"}}\n' for i, t in enumerate(texts)))
    for sent, told in ((40, ""), (8, "32 lines are finished from before; 8 failed ones are sent again\n")):
        standin.reset_stats()
        done = desk.run()
        assert done.returncode == 1
        assert told in done.stderr
        assert standin.stats["requests"] == sent
        assert [line["gristmill"]["index"] for line in desk.lines] == list(range(40))
        assert sum(line["error"] is not None for line in desk.lines) == 8


def test_rerun_that_pauses_keeps_the_old_failed_lines(desk: Desk, standin: StandinProcess):
    """A line of OUT is replaced when there is something new for it, and never just dropped."""
    standin.control(faults=[{"kind": "status", "status": 400, "text": "bad"}])
    desk.input.write_text("".join(f'{{"prompt":"{"bad" if i == 7 else "fine"} {i}"}}\n' for i in range(20)))
    assert desk.run().returncode == 1
    before = desk.out.read_text()
    standin.control(faults=[{"kind": "status", "status": 401, "text": "bad"}])
    assert desk.run().returncode == 3
    assert desk.out.read_text() == before
    standin.control(faults=[])
    assert desk.run().returncode == 0
    assert len(desk.lines) == 20
    assert "20 lines are finished from before\n" in desk.run().stderr


def test_rerun_that_ends_early_keeps_the_old_failed_lines(desk: Desk, standin: StandinProcess):
    """So does one whose deadline passes: OUT stands as it is, what is new is kept beside it, and is sent no more."""
    standin.control(faults=[{"kind": "status", "status": 400, "text": "bad"}])
    desk.input.write_text("".join(f'{{"prompt":"{"bad" if i in (7, 8) else "fine"} {i}"}}\n' for i in range(20)))
    assert desk.run().returncode == 1
    before = desk.out.read_text()
    standin.control(faults=[{"kind": "stall", "text": "bad 7"}])
    standin.reset_stats()
    early = desk.run("--first-alone", "0", "--deadline", "3s")
    assert early.returncode == 4, early.stderr
    assert desk.out.read_text() == before
    assert "keeps finished results that OUT has not; the same command goes on from them" in early.stderr
    standin.control(faults=[])
    assert desk.run().returncode == 0
    assert len(desk.lines) == 20
    assert standin.stats["requests"] == 3


def test_an_out_that_somebody_cut_is_made_again(desk: Desk, standin: StandinProcess):
    """A run whose OUT was truncated meanwhile says so with exit 3, and the same command mends it without a request."""
    write_requests(desk.input, 60)
    standin.control(latency="0.2")
    with desk.start("--concurrency", 10) as running:
        wait_until_sync(half_done(desk), description="some results are in OUT")
        os.truncate(desk.out, 0)
        assert running.wait() == 3
    assert "the same command makes OUT of them again" in running.stderr
    assert desk.run().returncode == 0
    desk.assert_complete(60)
    assert standin.stats["requests"] == 60


def test_a_run_goes_on_after_an_upgrade(desk: Desk, standin: StandinProcess):
    """The job of the run before has a format that is not read any more: what was collected stays, the rest is sent."""
    write_requests(desk.input, 100)
    standin.control(latency="0.2")
    with desk.start("--concurrency", 10) as running:
        wait_until_sync(half_done(desk), description="some results are in OUT")
        os.kill(running.pid, signal.SIGINT)
        assert running.wait() == 130
    job = running.stderr.split()[1]
    with EmbeddedStore.open(desk.state) as store, Redis.from_url(store.url) as client:
        spec = JobKeys(job).spec
        client.set(spec, client.get(spec).replace(b'"format":', b'"format":9'))
    standin.control(latency="0")
    done = desk.run()
    assert done.returncode == 0, done.stderr
    assert f"warning: job {job} of the run before stays in the store" in done.stderr
    desk.assert_complete(100)
    assert standin.stats["requests"] == 100


def test_a_reader_that_leaves(desk: Desk, standin: StandinProcess):
    """`-o - | head` ends with 130 and says why; what was paid for is kept for the same command."""
    write_requests(desk.input, 400)
    standin.control(latency="0.02")
    words = [w if w != str(desk.out) else "-" for w in command(*desk.argv("--concurrency", 20))]
    script = '"$@" | head -n 5; exit "${PIPESTATUS[0]}"'
    piped = subprocess.run(
        ["bash", "-c", script, "bash", *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (piped.returncode, len(piped.stdout.splitlines())) == (130, 5)
    assert "standard output was closed" in piped.stderr
    again = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (again.returncode, len(again.stdout.splitlines())) == (0, 400)
    assert standin.stats["requests"] - standin.stats["distinct"] <= 60
