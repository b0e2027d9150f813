"""A real Prometheus for tests, with our rules on a shorter clock, and our boards as lists of expressions."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml

from tests.support.wait import wait_until_sync

OPS = Path(__file__).resolve().parents[2] / "ops"
MINUTE_S = 2
"""How long a minute of the rules lasts in tests."""
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Shown(NamedTuple):
    """One expression of a board, and where it stands there."""

    where: str
    expr: str


def shown_on_boards() -> list[Shown]:
    """Each expression of each dashboard, and what its variables ask for, with everything chosen."""
    found: list[Shown] = []
    for path in sorted((OPS / "grafana/dashboards").glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        for panel in board["panels"]:
            found += [
                Shown(f"{path.stem}: {panel['title']} / {t['legendFormat']}", t["expr"]) for t in panel["targets"]
            ]
        for variable in board["templating"]["list"]:
            values = re.fullmatch(r"label_values\((.*), (\w+)\)", str(variable.get("query", "")))
            if values:
                found.append(
                    Shown(f"{path.stem}: variable {variable['name']}", f"count by ({values[2]}) ({values[1]})")
                )
    return [Shown(one.where, _chosen(one.expr)) for one in found]


def _chosen(expr: str) -> str:
    for name in ("model", "job", "host", "endpoint"):
        expr = expr.replace(f"${name}", ".*")
    return expr.replace("$__rate_interval", "5s")


def quick_rules() -> str:
    """The alerts as they are kept, with each minute as `MINUTE_S`."""
    kept = yaml.safe_load((OPS / "prometheus/rules/gristmill.yml").read_text(encoding="utf-8"))
    for group in kept["groups"]:
        for rule in group["rules"]:
            rule["expr"] = _shortened(rule["expr"])
            rule["for"] = _shortened(rule.get("for", "0m"))
    return yaml.safe_dump(kept)


def _shortened(text: str) -> str:
    return re.sub(r"\b(\d+)m\b", lambda found: f"{int(found[1]) * MINUTE_S}s", text)


class Prometheus:
    """A server that scrapes `targets` (job -> HOST:PORT) each second: ``with Prometheus(folder, targets) as it``."""

    def __init__(self, folder: Path, targets: dict[str, list[str]]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.address = f"127.0.0.1:{taken.getsockname()[1]}"
        self.began_s = time.time()
        self._folder = folder
        (folder / "rules.yml").write_text(quick_rules())
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "rules.yml")],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": addresses}]} for job, addresses in targets.items()
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))

    @staticmethod
    def is_installed() -> bool:
        return shutil.which("prometheus") is not None

    def __enter__(self) -> Self:
        argv = ["prometheus", f"--config.file={self._folder}/prometheus.yml", f"--web.listen-address={self.address}"]
        argv.append(f"--storage.tsdb.path={self._folder}/data")
        self._log = (self._folder / "log").open("wb")
        self._process = subprocess.Popen(argv, stdout=self._log, stderr=self._log)
        wait_until_sync(self._is_ready, description="Prometheus answers")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def _is_ready(self) -> bool:
        try:
            with _direct.open(f"http://{self.address}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def now(self, expr: str) -> list[dict[str, Any]]:
        """The series of `expr` at this moment."""
        return self._ask("query", query=expr)

    def ever(self, expr: str) -> list[dict[str, Any]]:
        """The series of `expr` at any second since the start."""
        return self._ask("query_range", query=expr, start=self.began_s, end=time.time(), step=1)

    def _ask(self, how: str, **query: object) -> list[dict[str, Any]]:
        url = f"http://{self.address}/api/v1/{how}?{urllib.parse.urlencode(query)}"
        with _direct.open(url, timeout=20) as reply:
            return list(json.load(reply)["data"]["result"])
