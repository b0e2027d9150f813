"""Where prompts and keys are, and where they are not: looked for in everything that a run leaves or says."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.support.cli import Background, command, environment, producer
from tests.support.desk import Desk, desk, half_done, shared_standin, standin
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until_sync

__all__ = ["desk", "shared_standin", "standin"]

PROMPT, KEY = "SENTINEL-PROMPT", "sk-SENTINEL-KEY"
FAULTS = [
    {"kind": "status", "status": 400, "text": f"{PROMPT}-1 "},
    {"kind": "truncated", "text": f"{PROMPT}-2 ", "times": 2},
    {"kind": "status", "status": 500, "text": f"{PROMPT}-3 ", "times": 3},
]


def files_with(folder: Path, text: str) -> set[str]:
    """Names of the files below `folder` that hold `text`."""
    found = set()
    for path in folder.rglob("*"):
        if path.is_file() and text.encode() in path.read_bytes():
            found.add(path.relative_to(folder).parts[0] if "store" in path.parts else path.name)
    return found


def command_lines(pids: list[int]) -> bytes:
    """Their arguments, as `ps` shows them."""
    texts = []
    for pid in pids:
        try:
            texts.append(Path(f"/proc/{pid}/cmdline").read_bytes())
        except OSError:  # it has just ended
            continue
    return b"".join(texts)


def test_nothing_of_the_user_is_told_to_others(desk: Desk, standin: StandinProcess):
    """In the middle of a run prompts lie in INPUT and in the store's log, and nowhere else; the key lies in no file at
    all. Neither is in a process list, a log or a message, whatever fails."""
    with desk.input.open("w") as file:
        for i in range(200):
            message = {"role": "user", "content": f"{PROMPT}-{i} tell me"}
            file.write(json.dumps({"custom_id": f"c{i}", "messages": [message]}) + "\n")
    standin.control(latency="0.2", faults=FAULTS)
    argv = command(*desk.argv("--concurrency", 10))
    with Background(argv, environment(OPENAI_API_KEY=KEY)) as running:
        wait_until_sync(half_done(desk), description="some results are durable")
        seen = command_lines([running.pid, *running.descendants(), desk.server_pid()])
        assert b"gristmill" in seen
        assert PROMPT.encode() not in seen
        assert KEY.encode() not in seen
        assert files_with(desk.folder, KEY) == set()
        assert files_with(desk.folder, PROMPT) == {"in.jsonl", "state"}
        log = Path(f"{desk.out}.gm") / "daemon.log"
        assert log.stat().st_size > 0
        os.kill(running.pid, signal.SIGINT)
        assert running.wait() == 130
        assert files_with(desk.folder, KEY) == set()
        assert PROMPT not in log.read_text()
    done = producer(*desk.argv(), OPENAI_API_KEY=KEY)
    assert done.returncode == 1, done.stderr
    for text in (running.stdout, running.stderr, done.stdout, done.stderr):
        assert PROMPT not in text
        assert KEY not in text
    assert files_with(desk.folder, PROMPT) <= {"in.jsonl"} | {p.name for p in desk.folder.glob("*.failed.jsonl")}
    assert files_with(desk.folder, KEY) == set()
