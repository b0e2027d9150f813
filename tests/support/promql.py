"""What a PromQL expression asks for, read by a parser of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import promql_parser

from gristmilld import metrics
from gristmilld.metrics import Kind, Metric

FOREIGN = {
    "up", "ALERTS",
    # redis_exporter
    "redis_memory_used_bytes", "redis_memory_used_rss_bytes", "redis_aof_current_size_bytes",
    "redis_aof_base_size_bytes", "redis_aof_last_write_status", "redis_aof_last_bgrewrite_status",
    "redis_aof_delayed_fsync", "redis_commands_processed_total", "redis_connected_clients",
    # model servers
    "sglang:token_usage", "llamacpp:kv_cache_usage_ratio",
}  # fmt: skip
"""Names that are not ours: from Prometheus, the store's exporter and the model servers."""


class Asked(NamedTuple):
    """One selector: its metric ("" where only a pattern is given), its labels, and the aggregations around it."""

    name: str
    labels: frozenset[str]
    within: tuple[str, ...]


def asked(expr: str) -> list[Asked]:
    """Every selector of `expr`; Grafana's variables may stand where a duration or a pattern stands.

    Raises:
        ValueError: `expr` is no PromQL.
    """
    return list(_selectors(promql_parser.parse(expr.replace("$__rate_interval", "5m")), ()))


def _selectors(node: Any, within: tuple[str, ...]) -> Iterator[Asked]:
    if isinstance(node, promql_parser.VectorSelector):
        matchers = node.matchers.matchers
        exact = [m.value for m in matchers if m.name == "__name__" and m.op == promql_parser.MatchOp.Equal]
        yield Asked(node.name or "".join(exact), frozenset(m.name for m in matchers), within)
        return
    if isinstance(node, promql_parser.AggregateExpr):
        within = (*within, str(node.op))
    for part in ("expr", "lhs", "rhs", "vector_selector"):
        child = getattr(node, part, None)
        if child is not None:
            yield from _selectors(child, within)
    for child in getattr(node, "args", None) or []:
        yield from _selectors(child, within)


def _series(metric: Metric) -> list[str]:
    parts = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
    return [metric.name + part for part in parts]


OURS = {name: value for value in vars(metrics).values() if isinstance(value, Metric) for name in _series(value)}
"""Each series that a daemon serves, with its family."""


def unknown(one: Asked) -> str:
    """What is wrong with a selector: a metric that nobody serves, a label that it has not; "" when nothing is."""
    if one.name in FOREIGN or (not one.name and "__name__" in one.labels):
        return ""
    family = OURS.get(one.name)
    if family is None:
        return f"nobody serves {one.name!r}"
    strange = one.labels - set(family.labels) - {"instance", "le", "job"}
    return f"{one.name} has no label {', '.join(sorted(strange))}" if strange else ""
