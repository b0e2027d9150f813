"""What a worker counts, and how it reaches prometheus_client."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from gristmill.contract import record
from gristmill.contract.failure import FailureClass
from gristmilld import metricsdir
from gristmilld.meter import EndpointState, ValueFiles, WorkerMetrics, WorkerState
from gristmilld.metrics import OK

IDLE = WorkerState(slots=8, in_flight=0, text_bytes=0, picture_bytes=0, max_bytes=100, endpoints=[])


class Reader:
    """The value files as a scrape sees them."""

    def __init__(self, folder) -> None:
        self.folder = folder

    def value(self, name: str, **labels: str) -> float | None:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self.folder))
        return registry.get_sample_value(name, labels)

    def text(self) -> str:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self.folder))
        return generate_latest(registry).decode()


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Metrics are on; afterwards nothing of them stays in this process."""
    monkeypatch.setenv(metricsdir.ENV, str(tmp_path))
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    yield Reader(tmp_path)
    values.ValueClass.close_all_files()


def encoded(cls: FailureClass | None) -> bytes:
    return record.encode(record.Record(cls, 1, 2, 3, record.Detail(0, None, b"f" * 16)))


def test_each_class_is_counted_under_its_name(files):
    """The class byte of a record's header becomes the label, for every class there is."""
    meter = WorkerMetrics.open("worker-0", ["a"])
    for cls in (None, *FailureClass):
        meter.settled("a", encoded(cls))
    meter.settled(None, encoded(FailureClass.BAD_INPUT))
    meter.flush(IDLE)
    for cls in (OK, *(c.value for c in FailureClass)):
        assert files.value("gristmill_requests_total", endpoint="a", **{"class": cls}) == 1
    assert files.value("gristmill_requests_total", endpoint="none", **{"class": "bad_input"}) == 1


def test_an_endpoint_that_a_job_brought_along_has_no_label_of_its_own(files):
    """Jobs can name any number of base URLs; the series stay those of the configuration, and `other`."""
    meter = WorkerMetrics.open("worker-0", ["a"])
    for number in range(1000):
        meter.attempt(f"http://h{number}", OK, 10, 5)
        meter.settled(f"http://h{number}", encoded(None))
    meter.flush(IDLE)
    assert files.value("gristmill_attempts_total", endpoint="other", outcome="ok") == 1000
    assert files.value("gristmill_requests_total", endpoint="other", **{"class": "ok"}) == 1000
    assert "http://" not in files.text()


def test_all_series_of_many_endpoints_fit_into_what_is_reserved(files):
    """No file grows after its start, so none needs room on a disk that may be full by then."""
    names = [f"an endpoint with a rather long name, number {number}" for number in range(20)]
    meter = WorkerMetrics.open("worker-0", names)
    sizes = {file: file.stat().st_size for file in files.folder.iterdir()}
    for name in names:
        for cls in FailureClass:
            meter.attempt(name, cls, 10, 5)
            meter.settled(name, encoded(cls))
    meter.flush(WorkerState(8, 3, 50, 70, 100, [EndpointState(name, 2, 6, "ok") for name in names]))
    assert {file: file.stat().st_size for file in files.folder.iterdir()} == sizes
    assert len(sizes) == 3


