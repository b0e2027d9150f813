"""However a program that uses the SDK ends, nothing of it is left: no process, no file."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.support.programs import Program
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until_sync

STREAM = """
import io, itertools, sys
import gristmill
from PIL import Image

picture = io.BytesIO()
Image.new("CMYK", (30, 20)).save(picture, "TIFF")  # starts an encoder process

with gristmill.blocking.Client(sys.argv[1]) as client:
    assert client.ask([{"type": "image", "value": picture.getvalue()}]).ok
    for n, result in enumerate(client.stream((f"prompt {n}" for n in itertools.count()), ordered=False)):
        if n == 20:
            print("working", flush=True)
        if n == 40 and sys.argv[2:] == ["raise"]:
            raise RuntimeError("planned")
"""

DROP_IN = """
import sys
import gristmill

api = gristmill.MPOpenAIAPI("standin", api_base=sys.argv[1], thread_num=50)
assert len(api.generate(["a", "b", "c"])) == 3
print("working", flush=True)
api.generate((f"prompt {n}" for n in range(100_000)))
"""

LOOP = """
import asyncio, itertools, sys
import gristmill

async def main():
    async with gristmill.Client(sys.argv[1]) as client:
        n = 0
        async for result in client.stream(f"prompt {n}" for n in itertools.count()):
            n += 1
            if n == 20:
                print("working", flush=True)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def standin():
    with StandinProcess("--latency", "0.05") as process:
        yield process


def gone(program: Program) -> None:
    wait_until_sync(lambda: program.left() == [], description=f"nothing is left of it, but: {program.left()}")


@pytest.mark.parametrize("source", [STREAM, DROP_IN], ids=["client", "class"])
def test_a_killed_program_leaves_nothing(tmp_path: Path, standin: StandinProcess, source: str):
    """kill -9: the daemon ends at the end of its stdin, the store and its folder go by its guard."""
    with Program(tmp_path, source, standin.url) as program:
        program.say("working")
        assert len(program.daemon_pids()) > 1
        assert source is DROP_IN or any("encoder_main" in thing for thing in program.left())
        assert any("private-" in thing for thing in program.left())
        program.signal(signal.SIGKILL)
        assert program.wait() == -signal.SIGKILL
        gone(program)


@pytest.mark.parametrize("source", [STREAM, DROP_IN, LOOP], ids=["client", "class", "loop"])
def test_ctrl_c_gets_through_and_leaves_nothing(tmp_path: Path, standin: StandinProcess, source: str):
    """A KeyboardInterrupt ends the call within seconds, as it would end any other code."""
    with Program(tmp_path, source, standin.url) as program:
        program.say("working")
        program.signal(signal.SIGINT)
        assert program.wait(15) in {1, -signal.SIGINT}
        assert "KeyboardInterrupt" in program.said
        assert program.left() == []


def test_an_exception_comes_through_and_leaves_nothing(tmp_path: Path, standin: StandinProcess):
    """In the middle of a stream without an end."""
    with Program(tmp_path, STREAM, standin.url, "raise") as program:
        assert program.wait() == 1
        assert "RuntimeError: planned" in program.said
        assert program.left() == []


def test_sigterm_leaves_nothing(tmp_path: Path, standin: StandinProcess):
    """The default action ends the program at once; its children follow."""
    with Program(tmp_path, STREAM, standin.url) as program:
        program.say("working")
        program.signal(signal.SIGTERM)
        assert program.wait() == -signal.SIGTERM
        gone(program)


FORGETFUL = """
import os, sys
import gristmill

client = gristmill.blocking.Client(sys.argv[1])
assert client.ask("x").require().text
api = gristmill.OpenAIAPI("standin", api_base=sys.argv[1], num_workers=1)
assert api.generate_inner("y")[0] == 0
print("working", flush=True)
"""


def test_a_program_that_closes_nothing_leaves_nothing(tmp_path: Path, standin: StandinProcess):
    """At the interpreter's end, where no new thread can be had, clients are closed all the same."""
    with Program(tmp_path, FORGETFUL, standin.url) as program:
        assert program.wait() == 0, program.said
        assert program.said == "working"
        assert program.left() == []


FORKING = """
import os, sys, warnings
import gristmill

warnings.simplefilter("ignore", DeprecationWarning)  # of os.fork in a process with threads
api = gristmill.MPOpenAIAPI("standin", api_base=sys.argv[1], num_workers=1)
assert api.generate(["before"])
child = os.fork()
if child == 0:
    answers = api.generate(["in the child"])
    api.shutdown()
    os._exit(0 if "text_sha256" in answers[0] else 1)
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status))
print("parent", "text_sha256" in api.generate(["after"])[0])
"""


def test_a_fork_of_the_program_neither_hangs_nor_harms(tmp_path: Path, standin: StandinProcess):
    """The child gets workers of its own, and its end does not end its parent's."""
    with Program(tmp_path, FORKING, standin.url) as program:
        assert program.wait() == 0, program.said
        assert program.said == "child 0\nparent True"
        gone(program)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_nothing_of_the_callers_leaks_into_the_command_lines(tmp_path: Path, standin: StandinProcess):
    """Neither the key nor a prompt shows in `ps`, in the log, or in the settings on disk."""
    source = STREAM.replace("Client(sys.argv[1])", 'Client(sys.argv[1], key="sk-SENTINEL")').replace(
        'f"prompt {n}"', 'f"SENTINEL {n}"'
    )
    with Program(tmp_path, source, standin.url) as program:
        program.say("working")
        for pid in program.daemon_pids():
            assert b"SENTINEL" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        for path in program.state.glob("gristmill/private-*/daemon.*"):
            assert b"SENTINEL" not in path.read_bytes()
        folder = next(program.state.glob("gristmill/private-*"))
        assert folder.stat().st_mode & 0o777 == 0o700
        os.kill(program.process.pid, signal.SIGKILL)
        gone(program)
