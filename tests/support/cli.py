"""The command `producer` as a user calls it: another process, its own streams, a clean environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_OURS = ("OPENAI_", "GRISTMILL_", "NO_COLOR")


def environment(**more: str) -> dict[str, str]:
    """The environment without what would change a command's meaning, plus `more`."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith(_OURS)}, **more}


def command(*words: object) -> list[str]:
    """The argv of ``producer WORDS``."""
    return [sys.executable, "-m", "gristmill", *map(str, words)]


def producer(*words: object, timeout_s: float = 60, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``producer WORDS`` to its end; one that is not done after `timeout_s` is ended and returns 124."""
    with subprocess.Popen(
        command(*words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**env),
    ) as process:
        try:
            out, err = process.communicate(stdin, timeout=timeout_s)
            code = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            (out, err), code = process.communicate(), 124
    return subprocess.CompletedProcess(command(*words), code, out, err)


def write_requests(path: Path, n: int, *, words: int = 5) -> Path:
    """`n` chat requests with ids c0, c1, ... and prompts of `words` words."""
    with path.open("w") as file:
        for i in range(n):
            message = {"role": "user", "content": " ".join([f"w{i}"] * words)}
            file.write(json.dumps({"custom_id": f"c{i}", "messages": [message]}) + "\n")
    return path
