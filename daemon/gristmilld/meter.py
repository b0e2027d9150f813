"""What a worker counts, cheaply, and how it reaches the value files.

A request costs a few additions to plain integers here; they are written into prometheus_client's files once a second
from the loop, a batch at a time. A worker that is killed loses the counts of its last second, nothing else.

The value files are named by the worker's slot, and made after the fork by `WorkerMetrics.open`. Without the folder
(`metricsdir.current`) the counts go nowhere, and prometheus_client is never loaded. The files are mapped into memory,
so their place on the disk is taken at the start: a full disk then costs the metrics, not (by SIGBUS) the worker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from gristmill.contract.failure import CLASSES
from gristmilld import metrics, metricsdir
from gristmilld.clock import Clock, monotonic_s
from gristmilld.metrics import NO_ENDPOINT, OK, OTHER_ENDPOINT, Kind, Metric

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram

log = logging.getLogger(__name__)

FLUSH_S = 1.0
LAG_TICK_S = 0.25
_CLASS_OF_CODE = {0: OK, **{code: cls.value for code, cls in CLASSES.items()}}
_CLASS_BYTE = 2  # in the header of a record, see `gristmill.contract.record`
_FAILED = "failed"
_GAUGE_MODE = "livesum"
_RESERVED_BYTES = 64 << 10
_RESERVED_BYTES_PER_ENDPOINT = 64 << 10
"""Of each value file: all series of an endpoint with a long name take half of it."""


class EndpointState(msgspec.Struct, frozen=True):
    """One endpoint as this worker sees it; `state` is one of `metrics.ENDPOINT_STATES`."""

    name: str
    in_flight: int
    limit: int
    state: str


class WorkerState(msgspec.Struct, frozen=True):
    """How a worker stands; `max_bytes` is the limit of text and of pictures, each."""

    slots: int
    in_flight: int
    text_bytes: int
    picture_bytes: int
    max_bytes: int
    endpoints: list[EndpointState]


class _Tally:
    """A histogram that has not been written yet; `bounds` and values in the same unit."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def take(self) -> tuple[list[int], float]:
        """The counts of each bucket (not cumulated) and the sum since the last call."""
        taken = self.counts, self.total
        self.counts, self.total = [0] * (len(self._bounds) + 1), 0.0
        return taken


_CALL_BOUNDS_MS = tuple(bound * 1000 for bound in metrics.CALL_SECONDS.bounds)


class _Calls:
    """What the calls to one endpoint came to since the last flush."""

    __slots__ = ("completion_tokens", "failed_ms", "first_byte_ms", "ok_ms", "outcomes", "prompt_tokens")

    def __init__(self) -> None:
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.ok_ms = _Tally(_CALL_BOUNDS_MS)
        self.failed_ms = _Tally(_CALL_BOUNDS_MS)
        self.first_byte_ms = _Tally(_CALL_BOUNDS_MS)
        self.prompt_tokens = self.completion_tokens = 0


