"""`make bench`, or `python -m bench [SCENARIO...]`: talk on stderr, one JSON line at the end of stdout."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import report
from bench.endpoint import Endpoint
from bench.run import Bench, tell
from bench.scenarios import SCENARIOS, TEXT_REQUESTS, Figures
from bench.store import Store


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="What a request costs, beside other ways.")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; all by default")
    parser.add_argument("--runs", type=int, default=5, help="runs of each client, in turn; medians are taken (5)")
    parser.add_argument(
        "--requests",
        type=int,
        default=TEXT_REQUESTS,
        metavar="N",
        help=f"requests of the text scenario ({TEXT_REQUESTS:,}); the others have fewer in proportion",
    )
    parser.add_argument("--quick", action="store_true", help="one run, a tenth of the requests: a smoke test")
    parser.add_argument("--table", action="store_true", help="measure nothing: print the last measurement as Markdown")
    options = parser.parse_args(argv)
    unknown = [name for name in options.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    if options.quick:
        options.runs, options.requests = 1, TEXT_REQUESTS // 10
    return options


def measure(options: argparse.Namespace, folder: Path) -> Figures:
    """The figures of all chosen scenarios, kept for `--table`; one that fails is told and leaves its figures out."""
    figures: Figures = {}
    started_s = time.monotonic()
    with Endpoint() as endpoint, Store(folder / "state") as store:
        bench = Bench(folder, endpoint, store, options.runs, options.requests / TEXT_REQUESTS)
        for name in options.scenarios or SCENARIOS:
            scenario, began_s = SCENARIOS[name], time.monotonic()
            tell(f"{name}: {(scenario.__doc__ or '').splitlines()[0]}")
            try:
                figures |= scenario(bench)
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                tell(f"  {name} could not be measured: {error}")
            tell(f"  {name} took {time.monotonic() - began_s:.0f} s")
    report.tell_medians(bench.log)
    report.keep(figures, bench.log, options.runs, quick=options.quick, took_s=time.monotonic() - started_s)
    return figures


def main() -> int:
    options = parse(sys.argv[1:])
    if options.table:
        return report.table()
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="gm-bench-") as folder:
        try:
            figures = measure(options, Path(folder))
        except LookupError as error:
            tell(f"Nothing was measured: {error}")
    print(json.dumps(report.rounded(figures)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
