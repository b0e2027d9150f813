"""How soon the first request is in flight: `producer submit` on a daemon that is up and has nothing to do.

The clock runs from the end of the CLI's imports (see `clients/submit.py`) until the endpoint has the first request.
What the feeder, a process that the CLI starts, imports is part of it. Before anything is measured, a small job goes
through the daemon, so that it has its connections and scripts, and it tells which modules the CLI imports.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench import inputs
from bench.run import ROOT, RUN_LIMIT_S, Bench, end_group, script, tell

WARM_UP_REQUESTS = 200
IDLE_S = 1.5
"""Once its job is gone, a daemon has forgotten it and looks for new ones often, as when it never had one."""


@contextlib.contextmanager
def warm_daemon(bench: Bench) -> Iterator[None]:
    """`gristmilld up` with its defaults, for as long as the block lasts.

    Raises:
        RuntimeError: it does not bring a small job back.
    """
    bench.store.empty()
    bench.modules.unlink(missing_ok=True)
    state = ["--state-dir", str(bench.store.state_dir)]
    argv = [script("gristmilld"), "up", *state, "-e", f"{bench.endpoint.url}/v1", "--no-metrics"]
    with bench.log_file("daemon.log").open("wb") as log:
        daemon = subprocess.Popen(argv, env=bench.env(), stdout=log, stderr=log, start_new_session=True)
    try:
        _warm_up(bench, daemon)
        yield
    finally:
        end_group(daemon)


def _warm_up(bench: Bench, daemon: subprocess.Popen[bytes]) -> None:
    source, out = inputs.text(bench.folder, WARM_UP_REQUESTS, size=200), bench.folder / "warm.jsonl"
    with _submit(bench, source, "--wait", "-o", str(out)) as submit:
        if submit.wait(timeout=RUN_LIMIT_S) != 0 or daemon.poll() is not None:
            raise RuntimeError(f"the daemon did not do its first job: {_tail(bench)}")
    out.unlink()
    shutil.rmtree(out.with_name(out.name + ".gm"), ignore_errors=True)


def first_request_s(bench: Bench, source: Path) -> float:
    """Seconds from the end of the imports to the first request at the endpoint; the job is then removed.

    Raises:
        RuntimeError: the command ended without a request.
    """
    bench.endpoint.reset()
    bench.mark.unlink(missing_ok=True)
    started_s = time.time()
    with _submit(bench, source) as submit:
        try:
            first_s = _wait_for_first(bench, submit)
        finally:
            end_group(submit)
    _remove_jobs(bench)
    mark = json.loads(bench.mark.read_text(encoding="utf-8"))
    taken_s = first_s - mark["ready_s"]
    tell(
        f"  {source.stem:20} {taken_s:.3f} s after {mark['imports_s']:.3f} s of imports; "
        f"{first_s - started_s:.3f} s after exec"
    )
    return taken_s


def _wait_for_first(bench: Bench, submit: subprocess.Popen[bytes]) -> float:
    deadline = time.monotonic() + RUN_LIMIT_S
    while (first_s := bench.endpoint.stats()["first_s"]) is None:
        if submit.poll() not in (None, 0) or time.monotonic() > deadline:
            raise RuntimeError(f"producer submit ended without a request: {_tail(bench)}")
        time.sleep(0.05)
    return float(first_s)


@contextlib.contextmanager
def _submit(bench: Bench, source: Path, *extra: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "bench.clients.submit", str(bench.modules), str(bench.mark), "--"]
    argv += [str(source), "-m", "bench", "--state-dir", str(bench.store.state_dir), *extra]
    with bench.log_file("client.log").open("wb") as log:
        yield subprocess.Popen(argv, cwd=ROOT, env=bench.env(), stdout=log, stderr=log, start_new_session=True)


def _remove_jobs(bench: Bench) -> None:
    """Remove every job by the CLI, under the daemon's eyes, and return once it is idle."""
    state = ["--state-dir", str(bench.store.state_dir)]
    producer, null = script("producer"), subprocess.DEVNULL
    shown = subprocess.run([producer, "ls", "--json", *state], env=bench.env(), capture_output=True, check=True)
    for row in json.loads(shown.stdout):
        argv = [producer, "rm", "--force", row["job"], *state]
        subprocess.run(argv, env=bench.env(), check=True, stdout=null, stderr=null)
    while bench.store.jobs():
        time.sleep(0.05)
    time.sleep(IDLE_S)


def _tail(bench: Bench) -> str:
    texts = (
        bench.log_file(name).read_text(encoding="utf-8", errors="replace") for name in ("client.log", "daemon.log")
    )
    return "\n".join(text[-700:] for text in texts)
