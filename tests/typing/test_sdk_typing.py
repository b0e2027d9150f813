"""A user's program is checked against the types that the package ships, as strictly as mypy can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

GOOD = """
import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import gristmill
from gristmill import Client, MPOpenAIAPI, Result, blocking


def prompts() -> Iterator[gristmill.Request]:
    yield "text"
    yield {"prompt": "p", "image": Path("a.jpg")}
    yield [{"role": "user", "content": "c"}]


async def later() -> AsyncIterator[str]:
    yield "x"


async def main() -> None:
    async with Client("http://h", model="m", workers=2) as client:
        one: Result = await client.ask("x", temperature=0)
        many: list[Result] = await client.generate(later(), system="s")
        async for result in client.stream(prompts(), ordered=False):
            print(result.index + 1, result.text.upper(), one, many)
        options = gristmill.JobOptions(max_attempts=2)
        job = await client.submit(Path("in.jsonl"), format="conversations", options=options)
        status = await job.status()
        total: int | None = status.total
        print(total, status.by_class.get("timeout"))


def plain() -> list[str]:
    results = gristmill.generate(["a", "b"], model="m", endpoints=["http://h"], temperature=0)
    with blocking.Client() as client:
        try:
            texts = [r.require().text for r in client.stream("in.jsonl")]
        except gristmill.RequestFailedError as error:
            print(error.code, error.index)
            raise
        except gristmill.JobPausedError as paused:
            print(paused.reason, paused.detail)
            raise
    failed = [r.error.message for r in results if r.error is not None]
    return [*texts, *failed]


def drop_in() -> list[str]:
    api = MPOpenAIAPI("m", api_base="http://h", port=1, logger=logging.getLogger(), timeout=(1, 2), seed=1)
    answers: list[str] = api.generate([[{"role": "user", "content": "x"}], "y"], temperature=0)
    code, answer, response = api.generate_inner("x")
    print(code + 1, answer, api.reasoning(response).upper(), [f.code for f in api.last_failures])
    api.shutdown()
    return answers


asyncio.run(main())
"""

BAD = {
    "gristmill.generate(3)": "arg-type",
    'gristmill.Client(workers="2")': "arg-type",
    "gristmill.Result(index=1).text + 1": "operator",
    'gristmill.blocking.Client().submit("a", format="csv")': "arg-type",
    "gristmill.nonsense": "attr-defined",
}


def mypy(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(source, encoding="utf-8")
    cache = ROOT / ".mypy_cache" / "user-program"
    argv = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), str(program)]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, env={**os.environ, "MYPYPATH": ""})


def test_a_good_program_passes(tmp_path: Path):
    """Every public name, used as the documents say, under --strict."""
    done = mypy(tmp_path, GOOD)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mistakes_are_found(tmp_path: Path):
    """The types are not all Any: each of these is an error of its own kind."""
    done = mypy(tmp_path, "import gristmill\n\n" + "".join(f"{line}\n" for line in BAD))
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line.rpartition("[")[2].rstrip("]") for line in lines] == list(BAD.values()), done.stdout