class WorkerMetrics:
    """The counts of one worker process. In a worker, take the one that `open` gives; without files it is off.

    Args:
        endpoints: names of the configured endpoints; all others are counted as `OTHER_ENDPOINT`.
        files: where the counts go.
        cpu: the processor time that this process has used, in seconds.
    """

    def __init__(
        self,
        endpoints: Iterable[str] = (),
        files: ValueFiles | None = None,
        *,
        cpu: Clock = time.process_time,
    ) -> None:
        self._calls = {name: _Calls() for name in (*endpoints, OTHER_ENDPOINT)}
        self._other = self._calls[OTHER_ENDPOINT]
        self._settled: defaultdict[tuple[str | None, int], int] = defaultdict(int)
        self._plain: defaultdict[tuple[Metric, str], int] = defaultdict(int)
        self._lag_s = _Tally(metrics.LOOP_LAG_SECONDS.bounds)
        self._commit_s = _Tally(metrics.COMMIT_SECONDS.bounds)
        self._cpu_s = cpu
        self._cpu_counted_s = 0.0
        self._files = files
        if files is not None:
            self._begin_at_zero(files)

    @classmethod
    def open(cls, process: str, endpoints: Sequence[str]) -> Self:
        """The metrics of this process; call it after the fork, once. Off where the daemon's are, or the disk is full.

        Args:
            process: the slot's name, ``worker-0``.
            endpoints: as above.
        """
        folder = metricsdir.current()
        if folder is None:
            return cls(endpoints)
        try:
            reserve_bytes = _RESERVED_BYTES + len(endpoints) * _RESERVED_BYTES_PER_ENDPOINT
            return cls(endpoints, ValueFiles(folder, process, reserve_bytes))
        except OSError as error:
            log.warning("this worker has no metrics: %s: %s", folder, error.strerror)
            return cls(endpoints)

    # -- once a request

    def attempt(
        self,
        endpoint: str,
        outcome: str,
        latency_ms: float,
        first_byte_ms: float | None,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
    ) -> None:
        """A call ended: `outcome` is `OK` or the class of its failure; `first_byte_ms` None when no headers came."""
        calls = self._calls.get(endpoint, self._other)
        calls.outcomes[outcome] += 1
        (calls.ok_ms if outcome == OK else calls.failed_ms).add(latency_ms)
        if first_byte_ms is not None:
            calls.first_byte_ms.add(first_byte_ms)
        calls.prompt_tokens += prompt_tokens
        calls.completion_tokens += completion_tokens

    def settled(self, endpoint: str | None, record: bytes) -> None:
        """A request has its terminal `record`; `endpoint` is that of its last call, None when it had none."""
        self._settled[endpoint, record[_CLASS_BYTE]] += 1

    # -- once a batch

    def claimed(self, count: int) -> None:
        self._plain[metrics.CLAIMED, ""] += count

    def committed(self, *, took_s: float, returned: int, new: int, dup: int, stale: int, ahead: int) -> None:
        """The store has answered, after `took_s`, a batch that held `returned` returns."""
        self._commit_s.add(took_s)
        self._plain[metrics.RETURNED, ""] += returned
        for status, count in zip(metrics.COMMIT_STATUSES, (new, dup, stale, ahead), strict=True):
            self._plain[metrics.COMMITTED, status] += count

    def lease_lost(self) -> None:
        self._plain[metrics.LEASES_LOST, ""] += 1

    def store_outage(self) -> None:
        self._plain[metrics.STORE_OUTAGES, ""] += 1

    # -- once a second

    async def run(self, read: Callable[[], WorkerState]) -> None:
        """Watch the loop's lag and write everything out each second, until cancelled, and then once more.

        Where metrics are off, it returns at once.
        """
        if self._files is None:
            return
        flush_at_s = monotonic_s()
        try:
            while True:
                now_s = monotonic_s()
                if now_s >= flush_at_s:
                    self.flush(read())
                    flush_at_s = now_s + FLUSH_S
                await asyncio.sleep(LAG_TICK_S)
                self._lag_s.add(max(0.0, monotonic_s() - now_s - LAG_TICK_S))
        finally:
            self.flush(read())

    def flush(self, state: WorkerState) -> None:
        """Write out what was counted since the last flush, and how the worker stands."""
        files = self._files
        if files is None:
            return
        for name, calls in self._calls.items():
            self._flush_calls(files, name, calls)
        for (endpoint, code), count in self._settled.items():
            label = NO_ENDPOINT if endpoint is None else endpoint if endpoint in self._calls else OTHER_ENDPOINT
            files.counter(metrics.REQUESTS, label, _CLASS_OF_CODE[code]).inc(count)
        for (metric, label), count in self._plain.items():
            files.counter(metric, *([label] if label else [])).inc(count)
        self._settled.clear()
        self._plain.clear()
        files.add(metrics.LOOP_LAG_SECONDS, (files.process,), self._lag_s.take())
        files.add(metrics.COMMIT_SECONDS, (), self._commit_s.take())
        cpu_s = self._cpu_s()
        files.counter(metrics.CPU_SECONDS, files.process).inc(cpu_s - self._cpu_counted_s)
        self._cpu_counted_s = cpu_s
        self._flush_state(files, state)

    @staticmethod
    def _flush_calls(files: ValueFiles, name: str, calls: _Calls) -> None:
        for outcome, count in calls.outcomes.items():
            files.counter(metrics.ATTEMPTS, name, outcome).inc(count)
        calls.outcomes.clear()
        files.counter(metrics.TOKENS, name, "prompt").inc(calls.prompt_tokens)
        files.counter(metrics.TOKENS, name, "completion").inc(calls.completion_tokens)
        calls.prompt_tokens = calls.completion_tokens = 0
        for metric, labels, tally in (
            (metrics.CALL_SECONDS, (name, OK), calls.ok_ms),
            (metrics.CALL_SECONDS, (name, _FAILED), calls.failed_ms),
            (metrics.FIRST_BYTE_SECONDS, (name,), calls.first_byte_ms),
        ):
            counts, total_ms = tally.take()
            files.add(metric, labels, (counts, total_ms / 1000))

    @staticmethod
    def _flush_state(files: ValueFiles, state: WorkerState) -> None:
        files.gauge(metrics.SLOTS).set(state.slots)
        files.gauge(metrics.IN_FLIGHT).set(state.in_flight)
        files.gauge(metrics.IN_FLIGHT_BYTES, "text").set(state.text_bytes)
        files.gauge(metrics.IN_FLIGHT_BYTES, "pictures").set(state.picture_bytes)
        files.gauge(metrics.IN_FLIGHT_BYTES_LIMIT).set(state.max_bytes)
        for endpoint in state.endpoints:
            files.gauge(metrics.ENDPOINT_IN_FLIGHT, endpoint.name).set(endpoint.in_flight)
            files.gauge(metrics.ENDPOINT_LIMIT, endpoint.name).set(endpoint.limit)
            for known in metrics.ENDPOINT_STATES:
                files.gauge(metrics.ENDPOINT_STATE, endpoint.name, known).set(known == endpoint.state)

    def _begin_at_zero(self, files: ValueFiles) -> None:
        """Series that will surely come are there from the start, so that their first rise is seen."""
        for name in self._calls:
            files.counter(metrics.ATTEMPTS, name, OK)
            files.counter(metrics.REQUESTS, name, OK)
        for metric in (metrics.CLAIMED, metrics.RETURNED, metrics.LEASES_LOST, metrics.STORE_OUTAGES):
            files.counter(metric)
        for status in metrics.COMMIT_STATUSES:
            files.counter(metrics.COMMITTED, status)


