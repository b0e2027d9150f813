"""`make demo`: a real job on this machine, with every answer checked, and one full of broken input.

No model and no Redis is needed: `producer run` starts a private store and two workers, and `gristmilld standin` plays
the model server. It decodes what it gets and says what it saw, so the demo can tell whether the right text and the
right picture, the right way up, came back at the right place. Exit 0 when all is as it should be, 1 otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import checks
import inputs
import standin
import variants

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "demo-out"
REQUESTS = 1200
PICTURES = 264
RUN_LIMIT_S = 90
LATENCY_S = 0.02


def say(text: str = "") -> None:
    print(text, flush=True)


def producer_run(source: Path, out: Path, url: str) -> tuple[int, dict[str, Any], float]:
    """`producer run` as a user types it: its exit code, its JSON summary, and the seconds it took."""
    argv = ["run", str(source), "-o", str(out), "-m", "standin", "-e", url, "--workers", "2"]
    shown = " ".join(os.path.relpath(a) if a.startswith("/") else a for a in argv)
    say(f"\n$ producer {shown}")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GRISTMILL_", "OPENAI_"))}
    command = [str(Path(sys.executable).with_name("producer")), *argv, "--state-dir", str(OUT / "state"), "--json"]
    start = time.monotonic()
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, timeout=RUN_LIMIT_S, check=False)
    wall_s = time.monotonic() - start
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, wall_s


def right_input(url: str) -> list[str]:
    """1,200 right requests; what was wrong with the answers."""
    pictures = list(variants.make(OUT / "photos", PICTURES))
    kinds = len({p.variant for p in pictures})
    expected = inputs.write_requests(OUT / "requests.jsonl", pictures, REQUESTS)
    with_pictures = sum(bool(e.pictures) for e in expected)
    files = f"{PICTURES} files of {kinds} kinds"
    say(f"  input        {len(expected):,} requests, {with_pictures} with photographs ({files})")

    code, summary, wall_s = producer_run(OUT / "requests.jsonl", OUT / "answers.jsonl", url)
    say(f"exit {code} after {wall_s:.1f} s, {summary.get('attempts', 0):,} calls")
    wrong = [] if code == 0 else [f"exit code {code}, not 0"]
    if summary.get("ok") != len(expected):
        wrong.append(f"the summary counts {summary.get('ok')} right answers, not {len(expected)}")
    verdict = checks.verify(OUT / "answers.jsonl", expected)
    stats = standin.get(f"{url}/stats")
    say("\nChecked line by line, against what the input shows:")
    say(f"  answers      {verdict.answers:,} of {len(expected):,}, one a line, in the order of the input")
    say(f"  texts        {verdict.texts:,} of {len(expected):,} arrived as they were (sha-256)")
    say(
        f"  photographs  {verdict.pictures} of {PICTURES}: right size, upright, right colour "
        f"(worst off by {verdict.worst_colour:.1f} of 255)"
    )
    say(f"  endpoint     {stats['distinct']:,} different requests, {stats['in_flight_max']} in flight at most")
    return wrong + verdict.wrong


def broken_input(url: str) -> list[str]:
    """Cut pictures and broken lines among right ones; what the run got wrong about them."""
    lines = list(inputs.broken_lines(OUT / "broken"))
    source, out = OUT / "broken.jsonl", OUT / "broken-answers.jsonl"
    source.write_text("".join(line + "\n" for _, _, line in lines), encoding="utf-8")
    code, summary, _ = producer_run(source, out, url)
    say(f"exit {code}: finished, with failed requests")
    wrong = [] if code == 1 else [f"exit code {code}, not 1"]

    answers = checks.read_lines(out)
    say()
    for (what, want, _), answer in zip(lines, answers, strict=True):
        got = answer["gristmill"]["class"]
        message = answer["error"]["message"] if answer["error"] else "answered"
        say(f"  {answer['gristmill']['index'] + 1:2}  {what:30} {got:10} {message}")
        if got != want:
            wrong.append(f"{what} became {got}, not {want}")
    counts = Counter(want for _, want, _ in lines if want != "ok")
    if {k: v for k, v in summary.get("by_class", {}).items() if v} != counts:
        wrong.append(f"the summary counts {summary.get('by_class')}, not {dict(counts)}")
    return wrong


def main() -> int:
    start = time.monotonic()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    say("Gristmill demo: a private store, two workers and a stand-in model server, all on this machine\n")
    with standin.standin(LATENCY_S) as url:
        say(f"  model server {url} (a stand-in that says what it saw)")
        wrong = right_input(url)
        say("\nNow with cut pictures and broken lines among right ones:")
        wrong += broken_input(url)
    say()
    if wrong:
        say(f"NOT as it should be ({len(wrong)}):")
        for sentence in wrong[:20]:
            say(f"  {sentence}")
        return 1
    say(f"All as it should be, in {time.monotonic() - start:.0f} s. Input and answers are in {os.path.relpath(OUT)}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
