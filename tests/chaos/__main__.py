"""``python -m tests.chaos``: the long tier as one command, ending with one line of JSON.

The tiers, in order: the property machine's long stories, the mutations of the scripts that the tests must catch, jobs
whose primary is killed (behind sentinels, and in a cluster), and the chaos runs of real processes. A tier that was not
asked for has null in the line. Exit code 0: nothing was lost, doubled or wrong, and every mutant was caught.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

from tests.chaos import desk
from tests.chaos.harness import PROFILES, run
from tests.chaos.report import Report

HERE = Path(__file__).parent
TIERS = ("property", "mutations", "failovers", "chaos")
WHOLE = (("full", 460_000, 1_800), ("always", 60_000, 300), ("poison", 5_000, 120), ("run", 20_000, 0))
"""The runs of a whole tier: profile, requests, and seconds after which no job is begun."""
RUN_KILLS = 24
"""Of a run of the profile "run", which is one `producer run`."""


def main() -> int:
    asked = _arguments()
    line: dict[str, object] = dict.fromkeys(
        ("seeds", "mutants", "mutants_caught", "failovers", "requests", "kills", "lost", "doubled",
         "executions_per_request")
    )  # fmt: skip
    good = True
    if "property" in asked.tiers:
        done, passed = _pytest("test_queue_stories.py")
        line["seeds"] = _stories() * passed
        good &= done == passed
    if "mutations" in asked.tiers:
        line["mutants"], line["mutants_caught"] = done, passed = _pytest("test_queue_mutations.py")
        good &= done == passed
    if "failovers" in asked.tiers:
        line["failovers"], passed = _pytest("../process/test_ha_failover.py")
        good &= line["failovers"] == passed
    if "chaos" in asked.tiers:
        reports = [_run(*one, asked.seed + i) for i, one in enumerate(_runs(asked))]
        line |= _sums(reports)
        good &= all(report.clean for report in reports)
    sys.stdout.write(json.dumps(line) + "\n")
    return 0 if good else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--tiers", nargs="+", choices=TIERS, help="all by default; with --profile, chaos")
    parser.add_argument(
        "--profile", choices=sorted([*PROFILES, "run"]), help="one run of this profile instead of the whole tier"
    )
    parser.add_argument("--requests", type=int, default=16_000, help="of the one run")
    parser.add_argument("--seconds", type=float, default=90, help="no job of the one run is begun later")
    parser.add_argument("--seed", type=int, default=1, help="chooses what is hurt, and when")
    asked = parser.parse_args()
    asked.tiers = asked.tiers or (TIERS if asked.profile is None else ("chaos",))
    return asked


def _runs(asked: argparse.Namespace) -> tuple[tuple[str, int, float], ...]:
    return WHOLE if asked.profile is None else ((asked.profile, asked.requests, asked.seconds),)


def _run(name: str, requests: int, seconds: float, seed: int) -> Report:
    """One chaos run; what it did goes to stderr."""
    if name == "run":
        report = asyncio.run(desk.run(rows=requests, kills=RUN_KILLS, seed=seed))
    else:
        report = asyncio.run(run(PROFILES[name], requests=requests, seconds=seconds, seed=seed))
    sys.stderr.write(f"{name}, seed {seed}: {json.dumps(dataclasses.asdict(report), indent=1)}\n")
    return report


def _sums(reports: list[Report]) -> dict[str, object]:
    kills: Counter[str] = Counter()
    for report in reports:
        kills.update(report.kills)
    requests = sum(report.requests for report in reports)
    executions = sum(report.executions for report in reports)
    return {
        "requests": requests,
        "kills": dict(sorted(kills.items())),
        "lost": sum(report.lost for report in reports),
        "doubled": sum(report.doubled for report in reports),
        "executions_per_request": round(executions / requests, 4) if requests else None,
    }


def _pytest(name: str) -> tuple[int, int]:
    """Run the long tests of one file, named from this folder; how many tests there were, and how many passed."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as file:
        words = ["-q", "-m", "chaos", "-p", "no:cacheprovider", f"--junitxml={file.name}", str(HERE / name)]
        subprocess.run([sys.executable, "-m", "pytest", *words], check=False, stdout=sys.stderr)
        suite = ET.parse(file.name).getroot().find("testsuite")
    if suite is None:
        return 1, 0
    count = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    return count["tests"], count["tests"] - count["failures"] - count["errors"] - count["skipped"]


def _stories() -> int:
    """Stories of the property tier: hypothesis' profile "chaos" says how many."""
    from hypothesis import settings

    __import__("tests.chaos.test_queue_stories")
    return int(settings.get_profile("chaos").max_examples)


if __name__ == "__main__":
    sys.exit(main())
