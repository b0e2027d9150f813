"""Deadlines of `producer run`, from end to end: real command, real daemon, real store, real HTTP."""

from __future__ import annotations

import json

from tests.support.cli import write_requests
from tests.support.desk import Desk, desk, shared_standin, standin
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until_sync

__all__ = ["desk", "shared_standin", "standin"]


def test_a_deadline_ends_the_run_and_keeps_what_is_finished(desk: Desk, standin: StandinProcess):
    """Exit 4, state expired, finished lines in OUT, the rest not_run; the same command does the rest."""
    standin.control(latency="0.4", concurrency=0)
    write_requests(desk.input, 200)
    done = desk.run("--concurrency", 4, "--deadline", "5s", "--json")
    assert done.returncode == 4, done.stderr
    told = json.loads(done.stdout)
    assert (told["state"], told["failed"], told["in_flight"], told["waiting"]) == ("expired", 0, 0, 0)
    assert told["ok"] + told["not_run"] == told["total"] == 200
    assert 0 < told["ok"] < 200
    assert "the deadline has passed; everything that was finished is kept" in done.stderr
    assert len(desk.lines) == told["ok"]
    wait_until_sync(lambda: standin.stats["in_flight"] == 0, description="the server is left alone")
    sent = standin.stats["requests"]
    standin.control(latency="0", concurrency=0)
    again = desk.run("--deadline", "10m")
    assert again.returncode == 0, again.stderr
    desk.assert_complete(200)
    assert standin.stats["requests"] - sent == 200 - told["ok"], "a finished line was sent again"


def test_a_deadline_that_has_passed_is_refused(desk: Desk):
    """Before anything is sent; with what to type instead."""
    write_requests(desk.input, 1)
    done = desk.run("--deadline", "2020-01-01T00:00Z")
    assert (done.returncode, "--deadline lies in the past" in done.stderr) == (2, True)
    assert not desk.out.exists()


def test_stragglers_fail_at_their_own_deadline(desk: Desk, standin: StandinProcess):
    """Exit 1 like any failed request, and the class says why."""
    standin.control(latency="0", concurrency=0, faults=[{"kind": "stall", "text": "w7"}])
    write_requests(desk.input, 20, words=1)
    done = desk.run("--request-deadline", "1s", "--json")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["by_class"] == {"deadline": 1}
