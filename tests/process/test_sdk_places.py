"""Where a program may use the SDK: in threads and inside loops; and what a killed worker costs it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.support.programs import Program
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until_sync


@pytest.fixture(scope="module")
def standin():
    with StandinProcess("--latency", "0.02") as process:
        yield process


# what the stand-in answers to a message, and so what each call must have given back
CHECK = """
import hashlib, json, sys
import gristmill
from gristmill import MPOpenAIAPI

def right(answer, prompt):
    return json.loads(answer)["text_sha256"] == hashlib.sha256(prompt.encode()).hexdigest()
"""

MANY = (
    CHECK
    + """
import threading, time

stop = threading.Event()
spinner = threading.Thread(target=lambda: [time.sleep(0.01) for _ in iter(stop.is_set, True)])
spinner.start()
api = MPOpenAIAPI("standin", api_base=sys.argv[1], num_workers=2, thread_num=200)
assert right(api.generate_inner("first")[1], "first")
print("working", flush=True)
prompts = [f"message {n}" for n in range(4000)]
answers = api.generate([[{"role": "user", "content": p}] for p in prompts])
assert [right(a, p) for a, p in zip(answers, prompts, strict=True)] == [True] * 4000
assert api.last_failures == []
few = range(0, 4000, 200)
assert [api.generate_inner(prompts[n])[1] for n in few] == [answers[n] for n in few]
stop.set()
spinner.join()
print("right", flush=True)
"""
)


def test_a_killed_worker_loses_nothing(tmp_path: Path, standin: StandinProcess):
    """kill -9 of a worker, and then of the whole daemon, in mid-generate: every answer comes, in order, and equals that
    of a call alone. Other threads run meanwhile."""
    with Program(tmp_path, MANY, standin.url) as program:
        program.say("working")
        standin_before = standin.stats["requests"]
        _wait_for_requests(standin, standin_before + 500)
        supervisor = program.daemon_pids()[0]
        _kill(program.busy_worker())
        _wait_for_requests(standin, standin_before + 1500)
        _kill(supervisor)
        assert program.wait(100) == 0, program.said
        program.say("right")
        assert program.left() == []


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _wait_for_requests(standin: StandinProcess, count: int) -> None:
    wait_until_sync(lambda: standin.stats["requests"] >= count, description=f"{count} requests", timeout_s=60)


THREADS = (
    CHECK
    + """
from concurrent.futures import ThreadPoolExecutor

with gristmill.blocking.Client(sys.argv[1]) as client, ThreadPoolExecutor(20) as pool:
    prompts = [f"prompt {n}" for n in range(200)]
    results = list(pool.map(client.ask, prompts))
    assert all(right(r.require().text, p) for r, p in zip(results, prompts, strict=True))
    lists = list(pool.map(lambda part: client.generate(part), [prompts[n::4] for n in range(4)]))
    for n, part in enumerate(lists):
        assert all(right(r.require().text, p) for r, p in zip(part, prompts[n::4], strict=True))
print("right")
"""
)

LOOPS = (
    CHECK
    + """
import asyncio, io
from PIL import Image

UVLOOP = sys.argv[2] == "uvloop"
buffer = io.BytesIO()
Image.new("CMYK", (30, 20)).save(buffer, "TIFF")  # has to be encoded by another process

async def main():
    # the blocking face inside a running loop, and the async one beside it
    assert right(gristmill.generate(["a"], endpoints=sys.argv[1])[0].require().text, "a")
    async with gristmill.Client(sys.argv[1]) as client:
        async def later():
            for n in range(600):
                await asyncio.sleep(0)
                yield f"prompt {n}"
        seen = [r async for r in client.stream(later())]
        assert [r.index for r in seen] == list(range(600))
        assert all(right(r.require().text, f"prompt {r.index}") for r in seen)
        asked = await asyncio.gather(*(client.ask(f"q {n}") for n in range(50)))
        assert all(right(r.require().text, f"q {n}") for n, r in enumerate(asked))
        picture = await client.ask([{"type": "image", "value": buffer.getvalue()}, {"type": "text", "value": "x"}])
        assert json.loads(picture.require().text)["images"][0]["width"] == 30
    print("right")

if UVLOOP:
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    import uvloop
    uvloop.install()
asyncio.run(main())
"""
)


SPAWNED = (
    CHECK
    + """
import multiprocessing

api = MPOpenAIAPI("standin", api_base=sys.argv[1], num_workers=1)

if __name__ == "__main__":
    prompts = [f"prompt {n}" for n in range(20)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(api.generate_inner, prompts)
        pool.close()
        pool.join()
    assert all(right(answer, p) for (_, answer, _), p in zip(found, prompts, strict=True))
    print("right")
"""
)


@pytest.mark.parametrize(("source", "arguments"), [(THREADS, []), (LOOPS, ["asyncio"]), (LOOPS, ["uvloop"]),
                                                    (SPAWNED, [])],
                         ids=["threads", "asyncio", "uvloop", "spawned"])  # fmt: skip
def test_many_callers_at_once(tmp_path: Path, standin: StandinProcess, source: str, arguments: list[str]):
    """Twenty threads, many tasks of one loop, or spawned processes that were given the class, each get the answers to
    their own requests."""
    with Program(tmp_path, source, standin.url, *arguments) as program:
        assert program.wait() == 0, program.said
        assert program.said == "right"
        wait_until_sync(lambda: program.left() == [], description="nothing is left")