class ValueFiles:
    """prometheus_client's objects over the value files of one process; every series is looked up once.

    Only the metrics of `metrics.WORKER_METRICS` are kept in files.

    Args:
        folder: of the daemon.
        process: the slot's name, and that of the files.
        reserve_bytes: of disk for each file.

    Raises:
        OSError: the disk is full, or the folder is gone.
    """

    def __init__(self, folder: Path, process: str, reserve_bytes: int = _RESERVED_BYTES) -> None:
        self.process = process
        metricsdir.forget_gauges(folder, process)  # of a generation whose death nobody could tidy up after
        for kind in ("counter", "histogram", f"gauge_{_GAUGE_MODE}"):
            metricsdir.reserve(folder / f"{kind}_{process}.db", reserve_bytes)
        import prometheus_client
        from prometheus_client import values

        values.ValueClass = values.MultiProcessValue(lambda: process)  # type: ignore[no-untyped-call]  # not annotated
        registry = prometheus_client.CollectorRegistry()
        self._families: dict[str, Any] = {}
        self._series: dict[tuple[str, ...], Any] = {}
        for metric in metrics.WORKER_METRICS:
            options: dict[str, Any] = {"registry": registry}
            if metric.kind is Kind.GAUGE:
                options["multiprocess_mode"] = _GAUGE_MODE
            if metric.kind is Kind.HISTOGRAM:
                options["buckets"] = metric.bounds
            make = getattr(prometheus_client, metric.kind.value.title())
            self._families[metric.name] = make(metric.name, metric.help, metric.labels, **options)

    def counter(self, metric: Metric, *labels: str) -> Counter:
        found: Counter = self._one(metric, labels)
        return found

    def gauge(self, metric: Metric, *labels: str) -> Gauge:
        found: Gauge = self._one(metric, labels)
        return found

    def add(self, metric: Metric, labels: tuple[str, ...], batch: tuple[list[int], float]) -> None:
        """Add many observations to a histogram at once: `batch` is the count of each bucket, and their sum.

        prometheus_client has only `observe`, one at a time, at several microseconds each; so its parts are used.
        """
        histogram: Histogram = self._one(metric, labels)
        counts, total = batch
        for bucket, count in zip(histogram._buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        if total:
            histogram._sum.inc(total)

    def _one(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        key = (metric.name, *labels)
        found = self._series.get(key)
        if found is None:
            family = self._families[metric.name]
            found = self._series[key] = family.labels(*labels) if labels else family
        return found
