"""What happens to `producer run` on its way: kill -9 of everything, Ctrl-C, a full disk, a cancelled job.

Each gives one clear sentence and its exit code and loses nothing: the same command completes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import Counter
from pathlib import Path

from redis import Redis
from tests.support.cli import Background, command, environment, producer, write_requests
from tests.support.desk import Desk, desk, half_done, shared_standin, standin
from tests.support.standin import StandinProcess
from tests.support.store import StoreProcess
from tests.support.wait import wait_until_sync

__all__ = ["desk", "shared_standin", "standin"]


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
    """It is started anew, what its workers held goes out again at once, and the run ends well."""
    write_requests(desk.input, 300)
    standin.control(latency="0.2")
    with desk.start("--concurrency", 20) as running:
        wait_until_sync(half_done(desk), description="some results are durable")
        (daemon,) = [p for p in running.children() if p in running.matching("-m gristmilld up")]
        os.kill(daemon, signal.SIGKILL)
        assert running.wait(timeout_s=20) == 0, "less than the 30 s after which a lease ends by itself"
    assert "the daemon ended unexpectedly (signal 9); starting it anew" in running.stderr
    desk.assert_complete(300)


def test_worker_that_dies(desk: Desk, standin: StandinProcess):
    """The run says so, with the signal, when it happens, and ends well."""
    write_requests(desk.input, 300)
    standin.control(latency="0.2")
    with desk.start("--concurrency", 20) as running:
        wait_until_sync(half_done(desk), description="some results are durable")
        (worker,) = [p for p in running.descendants() if "gm-worker-0" in Path(f"/proc/{p}/comm").read_text()]
        os.kill(worker, signal.SIGKILL)
        running.wait_for_line("worker-0 crashed (SIGKILL); it starts again in ")
        assert running.wait() == 0
    desk.assert_complete(300)


def test_daemon_that_dies_again_and_again(desk: Desk, standin: StandinProcess):
    """Without progress in between it is given up: exit 3 with the end of its log, and the same command completes."""
    write_requests(desk.input, 50)
    standin.control(latency="5")

    with desk.start("--concurrency", 20) as running:

        def daemons() -> set[int]:
            return set(running.children()) & set(running.matching("-m gristmilld up"))

        for _ in range(5):
            wait_until_sync(lambda: bool(daemons()), description="a daemon runs")
            [pid] = daemons()
            os.kill(pid, signal.SIGKILL)
            wait_until_sync(lambda dead=pid: dead not in daemons(), description="it is gone")
        assert running.wait() == 3
    assert "the same command goes on" in running.stderr
    standin.control(latency="0")
    assert desk.run().returncode == 0
    desk.assert_complete(50)


def test_daemon_that_refuses_its_settings(desk: Desk):
    """More requests in flight than open files: exit 2 with the daemon's own sentence."""
    write_requests(desk.input, 3)
    argv = ["/bin/bash", "-c", 'ulimit -n 1000; exec "$@"', "bash", *command(*desk.argv("--concurrency", 60_000))]
    with Background(argv, environment()) as running:
        assert running.wait() == 2
    assert "open files" in running.stderr
    assert "--concurrency" in running.stderr


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


def test_results_that_nobody_had_collected(desk: Desk, standin: StandinProcess):
    """What lay in the store when everything was killed is taken from there: the same command sends nothing."""
    write_requests(desk.input, 30)
    standin.control(latency="0.1")
    with desk.start("--concurrency", 4) as running:
        wait_until_sync(half_done(desk), description="some results are durable")
        os.kill(running.pid, signal.SIGSTOP)  # nobody collects now
        with Redis.from_url(f"unix://{(desk.state / 'store' / 'socket').read_text()}") as store:
            wait_until_sync(lambda: all_answered(store, 30), description="all are answered")
        for pid in (*running.descendants(), running.pid, desk.server_pid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        running.wait()
    assert len(desk.lines) < 30
    standin.reset_stats()
    again = desk.run()
    assert again.returncode == 0
    assert "results of the run before were still in the store" in again.stderr
    assert standin.stats["requests"] == 0
    desk.assert_complete(30)


def test_damaged_result(desk: Desk, standin: StandinProcess):
    """Exit 3 with its index, and everything else in OUT.gm; the same command sends that request again, and no other."""
    write_requests(desk.input, 30)
    standin.control(latency="0.1")
    with desk.start("--concurrency", 4) as running:
        wait_until_sync(half_done(desk), description="some results are durable")
        os.kill(running.pid, signal.SIGSTOP)  # nobody collects now
        address = (desk.state / "store" / "socket").read_text()
        with Redis.from_url(f"unix://{address}") as store:
            before = answers(store)  # some of these may have been read already
            wait_until_sync(lambda: all_answered(store, 30), description="all are answered")
            block, index = max(answers(store) - before)
            store.hset(block, index, b"\x01?")
        os.kill(running.pid, signal.SIGCONT)
        assert running.wait() == 3
    assert f"the result of request {index.decode()} is damaged in the store" in running.stderr
    sent = standin.stats["requests"]
    again = desk.run()
    assert again.returncode == 0
    assert "1 results of the run before are damaged" in again.stderr
    assert standin.stats["requests"] == sent + 1
    desk.assert_complete(30)


def answers(store: Redis) -> set[tuple[bytes, bytes]]:
    """The results that lie in `store`: key and field of each."""
    return {(key, field) for key in store.scan_iter("gm:*:r:*") for field in store.hkeys(key) if field != b"#"}


def all_answered(store: Redis, n: int) -> bool:
    """Whether the only job in `store` has `n` results."""
    return [store.hget(key, "done") for key in store.scan_iter("gm:*:m")] == [b"%d" % n]


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