def test_a_worker_on_a_full_disk_works_without_metrics(tmp_path, monkeypatch, caplog):
    """A sentence in the log, and counting goes nowhere."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv(metricsdir.ENV, str(tmp_path))
    monkeypatch.setattr(metricsdir, "reserve", full)
    meter = WorkerMetrics.open("worker-0", ["a"])
    meter.attempt("a", OK, 10, 5)
    meter.flush(IDLE)
    assert list(tmp_path.iterdir()) == []
    assert "this worker has no metrics" in caplog.text
    assert "No space left on device" in caplog.text


def test_a_batch_lands_in_the_buckets_where_single_values_would(files):
    """On a bound (le), between two, and beyond the last: cumulated as Prometheus wants it, sum in seconds."""
    meter = WorkerMetrics.open("worker-0", ["a"])
    for latency_ms in (25, 26, 9_999_999):
        meter.attempt("a", OK, latency_ms, None)
    meter.flush(IDLE)
    labels = {"endpoint": "a", "result": "ok"}
    bucket = "gristmill_call_duration_seconds_bucket"
    assert files.value(bucket, le="0.025", **labels) == 1
    assert files.value(bucket, le="0.05", **labels) == 2
    assert files.value(bucket, le="3600.0", **labels) == 2
    assert files.value(bucket, le="+Inf", **labels) == 3
    assert files.value("gristmill_call_duration_seconds_sum", **labels) == pytest.approx(10000.05)
    assert files.value("gristmill_first_byte_seconds_count", endpoint="a") == 0


def test_a_second_flush_adds_nothing(files):
    """What was written is not written again."""
    meter = WorkerMetrics.open("worker-0", ["a"])
    meter.attempt("a", OK, 10, 5, 7, 8)
    meter.settled("a", encoded(None))
    meter.committed(took_s=0.004, returned=2, new=3, dup=1, stale=0, ahead=0)
    meter.claimed(5)
    for _ in range(3):
        meter.flush(IDLE)
    assert files.value("gristmill_attempts_total", endpoint="a", outcome="ok") == 1
    assert files.value("gristmill_call_duration_seconds_count", endpoint="a", result="ok") == 1
    assert files.value("gristmill_tokens_total", endpoint="a", direction="prompt") == 7
    assert files.value("gristmill_requests_total", endpoint="a", **{"class": "ok"}) == 1
    assert files.value("gristmill_committed_results_total", status="new") == 3
    assert files.value("gristmill_commit_duration_seconds_bucket", le="0.0025") == 0
    assert files.value("gristmill_commit_duration_seconds_bucket", le="0.005") == 1
    assert files.value("gristmill_committed_results_total", status="duplicate") == 1
    assert files.value("gristmill_returned_requests_total") == 2
    assert files.value("gristmill_claimed_requests_total") == 5


def test_series_start_at_zero(files):
    """A rate sees the first event of a series only when the series was there before it."""
    WorkerMetrics.open("worker-0", ["a"])
    assert files.value("gristmill_attempts_total", endpoint="a", outcome="ok") == 0
    assert files.value("gristmill_committed_results_total", status="stale") == 0
    assert files.value("gristmill_leases_lost_total") == 0


def test_processor_time_is_counted_once(files):
    """What the process has used by each flush, not the sum of what was read."""
    used_s = iter([0.5, 2.0])
    meter = WorkerMetrics(["a"], ValueFiles(files.folder, "worker-0"), cpu=lambda: next(used_s))
    meter.flush(IDLE)
    meter.flush(IDLE)
    assert files.value("gristmill_cpu_seconds_total", process="worker-0") == 2.0


def test_gauges_follow_the_state(files):
    """An endpoint that was down and is ok again is in one state."""
    meter = WorkerMetrics.open("worker-0", ["a"])
    for state in ("down", "ok"):
        meter.flush(WorkerState(8, 3, 50, 70, 100, [EndpointState("a", 2, 6, state)]))
    assert files.value("gristmill_endpoint_state", endpoint="a", state="down") == 0
    assert files.value("gristmill_endpoint_state", endpoint="a", state="ok") == 1
    assert files.value("gristmill_endpoint_limit_calls", endpoint="a") == 6
    assert files.value("gristmill_in_flight_bytes", kind="text") == 50
    assert files.value("gristmill_in_flight_bytes", kind="pictures") == 70
    assert files.value("gristmill_in_flight_limit_bytes") == 100


async def test_a_blocked_loop_shows_as_lag(files):
    """A step that holds the loop for 0.3 s is seen as a wake-up at least that late."""
    meter = WorkerMetrics.open("worker-0", [])
    running = asyncio.create_task(meter.run(lambda: IDLE))
    loop = asyncio.get_running_loop()

    def late() -> float:
        meter.flush(IDLE)
        labels = {"process": "worker-0"}
        count = files.value("gristmill_loop_lag_seconds_count", **labels) or 0
        return count - (files.value("gristmill_loop_lag_seconds_bucket", le="0.05", **labels) or 0)

    while not late():
        end_s = loop.time() + 0.6
        while loop.time() < end_s:  # holds the loop, which is the point
            pass
        await asyncio.sleep(0)
    running.cancel()
    assert files.value("gristmill_loop_lag_seconds_sum", process="worker-0") > 0.05


async def test_without_the_folder_metrics_are_off(monkeypatch):
    """Counting goes on at no cost in memory, `run` returns at once, and nothing is written anywhere."""
    monkeypatch.delenv(metricsdir.ENV, raising=False)
    meter = WorkerMetrics.open("worker-0", ["a"])
    meter.attempt("a", OK, 10, 5)
    meter.settled("a", encoded(None))
    await asyncio.wait_for(meter.run(lambda: IDLE), 5)
    meter.flush(IDLE)


def test_the_forking_process_loads_no_prometheus_client():
    """Value files are opened at the first metric, so the library must not be in the process that forks."""
    code = (
        "import sys; import gristmilld.meter, gristmilld.metrics, gristmilld.metricsdir, gristmilld.supervisor.loop;"
        "import gristmilld.worker.main; print('prometheus_client' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr
