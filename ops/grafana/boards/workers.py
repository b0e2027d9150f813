"""Dashboard "Workers": whether the daemons' processes have room, time and health, and how fast pictures are encoded."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from boards.parts import HOST, Panels, Query, frame, graph, number, quantile, rate, slope

PROCESS = "{{instance}} {{process}}"
USED = f"sum by (instance) (gristmill_in_flight_requests{{{HOST}}})"
SLOTS = f"sum by (instance) (gristmill_slots{{{HOST}}})"


def board() -> Dashboard:
    text = "Slots, bytes, loop lag, processor time, deaths and restarts by host, and the encoding of pictures."
    made = frame("workers", "Workers", text, variables=["host", "model", "job"])
    for panel in (*_numbers(), *_room(), *_processes(), *_pictures()):
        made.with_panel(panel)
    return made


def _numbers() -> Panels:
    yield number(
        "Daemons",
        "short",
        "Daemons that Prometheus reaches.",
        Query(f"count(gristmill_build_info{{{HOST}}})", "daemons"),
        width=6,
        steps=[(None, "red"), (1, "green")],
    )
    yield number(
        "Workers",
        "short",
        "Worker processes whose loop turns.",
        Query(f'sum(gristmill_process_up{{{HOST}, process=~"worker-.*"}})', "workers"),
        width=6,
        steps=[(None, "red"), (1, "green")],
    )
    yield number(
        "Slots used",
        "percentunit",
        "Share of the places for requests that are taken.",
        Query(f"sum({USED}) / (sum({SLOTS}) > 0)", "share"),
        width=6,
    )
    yield number(
        "Restarts in an hour",
        "short",
        "Children that were started again within the last hour.",
        Query(f"sum(increase(gristmill_process_restarts_total{{{HOST}}}[1h]))", "restarts"),
        width=6,
        steps=[(None, "green"), (1, "orange"), (10, "red")],
    )


def _room() -> Panels:
    yield graph(
        "Slots",
        "short",
        "Requests in flight, and how many there may be.",
        Query(USED, "{{instance}} used"),
        Query(SLOTS, "{{instance}} slots"),
    )
    yield graph(
        "Bytes in flight",
        "bytes",
        "Bytes of text and of pictures that workers hold, and the most of either.",
        Query(f"sum by (instance, kind) (gristmill_in_flight_bytes{{{HOST}}})", "{{instance}} {{kind}}"),
        Query(f"sum by (instance) (gristmill_in_flight_limit_bytes{{{HOST}}})", "{{instance}} limit"),
    )
    yield graph(
        "Claimed and finished",
        "reqps",
        "Requests that workers take from the queue, and that they finish.",
        Query(rate("claimed_requests_total", by="instance"), "{{instance}} claimed"),
        Query(rate("requests_total", by="instance"), "{{instance}} finished"),
    )


def _processes() -> Panels:
    yield graph(
        "Loop lag",
        "s",
        "99 % of a worker's wake-ups are at most this late; above 0.1 s it has too much to do.",
        Query(quantile(0.99, "loop_lag_seconds", by="instance, process"), PROCESS),
    )
    yield graph(
        "Processor time",
        "percentunit",
        "Share of one core that each worker uses; at 100 % add workers.",
        Query(rate("cpu_seconds_total", by="instance, process"), PROCESS),
    )
    yield graph(
        "Processes up",
        "short",
        "1 while a child lives and its loop turns.",
        Query(f"max by (instance, process) (gristmill_process_up{{{HOST}}})", PROCESS),
    )
    yield graph(
        "Restarts",
        "short",
        "Children that were started again, in five minutes.",
        Query(f"sum by (instance, process) (increase(gristmill_process_restarts_total{{{HOST}}}[5m]))", PROCESS),
    )
    yield graph(
        "Deaths by cause",
        "short",
        "How children ended, in five minutes.",
        Query(f"sum by (cause) (increase(gristmill_process_deaths_total{{{HOST}}}[5m]))", "{{cause}}"),
        stacked=True,
    )


def _pictures() -> Panels:
    yield graph(
        "Pictures encoded per second",
        "short",
        "Pictures that feeders make fit to send, by job.",
        Query(slope("encoded_pictures"), "{{job_id}}"),
    )
    yield graph(
        "Encoders at work",
        "short",
        "Cores that encode pictures, by job.",
        Query(slope("encoder_seconds"), "{{job_id}}"),
    )
    yield graph(
        "Bytes of pictures",
        "Bps",
        "Bytes of pictures per second before and after encoding, by job.",
        Query(slope("pictures_read_bytes"), "{{job_id}} before"),
        Query(slope("pictures_sent_bytes"), "{{job_id}} after"),
    )
