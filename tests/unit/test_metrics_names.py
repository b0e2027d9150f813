"""The names of the metrics: what dashboards and alerts hold on to."""

from __future__ import annotations

import re

import pytest

from gristmilld import metrics
from gristmilld.metrics import Kind, Metric

ALL = [value for value in vars(metrics).values() if isinstance(value, Metric)]
BOUNDED_LABELS = {
    "endpoint", "outcome", "class", "direction", "result", "status", "process", "state", "cause", "version", "place",
    "reason", "kind",
}  # fmt: skip


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_a_name_says_its_unit(metric):
    """Prefix, lower case, `_total` for counters alone, `_seconds` for histograms; a help text that is a sentence."""
    assert re.fullmatch(r"gristmill_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.kind is not Kind.HISTOGRAM or metric.name.endswith("_seconds")
    assert not re.search(r"_(ms|millis|kb|mb|count|sum|bucket)(_|$)", metric.name)
    assert metric.help.endswith(".")


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_labels_are_bounded(metric):
    """Only gauges from the store bear a job id, and there the number of jobs is limited."""
    by_job = metric.name.startswith("gristmill_job_")
    assert ("job_id" in metric.labels) == by_job
    assert "job" not in metric.labels, "Prometheus would rename it"
    assert not by_job or metric.kind is Kind.GAUGE
    chosen_by_users = {"job_id", "name", "model"} if metric is metrics.JOB_INFO else {"job_id"}
    assert set(metric.labels) - chosen_by_users <= BOUNDED_LABELS


def test_no_name_is_given_twice():
    """Each family has one home."""
    names = [metric.name for metric in ALL]
    assert len(names) == len(set(names))


def test_worker_metrics_are_those_that_need_value_files():
    """A metric of the workers that was left out of the list would fail when it is first counted."""
    elsewhere = {"build", "process", "store", "daemons", "jobs", "job"}
    by_workers = {m.name for m in ALL if m.name.split("_")[1] not in elsewhere}
    assert {m.name for m in metrics.WORKER_METRICS} == by_workers | {metrics.STORE_OUTAGES.name}
