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
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path("/demo/examples")
CURRENT = Path("current-job")
INPUT = Path("requests.jsonl")
PAUSE_S = 5
PHOTO_EVERY = 20
ALL_OK, SOME_FAILED, NO_SUCH_JOB = 0, 1, 2


def examples(name: str) -> Iterator[dict[str, Any]]:
    """The requests of one file of examples/, again and again."""
    return itertools.cycle([json.loads(line) for line in (EXAMPLES / name).read_text(encoding="utf-8").splitlines()])


def write_input(count: int) -> None:
    """Requests that differ from those of every other job; the file is there whole or not at all."""
    started = int(time.time())
    draft = INPUT.with_suffix(".draft")
    prompts, photos = examples("prompts.jsonl"), examples("photos.jsonl")
    with draft.open("w", encoding="utf-8") as out:
        for number in range(count):
            request = next(photos if number % PHOTO_EVERY == 0 else prompts)
            request.pop("custom_id", None)
            body = request.get("body", request)
            body["user"] = f"{started}-{number}"
            out.write(json.dumps(request) + "\n")
    draft.rename(INPUT)


def producer(*args: str, fine: Collection[int] = (0,)) -> tuple[int, str]:
    """Run ``producer ARGS``: its exit code and standard output. Ends this program with any code that is not `fine`."""
    argv = [str(Path(sys.executable).with_name("producer")), *args]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in fine:
        sys.exit(done.returncode)
    return done.returncode, done.stdout.strip()


def submit(count: int) -> None:
    """Queue a job, and note it once its input is in the store. An input that is still there was not fed to its end."""
    if not INPUT.exists():
        write_input(count)
    _, job = producer("submit", str(INPUT), "-m", "standin", "--media-root", str(EXAMPLES), "--name", "demo")
    CURRENT.write_text(job, encoding="utf-8")
    INPUT.unlink()


def collect(job: str) -> None:
    """Take the results of `job`, then forget it, and the results of the one before; also where the job is gone."""
    results = Path(f"answers-{job}.jsonl")
    code, _ = producer("results", job, "-o", str(results), fine=(ALL_OK, SOME_FAILED, NO_SUCH_JOB))
    if code != NO_SUCH_JOB:
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
            submit(count)
        collect(CURRENT.read_text(encoding="utf-8"))
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
