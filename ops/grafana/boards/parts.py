"""What the dashboards are made of: a frame with variables, panels with a unit and a sentence, and query idioms.

Every daemon of a store shows the same jobs, so a job's gauges are the maximum over hosts, never a sum; what workers do
is summed over hosts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from grafana_foundation_sdk.builders import bargauge, common, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import dashboard as dash
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

TAG = "gristmill"
SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
JOB, HOST, ENDPOINT = 'job_id=~"$job"', 'instance=~"$host"', 'endpoint=~"$endpoint"'
MODEL = 'model=~"$model"'
WINDOW = "$__rate_interval"
SLOW_WINDOW = "2m"
"""For the slope of gauges: a rate of finished requests over less than this jumps."""

AnyPanel: TypeAlias = timeseries.Panel | stat.Panel | bargauge.Panel | statetimeline.Panel | table.Panel
Panels: TypeAlias = Iterator[AnyPanel]
Some = TypeVar("Some", timeseries.Panel, stat.Panel, bargauge.Panel, statetimeline.Panel, table.Panel)


class Query(NamedTuple):
    """A PromQL expression, and how its series are called."""

    expr: str
    legend: str


# -- idioms


def chosen(expr: str) -> str:
    """Of an expression by job, the jobs for the chosen models; only `job_info` knows a job's model."""
    return f"({expr} and on (job_id) max by (job_id) (gristmill_job_info{{{JOB}, {MODEL}}}))"


def of_job(metric: str, *labels: str, by: str = "job_id") -> str:
    """A gauge of the chosen jobs: the same from every host, so the maximum."""
    return chosen(f"max by ({by}) (gristmill_job_{metric}{{{', '.join((JOB, *labels))}}})")


def slope(metric: str, *labels: str, by: str = "job_id") -> str:
    """How fast a gauge of the chosen jobs grows, per second; never below 0."""
    selector = f"gristmill_job_{metric}{{{', '.join((JOB, *labels))}}}"
    return chosen(f"clamp_min(max by ({by}) (deriv({selector}[{SLOW_WINDOW}])), 0)")


def requests_in(places: str, by: str = "job_id") -> str:
    """Requests of the chosen jobs in one of `places`, a pattern."""
    place = f'place=~"{places}"'
    return f"sum by ({by}) ({of_job('requests', place, by='job_id, place')})"


def finished_per_s() -> str:
    """Requests per second that reach their end, of the chosen jobs."""
    place = 'place=~"ok|failed"'
    return f"sum by (job_id) ({slope('requests', place, by='job_id, place')})"


def rate(metric: str, *labels: str, by: str, window: str = WINDOW) -> str:
    """What workers count, per second, summed over the chosen hosts."""
    return f"sum by ({by}) (rate(gristmill_{metric}{{{', '.join((HOST, *labels))}}}[{window}]))"


def quantile(share: float, metric: str, *labels: str, by: str) -> str:
    """A quantile of a histogram over the chosen hosts, in its unit."""
    return f"histogram_quantile({share:g}, {rate(f'{metric}_bucket', *labels, by=f'le, {by}' if by else 'le')})"


# -- panels


def graph(
    title: str, unit: str, text: str, *queries: Query, width: int = 12, stacked: bool = False
) -> timeseries.Panel:
    """Lines, or areas on top of each other, over time; `text` is one sentence that says what is to be seen."""
    panel = (
        timeseries.Panel()
        .unit(unit)
        .min(0)
        .line_width(1)
        .fill_opacity(30 if stacked else 5)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    return _filled(panel, title, text, queries, width, 8)


def number(
    title: str, unit: str, text: str, query: Query, *, width: int = 4, steps: Sequence[tuple[float | None, str]] = ()
) -> stat.Panel:
    """One value now, with its recent course behind it; `steps` colour it from the given values on."""
    panel = (
        stat.Panel()
        .unit(unit)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(BigValueGraphMode.AREA)
        .color_mode(BigValueColorMode.VALUE)
        .no_value("none")
        .thresholds(_steps(steps or [(None, "text")]))
    )
    return _filled(panel, title, text, [query], width, 4)


def bars(title: str, unit: str, text: str, query: Query, *, most: float | None = None) -> bargauge.Panel:
    """One bar for each series, as it stands now."""
    panel = (
        bargauge.Panel()
        .unit(unit)
        .min(0)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_steps([(None, "blue")]))
    )
    if most is not None:
        panel.max(most)
    return _filled(panel, title, text, [query], 12, 8)


def states(title: str, text: str, *queries: Query) -> statetimeline.Panel:
    """A band for each series, coloured while it is 1."""
    panel = statetimeline.Panel().unit("bool_yes_no").thresholds(_steps([(None, "text"), (1, "orange")]))
    return _filled(panel, title, text, queries, 12, 8)


def names(title: str, text: str, expr: str, **columns: str) -> table.Panel:
    """One row for each series, as it stands now: the labels that `columns` names, by their headings, in that order."""
    order = {label: place for place, label in enumerate(columns)}
    tidy = DataTransformerConfig(
        id_val="organize",
        options={"excludeByName": {"Time": True, "Value": True}, "indexByName": order, "renameByName": columns},
    )
    panel = table.Panel().unit("string").with_transformation(tidy)
    panel = _framed(panel, title, text, 12, 8)
    asked = prometheus.Dataquery().expr(expr).legend_format("__auto").ref_id("A")
    return panel.with_target(asked.instant().format(PromQueryFormat.TABLE))


def _steps(steps: Sequence[tuple[float | None, str]]) -> dash.ThresholdsConfig:
    listed = [Threshold(value=value, color=colour) for value, colour in steps]
    return dash.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(listed)


def _filled(panel: Some, title: str, text: str, queries: Sequence[Query], width: int, height: int) -> Some:
    panel = _framed(panel, title, text, width, height)
    for place, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(chr(ord("A") + place))
        panel.with_target(target.range())
    return panel


def _framed(panel: Some, title: str, text: str, width: int, height: int) -> Some:
    assert text.endswith("."), f"{title}: a description is a sentence"
    return panel.title(title).description(text).datasource(SOURCE).span(width).height(height)


# -- the frame


def frame(uid: str, title: str, text: str, *, variables: Sequence[str]) -> dash.Dashboard:
    """An empty dashboard with links to its siblings; `variables` are of model, job, endpoint and host."""
    board = (
        dash.Dashboard(f"Gristmill: {title}")
        .uid(f"gristmill-{uid}")
        .description(text)
        .tags([TAG])
        .timezone("browser")
        .refresh("10s")
        .time("now-1h", "now")
        .readonly()
        .link(
            dash.DashboardLink("Gristmill")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(False)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dash.DatasourceVariable("source").label("Source").type("prometheus"))
    )
    for name in variables:
        board.with_variable(_variable(name))
    return board


_LABELS = {
    "model": ("Model", "label_values(gristmill_job_info, model)", VariableSort.ALPHABETICAL_ASC),
    "job": ("Job", f"label_values(gristmill_job_info{{{MODEL}}}, job_id)", VariableSort.ALPHABETICAL_DESC),
    "endpoint": ("Endpoint", "label_values(gristmill_attempts_total, endpoint)", VariableSort.ALPHABETICAL_ASC),
    "host": ("Host", "label_values(gristmill_build_info, instance)", VariableSort.ALPHABETICAL_ASC),
}


def _variable(name: str) -> dash.QueryVariable:
    label, query, order = _LABELS[name]
    return (
        dash.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(order)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    )
