"""`gristmilld standin` as a process."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from tests.support.standin import _RUN, StandinProcess, _direct


def ask(standin: StandinProcess, text: str, **headers: str) -> int:
    request = urllib.request.Request(
        standin.url + "/completions", data=json.dumps({"prompt": text}).encode(), method="POST", headers=headers
    )
    try:
        with _direct.open(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_it_says_where_it_listens_and_ends_cleanly():
    """One line on stdout once it is ready, with the port that it was given; SIGTERM ends it with 0."""
    with StandinProcess() as standin:
        assert standin.url.startswith("http://127.0.0.1:")
        assert ask(standin, "hello") == 200
        assert standin.stats["requests"] == 1
        standin.reset_stats()
        assert standin.stats["requests"] == 0
        assert standin.close() == 0


def test_its_options_set_what_control_sets():
    """Faults, key and limits from the command line; control changes them while it runs."""
    with StandinProcess(
        "--fail", "503=1", "--key", "k", "--concurrency", "4", "--latency", "uniform:0:0.01"
    ) as standin:
        assert ask(standin, "x") == 401
        assert ask(standin, "x", Authorization="Bearer k") == 503
        standin.control(faults=[], key=None)
        assert ask(standin, "x") == 200


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--latency", "slow"], "lognormal:0.4:0.7"),
        (["--fail", "explode"], "429=2@0.1"),
        (["--port", "70000"], "--port"),
    ],
)
def test_wrong_options_are_usage_errors(options, says):
    """Exit code 2 and a sentence with what to write instead."""
    done = subprocess.run([sys.executable, "-c", _RUN, *options], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_port_in_use_is_named():
    """Exit code 2, which port, and what to do."""
    with StandinProcess() as standin:
        port = standin.root.rsplit(":", 1)[1]
        argv = [sys.executable, "-c", _RUN, "--port", port]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert f"can't listen on 127.0.0.1:{port}" in done.stderr
