"""Jobs for a demonstration, one after the other: prompts and photographs of examples/, each time with new texts.

Runs in the compose file's `demo` service; the store is in GRISTMILL_REDIS_URL. Results and the id of the job that is
being collected lie in the working folder, so that a restart goes on with that job. SIGTERM ends it at once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path("/demo/examples")
CURRENT = Path("current-job")
INPUT = Path("requests.jsonl")
PAUSE_S = 5
PHOTO_EVERY = 20


def examples(name: str) -> Iterator[dict[str, Any]]:
    """The requests of one file of examples/, again and again."""
    return itertools.cycle([json.loads(line) for line in (EXAMPLES / name).read_text(encoding="utf-8").splitlines()])


def write_input(count: int, job_name: str) -> None:
    """Requests that differ from those of every other job, so that none counts as done."""
    prompts, photos = examples("prompts.jsonl"), examples("photos.jsonl")
    with INPUT.open("w", encoding="utf-8") as out:
        for number in range(count):
            request = next(photos if number % PHOTO_EVERY == 0 else prompts)
            request.pop("custom_id", None)
            body = request.get("body", request)
            body["user"] = f"{job_name}-{number}"
            out.write(json.dumps(request) + "\n")


def producer(*args: str) -> str:
    """Run ``producer ARGS``; its standard output. Exit code 1, some failed requests, is no trouble of ours."""
    argv = [str(Path(sys.executable).with_name("producer")), *args]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode > 1:
        sys.exit(done.returncode)
    return done.stdout.strip()


def collect(job: str) -> None:
    """Take the results of `job`, then forget it, and the results of the one before."""
    results = Path(f"answers-{job}.jsonl")
    producer("results", job, "-o", str(results))
    producer("rm", job)
    CURRENT.unlink()
    for old in Path().glob("answers-*.jsonl"):
        if old != results:
            old.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000, help="of each job")
    count = parser.parse_args().requests
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        if not CURRENT.exists():
            name = f"demo-{int(time.time())}"
            write_input(count, name)
            args = ("-m", "standin", "--media-root", str(EXAMPLES), "--name", name)
            CURRENT.write_text(producer("submit", str(INPUT), *args), encoding="utf-8")
        collect(CURRENT.read_text(encoding="utf-8"))
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
