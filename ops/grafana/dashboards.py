"""Writes the dashboards: ``python ops/grafana/dashboards.py [FOLDER]``, by default ops/grafana/dashboards.

They are kept as the JSON that Grafana reads, so nobody needs this script to run Grafana; after a change here, run it
and keep what it wrote. Needs the development extra (grafana-foundation-sdk).
"""

from __future__ import annotations

import sys
from pathlib import Path

from boards import endpoints, jobs, overview, store, workers
from grafana_foundation_sdk.cog.encoder import JSONEncoder

BOARDS = {
    "overview": overview.board,
    "jobs": jobs.board,
    "endpoints": endpoints.board,
    "store": store.board,
    "workers": workers.board,
}


def main(argv: list[str]) -> None:
    folder = Path(argv[0]) if argv else Path(__file__).with_name("dashboards")
    folder.mkdir(parents=True, exist_ok=True)
    for name, board in BOARDS.items():
        text = JSONEncoder(sort_keys=True, indent=1).encode(board().build())
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
