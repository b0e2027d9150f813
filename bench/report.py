"""What is kept of a measurement, and shown of it: `bench/out/last.json`, and the table that is made of nothing else."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.run import Sample, median, tell
from bench.scenarios import KEYS, Figures

LAST = Path(__file__).resolve().parent / "out/last.json"


def rounded(figures: Figures) -> dict[str, float | None]:
    """Every key, in its order; None for what was not measured."""
    return {key: round(figures[key], 3) if key in figures else None for key in KEYS}


def tell_medians(log: dict[str, list[Sample]]) -> None:
    tell("\nmedian of each client    requests   CPU us   store us   endpoint CPU s    wall s")
    for name, samples in log.items():
        middle = median(samples)
        tell(
            f"{name:22} {middle.requests:10,} {middle.cpu_us:8.0f} {middle.store_us:10.1f} {middle.endpoint_s:16.2f} "
            f"{middle.wall_s:9.2f}"
        )


def keep(figures: Figures, log: dict[str, list[Sample]], runs: int, *, quick: bool, took_s: float) -> None:
    """Write the last measurement down, with all single runs."""
    LAST.parent.mkdir(exist_ok=True)
    kept = {
        "figures": rounded(figures),
        "runs": runs,
        "quick": quick,
        "took_s": round(took_s),
        "ended": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "samples": {name: [asdict(sample) for sample in samples] for name, samples in log.items()},
    }
    LAST.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def table() -> int:
    """Print the last measurement as the table of README.md; 2 when there is none."""
    try:
        kept = json.loads(LAST.read_text(encoding="utf-8"))
    except FileNotFoundError:
        print(f"{LAST} is not there: run `make bench` first", file=sys.stderr)
        return 2
    if kept["quick"]:
        print("warning: this was a smoke test (--quick), no figure to quote", file=sys.stderr)
    print("\n".join(markdown(kept)))
    return 0


def markdown(kept: dict[str, Any]) -> list[str]:
    """The rows of the figures, and of what each client took."""
    runs = f"{kept['runs']} runs" if kept["runs"] > 1 else "one run"
    minutes = f"{kept['took_s'] / 60:.0f} minutes in all, load {kept['load_1m']} at the end"
    where = f"{kept['cores']} cores, Python {kept['python']}, {kept['ended']}: medians of {runs}; {minutes}."
    rows = [where, "", "| key | measured |", "|---|---|"]
    for key, figure in kept["figures"].items():
        rows.append(f"| `{key}` | {'not measured' if figure is None else f'{figure:.3g}'} |")
    if kept["samples"]:
        rows += [
            "",
            "| scenario and client | requests | CPU us a request | store us | requests/s |",
            "|---|---|---|---|---|",
        ]
    for name, samples in kept["samples"].items():
        s = median([Sample(**sample) for sample in samples])
        rows.append(f"| {name} | {s.requests:,} | {s.cpu_us:.0f} | {s.store_us:.0f} | {s.rate:,.0f} |")
    return rows
