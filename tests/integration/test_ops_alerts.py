"""The alerts: tried by Prometheus' own tool, over metrics that exist, each with a way to go on."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.promql import asked, unknown

OPS = Path(__file__).resolve().parents[2] / "ops"
RULES = OPS / "prometheus/rules/gristmill.yml"
CASES = OPS / "prometheus/tests/gristmill_test.yml"
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]
]
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def promtool(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *args], capture_output=True, text=True, timeout=60)


@needs_promtool
def test_the_cases_hold() -> None:
    """Each alert fires where it must and is quiet where it must be."""
    done = promtool("test", "rules", str(CASES))
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_the_rules_are_clean() -> None:
    """promtool has nothing to say against the rules."""
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_the_configuration_is_clean() -> None:
    """promtool has nothing to say against what Prometheus is told to scrape."""
    done = promtool("check", "config", "--syntax-only", str(OPS / "prometheus/prometheus.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_firing_and_a_quiet_case() -> None:
    """A case of either kind, which asks for that very alert."""
    cases: dict[str, set[str]] = {}
    for case in yaml.safe_load(CASES.read_text("utf-8"))["tests"]:
        name, kind = case["name"].replace(",", "").split()[:2]
        (check,) = case["promql_expr_test"]
        assert f'alertname="{name}"' in check["expr"]
        assert bool(check["exp_samples"]) == (kind == "fires")
        cases.setdefault(name, set()).add(kind)
    assert cases == {alert["alert"]: {"fires", "quiet"} for alert in ALERTS}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_asks_for_what_there_is(alert: dict[str, Any]) -> None:
    """Metrics and labels exist; a job counts once, however many hosts show it."""
    selectors = asked(alert["expr"])
    assert [trouble for one in selectors if (trouble := unknown(one))] == []
    for one in selectors:
        assert not one.name.startswith("gristmill_job_") or one.within[-1] == "max"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_what_to_do(alert: dict[str, Any]) -> None:
    """A severity, two sentences, and a section of the runbook."""
    assert alert["labels"]["severity"] in {"page", "ticket"}
    notes = alert["annotations"]
    assert notes["summary"].endswith(".")
    assert notes["description"].endswith(".")
    assert notes["runbook"] == f"ops/runbook.md#{alert['alert'].lower()}"


def test_alertmanager_knows_the_alerts() -> None:
    """What is held back because of a greater trouble is named as it is called."""
    config = yaml.safe_load((OPS / "alertmanager/alertmanager.yml").read_text("utf-8"))
    named = set(re.findall(r"Gristmill\w+", str(config["inhibit_rules"])))
    assert named <= {alert["alert"] for alert in ALERTS}
    assert config["route"]["receiver"] in {receiver["name"] for receiver in config["receivers"]}
