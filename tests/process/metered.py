"""Processes for the tests of metrics: ``python -m tests.process.metered worker NAME`` and ``... server SPEC``.

A worker counts what it is told by lines of JSON on stdin, flushes, and answers each with a line; it ends with stdin.
A server runs as in the daemon. The folder of the metrics is in the environment.
"""

from __future__ import annotations

import json
import sys

import msgspec

from gristmilld.config import DaemonConfig, ServerSpec

RECORD = {"ok": bytes([1, ord("K"), 0, 0]) + bytes(12), "bad_request": bytes([1, ord("F"), 7, 0]) + bytes(12)}


def worker(name: str) -> int:
    from gristmilld.meter import EndpointState, WorkerMetrics, WorkerState

    meter = WorkerMetrics.open(name, ["here"])
    print("up", flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        for outcome, latency_ms in told.get("attempts", []):
            meter.attempt("here", outcome, latency_ms, latency_ms / 2, 10, 20)
        for cls in told.get("settled", []):
            meter.settled("here", RECORD[cls])
        in_flight = told.get("in_flight", 0)
        meter.flush(WorkerState(64, in_flight, 1000, 500, 2000, [EndpointState("here", in_flight, 64, "ok")]))
        print("done", flush=True)
    return 0


def server(text: str) -> int:
    from gristmilld.server.main import run_server

    told = json.loads(text)
    config = DaemonConfig(redis=told.pop("redis"), endpoints=[], metrics_port=0)
    return run_server(msgspec.convert({"generation": 0, **told, "config": config}, ServerSpec))


if __name__ == "__main__":
    raise SystemExit({"worker": worker, "server": server}[sys.argv[1]](sys.argv[2]))
