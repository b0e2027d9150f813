"""`make demo`: a real job on this machine, with every answer checked, and one full of broken input.

No model and no Redis is needed: `producer run` starts a private store and two workers, and `gristmilld standin` plays
the model server. It decodes what it gets and says what it saw, so the demo can tell whether the right text and the
right picture, the right way up, came back at the right place. Exit 0 when all is as it should be, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

import checks
import corpus
import standin
import variants

RUN_LIMIT_S = 90
LATENCY_S = 0.02
MESSAGE_CHARS = 90


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A real job on this machine, every answer checked.")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "demo-out")
    parser.add_argument("--requests", type=int, default=1200)
    parser.add_argument("--pictures", type=int, default=264)
    return parser.parse_args(argv)


def say(text: str = "") -> None:
    print(text, flush=True)


def producer_run(source: Path, out: Path, url: str) -> tuple[int, dict[str, Any], float]:
    """`producer run` as a user types it: its exit code, its JSON summary, and the seconds it took."""
    argv = ["run", str(source), "-o", str(out), "-m", "standin", "-e", url, "--workers", "2"]
    shown = " ".join(os.path.relpath(a) if a.startswith("/") else a for a in argv)
    say(f"\n$ producer {shown}")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GRISTMILL_", "OPENAI_"))}
    command = [
        str(Path(sys.executable).with_name("producer")),
        *argv,
        "--state-dir",
        str(out.parent / "state"),
        "--json",
    ]
    start = time.monotonic()
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, timeout=RUN_LIMIT_S, check=False)
    wall_s = time.monotonic() - start
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, wall_s


def right_input(url: str, folder: Path, requests: int, files: int) -> list[str]:
    """Right requests, some with photographs; what was wrong with the answers."""
    pictures = list(variants.make(folder / "photos", files))
    kinds = len({p.variant for p in pictures})
    expected = corpus.write_requests(folder / "requests.jsonl", pictures, requests)
    with_pictures = sum(bool(e.pictures) for e in expected)
    say(f"  input        {requests:,} requests, {with_pictures} with photographs ({files} files of {kinds} kinds)")

    code, summary, wall_s = producer_run(folder / "requests.jsonl", folder / "answers.jsonl", url)
    say(f"exit {code} after {wall_s:.1f} s, {summary.get('attempts', 0):,} calls")
    wrong = [] if code == 0 else [f"exit code {code}, not 0"]
    if not (folder / "answers.jsonl").exists():
        return [*wrong, "there is no OUT"]
    if summary.get("ok") != len(expected):
        wrong.append(f"the summary counts {summary.get('ok')} right answers, not {len(expected)}")
    verdict = checks.verify(folder / "answers.jsonl", expected)
    stats = standin.get(f"{url}/stats")
    say("\nChecked line by line, against what the input shows:")
    say(f"  answers      {verdict.answers:,} of {len(expected):,}, one a line, in the order of the input")
    say(f"  texts        {verdict.texts:,} of {len(expected):,} arrived as they were (sha-256)")
    say(
        f"  photographs  {verdict.pictures} of {files}: right size, upright, right colour "
        f"(worst off by {verdict.worst_colour:.1f} of 255)"
    )
    say(f"  endpoint     {stats['distinct']:,} different requests, {stats['in_flight_max']} in flight at most")
    return wrong + verdict.wrong


def broken_input(url: str, folder: Path) -> list[str]:
    """Cut pictures and broken lines among right ones; what the run got wrong about them."""
    lines = list(corpus.broken_lines(folder / "broken"))
    source, out = folder / "broken.jsonl", folder / "broken-answers.jsonl"
    source.write_text("".join(line + "\n" for _, _, line in lines), encoding="utf-8")
    code, summary, _ = producer_run(source, out, url)
    say(f"exit {code}, {summary.get('ok')} answered, {summary.get('failed')} failed")
    wrong = [] if code == 1 else [f"exit code {code}, not 1"]

    if not out.exists():
        return [*wrong, "there is no OUT"]
    answers = checks.read_lines(out)
    say()
    for (what, want, _), answer in zip(lines, answers, strict=True):
        got = answer["gristmill"]["class"]
        message = answer["error"]["message"].replace(f"{folder}/", "") if answer["error"] else "answered"
        say(f"  {what:30} {got:10} {textwrap.shorten(message, MESSAGE_CHARS, placeholder=' ...')}")
        if got != want:
            wrong.append(f"{what} became {got}, not {want}")
    counts = Counter(want for _, want, _ in lines if want != "ok")
    if {k: v for k, v in summary.get("by_class", {}).items() if v} != counts:
        wrong.append(f"the summary counts {summary.get('by_class')}, not {dict(counts)}")
    return wrong


def demonstrate(options: argparse.Namespace) -> list[str]:
    """Both runs against one stand-in; what was wrong, in words."""
    with standin.standin(LATENCY_S) as url:
        say(f"  model server {url} (a stand-in that says what it saw)")
        wrong = right_input(url, options.out, options.requests, options.pictures)
        say("\nNow with cut pictures and broken lines among right ones:")
        return wrong + broken_input(url, options.out)


def main() -> int:
    start = time.monotonic()
    options = parse(sys.argv[1:])
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir()
    say("Gristmill demo: a private store, two workers and a stand-in model server, all on this machine\n")
    try:
        wrong = demonstrate(options)
    except RuntimeError as error:
        wrong = [str(error)]
    except subprocess.TimeoutExpired:
        wrong = [f"producer run did not end within {RUN_LIMIT_S} s"]
    say()
    if wrong:
        say(f"NOT as it should be ({len(wrong)}):")
        for sentence in wrong[:20]:
            say(f"  {sentence}")
        return 1
    took_s = time.monotonic() - start
    say(f"All as it should be, in {took_s:.0f} s. Input and answers are in {os.path.relpath(options.out)}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
