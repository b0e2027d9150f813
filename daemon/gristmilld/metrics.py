"""Every metric of the daemon: its name, its meaning, its labels. Names are a contract: dashboards and alerts use them.

Three sources, told apart by who knows:

* **Workers** count what they do, each into files of its own that are named by its slot (`gristmilld.metricsdir`), and
  the server sums them. Counters go on over restarts of a worker; gauges of a dead one vanish with it.
* **The supervisor** knows who lives and how the others died; it leaves that as a small file.
* **The store** knows jobs, queues and feeders; the server looks every few seconds. Such gauges are the same whichever
  daemon of a store is asked.

Labels are bounded: endpoints by the configuration (those that jobs bring along are `OTHER_ENDPOINT`), classes and
states by their tables, processes by the slots. A job id labels only gauges from the store, `MOST_JOBS` of them at a
time; the rest are summed under `OTHER_JOBS`. What a job is called and its model stand on `JOB_INFO` alone, to be joined
on the job id.

Nothing here imports prometheus_client, so the process that forks can know the names.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

MOST_JOBS = 50
OTHER_JOBS = "other"
"""The label of all jobs beyond `MOST_JOBS`; a real job of this name would be summed with them."""
OK = "ok"
"""The outcome of a good attempt and the class of a good request; other values are those of `FailureClass`."""
OTHER_ENDPOINT = "other"
"""An endpoint that the configuration does not name: a base URL that a job brought along."""
NO_REASON = "none"
"""The reason of a job that is not paused."""
MODEL_BY_REQUEST = "by request"
"""The model of a job whose requests name it themselves."""
LONGEST_LABEL = 80
"""Characters of a name or model that a label shows: users choose them."""
NO_ENDPOINT = "none"
"""The endpoint of a request that ended without a call."""


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(msgspec.Struct, frozen=True):
    """One family of time series. `bounds` are a histogram's upper bounds, in the unit of its name."""

    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(Kind.COUNTER, f"gristmill_{name}_total", text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(Kind.GAUGE, f"gristmill_{name}", text, labels)


def _histogram(name: str, text: str, *labels: str, bounds: tuple[float, ...]) -> Metric:
    return Metric(Kind.HISTOGRAM, f"gristmill_{name}", text, labels, bounds)


_CALL_BOUNDS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1800, 3600)
_COMMIT_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)

# -- workers: what they did

ATTEMPTS = _counter(
    "attempts", "Calls made, by what came back: ok, or the class of the failure.", "endpoint", "outcome"
)
REQUESTS = _counter(
    "requests",
    "Requests finished here, by class (ok, or why they failed) and the endpoint of the last call. Of two workers that "
    "finish the same request after a lost lease both count it; the store keeps one result.",
    "endpoint",
    "class",
)
TOKENS = _counter("tokens", "Tokens that the servers reported, over all calls.", "endpoint", "direction")
CALL_SECONDS = _histogram(
    "call_duration_seconds",
    "From the start of a call to its last byte or its failure.",
    "endpoint",
    "result",
    bounds=_CALL_BOUNDS_S,
)
FIRST_BYTE_SECONDS = _histogram(
    "first_byte_seconds",
    "From the start of a call to the headers of its response.",
    "endpoint",
    bounds=_CALL_BOUNDS_S,
)
CLAIMED = _counter("claimed_requests", "Requests taken from the queue.")
RETURNED = _counter("returned_requests", "Requests given back to the queue unfinished.")
COMMITTED = _counter(
    "committed_results",
    "Results and returns sent to the store, by what it said: new, duplicate (answered before), stale (a return of a "
    "claim that was not held any more), ahead (the store has lost its last writes and does not know the request).",
    "status",
)
COMMIT_SECONDS = _histogram(
    "commit_duration_seconds", "How long the store took to take a batch of results.", bounds=_COMMIT_BOUNDS_S
)
LEASES_LOST = _counter("leases_lost", "Times that a worker found its lease gone and its requests given to others.")
STORE_OUTAGES = _counter("store_outages", "Rounds of a worker that ended because the store did not answer.")
LOOP_LAG_SECONDS = _histogram(
    "loop_lag_seconds",
    "How late a worker's event loop woke up, looked at every 0.25 s.",
    "process",
    bounds=_LAG_BOUNDS_S,
)
CPU_SECONDS = _counter("cpu_seconds", "Processor time of a worker, over all its generations.", "process")

# -- workers: how they stand

SLOTS = _gauge("slots", "Requests that the living workers can have in flight.")
IN_FLIGHT = _gauge("in_flight_requests", "Requests that have a slot: being called, or waiting briefly to be.")
IN_FLIGHT_BYTES = _gauge("in_flight_bytes", "Bytes of requests in flight: text or pictures.", "kind")
IN_FLIGHT_BYTES_LIMIT = _gauge("in_flight_limit_bytes", "The most that the living workers allow of either kind.")
ENDPOINT_IN_FLIGHT = _gauge("endpoint_in_flight_calls", "Calls in flight to an endpoint.", "endpoint")
ENDPOINT_LIMIT = _gauge("endpoint_limit_calls", "Calls that may be in flight to an endpoint just now.", "endpoint")
ENDPOINT_STATE = _gauge(
    "endpoint_state", "Workers that see an endpoint in this state: ok, limited, cooling or down.", "endpoint", "state"
)

