"""In a notebook: a real kernel, whose loop is running already, and a user who presses its stop button."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.support.notebook import notebook
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until_sync

FACES = """
import json
import gristmill
results = gristmill.generate(["one", "two"], endpoints=URL)
api = gristmill.MPOpenAIAPI("standin", api_base=URL, num_workers=1)
answers = api.generate(["three"])
async with gristmill.Client(URL) as client:
    asked = await client.ask("four")
print([json.loads(t)["text_len"] for t in (*[r.text for r in results], *answers, asked.text)])
"""

STOPPED = """
import itertools
with gristmill.blocking.Client(URL) as client:
    for result in client.stream(f"message {n}" for n in itertools.count()):
        if result.index == 50:
            print("press stop")
"""

AFTER = """
print(gristmill.generate(["after"], endpoints=URL)[0].ok)
"""

MANY = """
import hashlib, json
import gristmill
api = gristmill.MPOpenAIAPI("standin", api_base=URL, num_workers=2, thread_num=32)
prompts = [f"message {n}" for n in range(1500)]
print("working")
answers = api.generate(prompts)
right = [json.loads(a)["text_sha256"] == hashlib.sha256(p.encode()).hexdigest() for a, p in zip(answers, prompts)]
print("right:", sum(right), "of", len(answers), api.last_failures)
api.shutdown()
"""


@pytest.fixture(scope="module")
def standin():
    with StandinProcess("--latency", "0.02") as process:
        yield process


def test_cells_and_the_stop_button(tmp_path: Path, standin: StandinProcess):
    """All faces work in a cell; stop ends one with KeyboardInterrupt, leaves nothing of its client, and the kernel goes
    on; nothing at all is left when the kernel ends."""
    with notebook(tmp_path, standin.url, FACES, STOPPED, AFTER) as program:
        assert program.wait() == 0, program.said
        said = program.said.splitlines()
        assert [line for line in said if line.startswith("cell")] == ["cell ok", "cell error", "cell ok"], program.said
        assert {"stdout [3, 3, 5, 4]", "stdout True"} <= set(said), program.said
        assert any("KeyboardInterrupt" in line for line in said), program.said
        wait_until_sync(lambda: program.left() == [], description="nothing is left")


def test_a_worker_that_is_killed_under_a_cell(tmp_path: Path, standin: StandinProcess):
    """Every answer comes, in order; meanwhile the cell shows a bar that overwrites itself."""
    with notebook(tmp_path, standin.url, MANY) as program:
        program.say("stdout working")
        before = standin.stats["requests"]
        wait_until_sync(lambda: standin.stats["requests"] >= before + 200, description="200 requests", timeout_s=60)
        os.kill(program.busy_worker(), signal.SIGKILL)
        assert program.wait() == 0, program.said
        program.say("stdout right: 1500 of 1500 []")
        program.say("1,500/1,500")
        assert program.said.splitlines()[-1] == "cell ok"
        wait_until_sync(lambda: program.left() == [], description="nothing is left")
