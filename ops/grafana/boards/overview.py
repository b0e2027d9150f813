"""Dashboard "Overview": one screen that says whether all is well, and where to look if not."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from boards.parts import HOST, Panels, Query, finished_per_s, frame, graph, number, quantile, rate, requests_in

GOOD, WRONG = (None, "green"), (1, "red")


def board() -> Dashboard:
    text = "Is all well? The numbers say so; the other dashboards say why not."
    made = frame("overview", "Overview", text, variables=["model", "job", "host"])
    for panel in (*_health(), *_progress(), *_graphs()):
        made.with_panel(panel)
    return made


def _health() -> Panels:
    yield number(
        "Alerts",
        "short",
        "Alerts that fire; Alertmanager lists them.",
        Query('count(ALERTS{alertname=~"Gristmill.*", alertstate="firing"}) or vector(0)', "alerts"),
        steps=[GOOD, WRONG],
    )
    yield number(
        "Daemons",
        "short",
        "Daemons that are registered in the store.",
        Query("max(gristmill_daemons)", "daemons"),
        steps=[(None, "red"), (1, "green")],
    )
    yield number(
        "Endpoints down",
        "short",
        "Model servers that at least one worker sees as down.",
        Query('count(sum by (endpoint) (gristmill_endpoint_state{state="down"}) > 0) or vector(0)', "endpoints"),
        steps=[GOOD, WRONG],
    )
    yield number(
        "Jobs waiting for a person",
        "short",
        "Jobs that are paused until somebody mends what they stumbled over.",
        Query('sum(max by (job_id) (gristmill_job_state{state="paused", reason!="user"})) or vector(0)', "jobs"),
        steps=[GOOD, WRONG],
    )
    yield number(
        "Store memory",
        "percentunit",
        "Share of the store's own limit that is used.",
        Query("max(gristmill_store_used_bytes / (gristmill_store_limit_bytes > 0))", "share"),
        steps=[GOOD, (0.75, "orange"), (0.9, "red")],
    )
    yield number(
        "Worker deaths in an hour",
        "short",
        "Workers that crashed or hung within the last hour.",
        Query('sum(increase(gristmill_process_deaths_total{cause=~"crashed|hung"}[1h])) or vector(0)', "deaths"),
        steps=[GOOD, (1, "orange"), (10, "red")],
    )


def _progress() -> Panels:
    yield number(
        "Unfinished jobs",
        "short",
        "Jobs that have not ended.",
        Query('max(sum by (instance) (gristmill_jobs{state=~"created|running|paused|cancelling"}))', "jobs"),
    )
    left = f"sum({requests_in('fresh|waiting|in_flight')})"
    yield number("Requests left", "short", "Requests that have no result yet.", Query(left, "requests"))
    yield number(
        "Finished per second", "reqps", "Requests that reach their end.", Query(f"sum({finished_per_s()})", "requests")
    )
    yield number(
        "Time left", "s", "What is left at the present speed.", Query(f"{left} / (sum({finished_per_s()}) > 0)", "time")
    )
    yield number(
        "Failed",
        "percentunit",
        "Share of the finished requests that failed.",
        Query(f"sum({requests_in('failed')}) / (sum({requests_in('ok|failed')}) > 0)", "share"),
        steps=[GOOD, (0.01, "orange"), (0.1, "red")],
    )
    yield number(
        "Slots used",
        "percentunit",
        "Share of the places for requests that are taken.",
        Query(f"sum(gristmill_in_flight_requests{{{HOST}}}) / (sum(gristmill_slots{{{HOST}}}) > 0)", "share"),
    )


def _graphs() -> Panels:
    yield graph(
        "Finished per second",
        "reqps",
        "Requests that reach their end, by job.",
        Query(finished_per_s(), "{{job_id}}"),
        stacked=True,
    )
    yield graph(
        "Requests by place",
        "short",
        "Where the requests of the chosen jobs are.",
        Query(requests_in(".*", by="place"), "{{place}}"),
        stacked=True,
    )
    yield graph(
        "Calls by outcome",
        "reqps",
        "Calls to model servers that end, by what came back.",
        Query(rate("attempts_total", by="outcome"), "{{outcome}}"),
        stacked=True,
    )
    yield graph(
        "Duration of good calls",
        "s",
        "Half and 95 % of the calls to each model server take at most this long.",
        *[
            Query(quantile(q, "call_duration_seconds", 'result="ok"', by="endpoint"), f"{{{{endpoint}}}} {q * 100:g} %")
            for q in (0.5, 0.95)
        ],
    )
