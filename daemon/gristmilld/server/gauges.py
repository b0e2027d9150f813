"""From a look at the store, and the supervisor's word, to metric families. PURE but for prometheus_client's types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from gristmill import __version__
from gristmill.contract.lifecycle import TERMINAL, JobState
from gristmill.queue.feedstats import FeedStats
from gristmill.queue.replies import JobSnapshot
from gristmilld import metrics
from gristmilld.metrics import LONGEST_LABEL, MODEL_BY_REQUEST, MOST_JOBS, NO_REASON, OTHER_JOBS, Kind, Metric
from gristmilld.metricsdir import Supervision
from gristmilld.server.look import About, StoreView

Value: TypeAlias = tuple[Metric, tuple[str, ...], float]
"""A metric, the values of its labels, and what it shows."""

_RUN_BYTES = 4 << 20
"""The largest run that a feeder seals; with less room than that it waits."""


def of_supervision(supervision: Supervision) -> Iterable[Family]:
    """Who lives, who was restarted, how the others died."""
    values: list[Value] = [(metrics.BUILD, (__version__,), 1)]
    for process, starts in supervision.starts.items():
        values.append((metrics.PROCESS_UP, (process,), process in supervision.up))
        values.append((metrics.PROCESS_RESTARTS, (process,), starts - 1))
    for process, causes in supervision.deaths.items():
        values += [(metrics.PROCESS_DEATHS, (process, cause), count) for cause, count in causes.items()]
    return _families(values)


def of_store(view: StoreView | None) -> Iterable[Family]:
    """The store and its jobs; only that it is away when it is."""
    if view is None or not view.up:
        return _families([(metrics.STORE_UP, (), 0), (metrics.STORE_FIT, (), 0)])
    values: list[Value] = [
        (metrics.STORE_UP, (), 1),
        (metrics.STORE_FIT, (), not view.trouble),
        (metrics.STORE_LOOK_SECONDS, (), view.look_s),
        (metrics.DAEMONS, (), len(view.daemons)),
    ]
    if view.info is not None:
        values.append((metrics.STORE_USED_BYTES, (), view.info.used_memory_bytes))
        values.append((metrics.STORE_LIMIT_BYTES, (), view.info.max_memory_bytes))
    states = [job.state for job in view.jobs]
    values += [(metrics.JOBS, (state.value,), states.count(state)) for state in JobState]
    return _families([*values, *_of_jobs(view)])


def _of_jobs(view: StoreView) -> Iterator[Value]:
    ranked = sorted(view.jobs, key=lambda job: (job.state in TERMINAL, -job.created_at_ms, job.job))
    for place, job in enumerate(ranked):
        label = job.job if place < MOST_JOBS else OTHER_JOBS
        for metric, labels, value in _of_job(job, view.feeds.get(job.job)):
            yield metric, (label, *labels), value
        if job.job in view.stalls:
            yield metrics.JOB_STALLED, (label, view.stalls[job.job].reason.value), 1
    yield from _of_named_jobs(ranked[:MOST_JOBS], view.abouts)
    if len(ranked) > MOST_JOBS:
        yield metrics.JOB_INFO, (OTHER_JOBS, OTHER_JOBS, OTHER_JOBS), 1


def _of_named_jobs(jobs: Sequence[JobSnapshot], abouts: Mapping[str, About]) -> Iterator[Value]:
    """What says nothing when it is summed."""
    for job in jobs:
        if job.state not in TERMINAL:
            yield metrics.JOB_AGE_SECONDS, (job.job,), (job.now_ms - job.created_at_ms) / 1000
        about = abouts.get(job.job)
        if about is not None:
            model = MODEL_BY_REQUEST if about.model is None else about.model
            yield metrics.JOB_INFO, (job.job, about.name[:LONGEST_LABEL], model[:LONGEST_LABEL]), 1


def _of_job(job: JobSnapshot, feed: FeedStats | None) -> Iterator[Value]:
    places = {
        "fresh": job.fresh,
        "waiting": job.waiting,
        "in_flight": job.in_flight,
        "ok": job.ok,
        "failed": job.failed,
    }
    for place, count in places.items():
        yield metrics.JOB_REQUESTS, (place,), count
    yield metrics.JOB_STATE, (job.state.value, job.reason.value if job.reason else NO_REASON), 1
    for cls, count in job.by_class.items():
        yield metrics.JOB_FAILED, (cls.value,), count
    yield metrics.JOB_TOKENS, ("prompt",), job.prompt_tokens
    yield metrics.JOB_TOKENS, ("completion",), job.completion_tokens
    plain = {
        metrics.JOB_SUSPECTS: job.suspects,
        metrics.JOB_PAYLOAD_BYTES: job.payload_bytes,
        metrics.JOB_PAYLOAD_MARK: job.payload_mark_bytes,
        metrics.JOB_RESULTS: job.done - job.acked,
        metrics.JOB_RESULTS_BYTES: job.results_bytes,
        metrics.JOB_RESULTS_MARK: job.results_mark_bytes,
        metrics.JOB_ATTEMPTS: job.attempts,
        metrics.JOB_REDELIVERED: job.redelivered,
        metrics.JOB_DUPLICATES: job.dup,
        metrics.JOB_STALE: job.stale,
        metrics.JOB_MISSING: job.missing,
        metrics.JOB_FEEDER_UP: job.feeder is not None,
        metrics.JOB_FEEDER_WAITING: _feeder_waits(job, feed),
        metrics.JOB_FEEDER_LOST: job.feeder_lost,
        metrics.JOB_COLLECTOR_UP: job.collector is not None,
        metrics.JOB_COLLECTOR_WANTED: job.collector is None and job.results_bytes >= job.results_mark_bytes,
    }
    for metric, value in plain.items():
        yield metric, (), value
    if feed is not None:
        yield metrics.JOB_PICTURES, (), feed.pictures
        yield metrics.JOB_PICTURES_READ_BYTES, (), feed.read_bytes
        yield metrics.JOB_PICTURES_SENT_BYTES, (), feed.sent_bytes
        yield metrics.JOB_ENCODER_SECONDS, (), feed.encode_s


def _feeder_waits(job: JobSnapshot, feed: FeedStats | None) -> bool:
    """Its own word where it speaks; else whether another run would fit."""
    if job.feeder is None or job.closed:
        return False
    if feed is not None:
        return feed.waiting
    return 0 < job.payload_mark_bytes - min(_RUN_BYTES, job.payload_mark_bytes // 8) < job.payload_bytes


def _families(values: Iterable[Value]) -> Iterable[Family]:
    """Gather values into families; those with equal labels are added up."""
    sums: dict[str, tuple[Metric, dict[tuple[str, ...], float]]] = {}
    for metric, labels, value in values:
        series = sums.setdefault(metric.name, (metric, {}))[1]
        series[labels] = series.get(labels, 0.0) + value
    for metric, series in sums.values():
        make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        family = make(metric.name, metric.help, labels=metric.labels)
        for labels, value in series.items():
            family.add_metric(labels, value)
        yield family