WORKER_METRICS = (
    ATTEMPTS, REQUESTS, TOKENS, CALL_SECONDS, FIRST_BYTE_SECONDS, CLAIMED, RETURNED, COMMITTED, COMMIT_SECONDS,
    LEASES_LOST, STORE_OUTAGES, LOOP_LAG_SECONDS, CPU_SECONDS, SLOTS, IN_FLIGHT, IN_FLIGHT_BYTES,
    IN_FLIGHT_BYTES_LIMIT, ENDPOINT_IN_FLIGHT, ENDPOINT_LIMIT, ENDPOINT_STATE,
)  # fmt: skip
ENDPOINT_STATES = ("ok", "limited", "cooling", "down")
COMMIT_STATUSES = ("new", "duplicate", "stale", "ahead")

# -- the supervisor

BUILD = _gauge("build_info", "Always 1; the version that runs.", "version")
PROCESS_UP = _gauge("process_up", "Whether the child lives and its loop turns.", "process")
PROCESS_RESTARTS = _counter("process_restarts", "Starts of a child after its first.", "process")
PROCESS_DEATHS = _counter(
    "process_deaths",
    "Ends of children, by cause: crashed, hung, stopped (on request), left (by itself), unfit (can't run as set up).",
    "process",
    "cause",
)

# -- the store

STORE_UP = _gauge("store_up", "Whether the store answered at the last look; without it there are no job metrics.")
STORE_FIT = _gauge("store_fit", "Whether the store is set up so that no request can get lost in it.")
STORE_LOOK_SECONDS = _gauge("store_look_seconds", "How long the last look at the store took.")
STORE_USED_BYTES = _gauge("store_used_bytes", "Memory that the store uses.")
STORE_LIMIT_BYTES = _gauge("store_limit_bytes", "Its memory limit; 0 is none.")
DAEMONS = _gauge("daemons", "Daemons that are registered in the store.")
JOBS = _gauge("jobs", "Jobs in the store.", "state")

JOB_INFO = _gauge(
    "job_info",
    "Always 1: what a job is called and the model that it was submitted for, to be joined on job_id.",
    "job_id",
    "name",
    "model",
)
JOB_REQUESTS = _gauge(
    "job_requests",
    "Sealed requests of a job, by place: fresh and waiting are the queue; in_flight; ok and failed are done.",
    "job_id",
    "place",
)
JOB_FAILED = _gauge("job_failed_requests", "Requests of a job that failed, by class.", "job_id", "class")
JOB_STATE = _gauge(
    "job_state",
    "1 for the state that a job is in; `reason` says who has to act on a paused one (user, config, budget, store).",
    "job_id",
    "state",
    "reason",
)
JOB_STALLED = _gauge(
    "job_stalled",
    "1 for a job of which nothing has finished for long (stalled_after_s), with what it waits for.",
    "job_id",
    "reason",
)
JOB_AGE_SECONDS = _gauge(
    "job_age_seconds", "Time since an unfinished job was made; its first requests wait since.", "job_id"
)
JOB_SUSPECTS = _gauge("job_suspect_requests", "Waiting requests that a worker died with and that run apart.", "job_id")
JOB_PAYLOAD_BYTES = _gauge("job_payload_bytes", "Bytes of requests that the store holds for a job.", "job_id")
JOB_PAYLOAD_MARK = _gauge("job_payload_mark_bytes", "Above it the job's feeder waits.", "job_id")
JOB_RESULTS = _gauge("job_uncollected_results", "Results that no collector has taken yet.", "job_id")
JOB_RESULTS_BYTES = _gauge("job_uncollected_bytes", "Bytes of these results.", "job_id")
JOB_RESULTS_MARK = _gauge("job_results_mark_bytes", "Above it no fresh request is handed out.", "job_id")
JOB_ATTEMPTS = _gauge("job_attempts", "Calls made for the requests that are done.", "job_id")
JOB_TOKENS = _gauge("job_tokens", "Tokens of the results of a job.", "job_id", "direction")
JOB_REDELIVERED = _gauge("job_redelivered_requests", "Requests taken from a dead or expired worker so far.", "job_id")
JOB_DUPLICATES = _gauge("job_duplicate_results", "Results that came late and were not needed.", "job_id")
JOB_STALE = _gauge("job_stale_returns", "Returns of claims that were not held any more.", "job_id")
JOB_MISSING = _gauge("job_missing_payloads", "Claimed requests whose payload was not in the store.", "job_id")
JOB_FEEDER_UP = _gauge("job_feeder_up", "Feeders at work: 1 or 0.", "job_id")
JOB_FEEDER_WAITING = _gauge("job_feeder_waiting", "A feeder waits at the payload mark: 1 or 0.", "job_id")
JOB_FEEDER_LOST = _gauge("job_feeder_lost", "The feeder died before the input was in: 1 or 0.", "job_id")
JOB_COLLECTOR_UP = _gauge("job_collector_up", "Collectors at work: 1 or 0.", "job_id")
JOB_COLLECTOR_WANTED = _gauge(
    "job_collector_wanted", "The results are at their mark and nobody collects them: 1 or 0.", "job_id"
)
JOB_PICTURES = _gauge("job_encoded_pictures", "Pictures that the job's feeder has made fit to send.", "job_id")
JOB_PICTURES_READ_BYTES = _gauge("job_pictures_read_bytes", "Bytes of these pictures before.", "job_id")
JOB_PICTURES_SENT_BYTES = _gauge("job_pictures_sent_bytes", "Bytes of these pictures after.", "job_id")
JOB_ENCODER_SECONDS = _gauge("job_encoder_seconds", "Time that encoders have spent on them.", "job_id")
