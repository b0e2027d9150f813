"""Dashboard "Queue and store": what lies where, against its marks, and how the store does."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from boards.parts import HOST, JOB, Panels, Query, chosen, frame, graph, number, of_job, quantile, rate, requests_in

NAME = "{{job_id}}"


def board() -> Dashboard:
    text = "Depth and bytes of the queues against their marks, leases, commits, and the store's memory and log."
    made = frame("store", "Queue and store", text, variables=["model", "job", "host"])
    for panel in (*_numbers(), *_depth(), *_leases(), *_store()):
        made.with_panel(panel)
    return made


def _numbers() -> Panels:
    yield number(
        "Store",
        "bool_yes_no",
        "Whether every daemon is answered by the store.",
        Query("min(gristmill_store_up)", "up"),
        steps=[(None, "red"), (1, "green")],
    )
    yield number(
        "Fit",
        "bool_yes_no",
        "Whether the store is set up so that nothing can get lost in it.",
        Query("min(gristmill_store_fit)", "fit"),
        steps=[(None, "red"), (1, "green")],
    )
    yield number(
        "Memory used",
        "percentunit",
        "Share of the store's own limit; at the limit nothing more is fed.",
        Query("max(gristmill_store_used_bytes / (gristmill_store_limit_bytes > 0))", "share"),
        steps=[(None, "green"), (0.75, "orange"), (0.9, "red")],
    )
    yield number(
        "Waiting",
        "short",
        "Requests in the queues of the chosen jobs.",
        Query(f"sum({requests_in('fresh|waiting')})", "requests"),
    )
    yield number(
        "Uncollected results",
        "short",
        "Results that no collector has taken yet.",
        Query(f"sum({of_job('uncollected_results')})", "results"),
    )
    yield number(
        "Daemons", "short", "Daemons that are registered in the store.", Query("max(gristmill_daemons)", "daemons")
    )


def _depth() -> Panels:
    yield graph(
        "Depth", "short", "Requests that wait to be claimed, by job.", Query(requests_in("fresh|waiting"), NAME)
    )
    yield graph(
        "Input in the store",
        "bytes",
        "Bytes of requests against the mark at which the feeder waits.",
        Query(of_job("payload_bytes"), NAME),
        Query(of_job("payload_mark_bytes"), NAME + " mark"),
    )
    yield graph(
        "Results in the store",
        "bytes",
        "Bytes of uncollected results against the mark at which no fresh work starts.",
        Query(of_job("uncollected_bytes"), NAME),
        Query(of_job("results_mark_bytes"), NAME + " mark"),
    )
    yield graph(
        "Into and out of the queue",
        "reqps",
        "Requests claimed and given back, and results that the store took.",
        Query(rate("claimed_requests_total", by=""), "claimed"),
        Query(rate("returned_requests_total", by=""), "given back"),
        Query(rate("committed_results_total", by="status"), "committed: {{status}}"),
    )


def _leases() -> Panels:
    yield graph(
        "Leased requests", "short", "Requests that workers hold by a lease.", Query(requests_in("in_flight"), NAME)
    )
    yield graph(
        "Redeliveries",
        "short",
        "Requests taken from dead or silent workers, and leases found lost, in five minutes.",
        Query(
            chosen(f"max by (job_id) (delta(gristmill_job_redelivered_requests{{{JOB}}}[5m]))"), NAME + " redelivered"
        ),
        Query(f"sum(increase(gristmill_leases_lost_total{{{HOST}}}[5m]))", "leases lost"),
    )
    yield graph(
        "Commit latency",
        "s",
        "Half, 95 % and 99 % of the batches of results are taken by the store within this time.",
        *[Query(quantile(q, "commit_duration_seconds", by=""), f"{q * 100:g} %") for q in (0.5, 0.95, 0.99)],
    )
    yield graph(
        "Outages",
        "short",
        "Rounds of workers that ended because the store did not answer, in five minutes.",
        Query(f"sum by (instance) (increase(gristmill_store_outages_total{{{HOST}}}[5m]))", "{{instance}}"),
    )


def _store() -> Panels:
    yield graph(
        "Memory",
        "bytes",
        "What the store's data take, what its process takes, and its limit.",
        Query("max(redis_memory_used_bytes) or max(gristmill_store_used_bytes)", "used"),
        Query("max(redis_memory_used_rss_bytes)", "resident"),
        Query("max(gristmill_store_limit_bytes)", "limit"),
    )
    yield graph(
        "Log on the disk",
        "bytes",
        "Size of the append-only file now and after its last rewrite.",
        Query("max(redis_aof_current_size_bytes)", "now"),
        Query("max(redis_aof_base_size_bytes)", "after rewrite"),
    )
    yield graph(
        "Log in trouble",
        "short",
        "1 while the last write or rewrite failed; delayed fsyncs in five minutes mean a slow disk.",
        Query("1 - min(redis_aof_last_write_status)", "write failed"),
        Query("1 - min(redis_aof_last_bgrewrite_status)", "rewrite failed"),
        Query("sum(delta(redis_aof_delayed_fsync[5m]))", "delayed fsyncs"),
    )
    yield graph(
        "Commands",
        "ops",
        "Commands that the store runs; a queue needs a few per batch, not per request.",
        Query("sum(rate(redis_commands_processed_total[$__rate_interval]))", "commands"),
    )
    yield graph(
        "Look at the store",
        "s",
        "How long a daemon's regular look at the store and its jobs takes.",
        Query(f"max by (instance) (gristmill_store_look_seconds{{{HOST}}})", "{{instance}}"),
    )
    yield graph(
        "Connections",
        "short",
        "Clients that are connected to the store.",
        Query("max(redis_connected_clients)", "clients"),
    )
