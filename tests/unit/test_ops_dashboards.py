"""The dashboards that are kept are those that the script makes, and ask for what there is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.promql import asked, unknown

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "ops/grafana/dashboards"
BOARDS: dict[str, dict[str, Any]] = {p.stem: json.loads(p.read_text("utf-8")) for p in sorted(KEPT.glob("*.json"))}
PANELS = [pytest.param(p, id=f"{name}: {p['title']}") for name, board in BOARDS.items() for p in board["panels"]]


def test_what_is_kept_is_what_the_script_makes(tmp_path: Path) -> None:
    """The same files, byte for byte; if not: python ops/grafana/dashboards.py."""
    subprocess.run([sys.executable, str(ROOT / "ops/grafana/dashboards.py"), str(tmp_path)], check=True, timeout=60)
    made = {p.name: p.read_text("utf-8") for p in tmp_path.iterdir()}
    assert made == {p.name: p.read_text("utf-8") for p in KEPT.iterdir()}
    assert set(BOARDS) == {"overview", "jobs", "endpoints", "store", "workers"}


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    """A title, a unit, a sentence, and a name for each series."""
    assert panel["title"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["description"][0].isupper() or panel["description"][0].isdigit()
    assert panel["description"].endswith(".")
    assert all(target["legendFormat"] for target in panel["targets"])


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_asks_for_what_there_is(panel: dict[str, Any]) -> None:
    """Each expression is PromQL over metrics and labels that exist."""
    selectors = [one for target in panel["targets"] for one in asked(target["expr"])]
    assert selectors
    assert [trouble for one in selectors if (trouble := unknown(one))] == []


@pytest.mark.parametrize("panel", PANELS)
def test_a_job_is_counted_once_however_many_hosts_show_it(panel: dict[str, Any]) -> None:
    """The first thing that is done to a job's gauge is to take the maximum over hosts."""
    for target in panel["targets"]:
        for one in asked(target["expr"]):
            if one.name.startswith("gristmill_job_"):
                assert one.within[-1] == "max", target["expr"]


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_has_the_variables_it_uses(name: str) -> None:
    """No variable is used and not declared, none declared and not used."""
    text = json.dumps([panel["targets"] for panel in BOARDS[name]["panels"]])
    declared = {variable["name"] for variable in BOARDS[name]["templating"]["list"]} - {"source"}
    assert {each for each in ("model", "job", "host", "endpoint") if f"${each}" in text} == declared
    assert all(panel["datasource"]["uid"] == "${source}" for panel in BOARDS[name]["panels"])


@pytest.mark.parametrize("name", BOARDS)
def test_panels_lie_on_the_grid(name: str) -> None:
    """Within its 24 columns, and none over another."""
    taken: set[tuple[int, int]] = set()
    for panel in BOARDS[name]["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("panel", PANELS)
def test_what_can_be_chosen_filters_every_job(panel: dict[str, Any]) -> None:
    """Where a job is chosen, its model is, too: by the one metric that knows it."""
    for target in panel["targets"]:
        selectors = asked(target["expr"])
        if "$job" in target["expr"]:
            assert "gristmill_job_info" in {one.name for one in selectors if "model" in one.labels}, target["expr"]


def test_a_wrong_expression_would_be_found() -> None:
    """The checks above can fail: a misspelt metric, a label that it has not, a sum over hosts, no PromQL."""
    assert [unknown(one) for one in asked("gristmill_slot")] == ["nobody serves 'gristmill_slot'"]
    assert [unknown(one) for one in asked('gristmill_slots{job_id="a"}')] == ["gristmill_slots has no label job_id"]
    assert asked("sum(max by (job_id) (gristmill_job_state))")[0].within == ("sum", "max")
    with pytest.raises(ValueError, match="parenthesis"):
        asked("sum(")
