"""Records, lines and small work folders for the tests of the outlet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gristmill.contract.failure import CODES, FailureClass
from gristmill.contract.lifecycle import JobState
from gristmill.contract.record import Detail, Record
from gristmill.outlet.finished import FinishedPlan, open_plan
from gristmill.outlet.lines import encode_line, request_key, result_number
from gristmill.outlet.segments import Entry
from gristmill.outlet.workdir import Work
from gristmill.queue.replies import JobSnapshot


def fingerprint(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def record(ordinal: int, *, cls: FailureClass | None = None, text: str = "", **detail: Any) -> Record:
    """A finished record that answers request `text` (by default one of its own per ordinal)."""
    text = text or f"request {ordinal}"
    body = json.dumps(
        {"choices": [{"message": {"content": text}}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    )
    ok: dict[str, Any] = {"status_code": 200, "request_id": "r", "body": body.encode(), "endpoint": "e0"}
    failed: dict[str, Any] = {"message": f"it went wrong as {cls}"}
    values: dict[str, Any] = {"custom_id": f"c-{text}", "fingerprint": fingerprint(text), "latency_ms": 7}
    values |= (failed if cls else ok) | detail
    return Record(cls, 1, 3, 2, Detail(ordinal=ordinal, **values))


def entry(job: str, r: Record) -> Entry:
    d = r.detail
    code = CODES[r.cls] if r.cls else 0
    number = result_number(job, d.ordinal)
    return Entry(d.ordinal, request_key(d.custom_id, d.fingerprint), number, code, encode_line(job, r))


def begun(out: Path, job: str = "j", **options: Any) -> Work:
    """An open work folder of `out` in which `job` has begun."""
    work = Work.open(out, **options)
    work.begin(job)
    return work


def append(work: Work, records: Iterable[Record]) -> int:
    assert work.current is not None
    job = work.current.job
    return work.ledger.append([entry(job, r) for r in records])


def ordinals(out: Path) -> list[int]:
    return [json.loads(line)["gristmill"]["index"] for line in out.read_bytes().splitlines()]


def contents(out: Path) -> list[str]:
    """The answers in a file, "!class" for a failure."""
    found = []
    for line in map(json.loads, out.read_bytes().splitlines()):
        body = (line["response"] or {}).get("body")
        found.append(f"!{line['error']['code']}" if line["error"] else body["choices"][0]["message"]["content"])
    return found


def snapshot(
    job: str = "j", *, state: JobState = JobState.COMPLETE, n: int | None, done: int, **changes: Any
) -> JobSnapshot:
    """A job as the store would tell it."""
    values: dict[str, Any] = {
        "epoch": "e", "version": 1, "reason": None, "detail": "", "closed": n is not None, "sealed_runs": 1,
        "prod": n or done, "cur": n or done, "failed": 0, "acked": done, "in_flight": 0, "waiting": 0, "suspects": 0,
        "payload_bytes": 0, "results_bytes": 0, "payload_mark_bytes": 1, "results_mark_bytes": 1, "prompt_tokens": 0,
        "completion_tokens": 0, "attempts": done, "by_class": {}, "feeder": None, "feeder_lost": False, "cursor": b"",
        "collector": None, "redelivered": 0, "dup": 0, "stale": 0, "missing": 0, "proven": True, "created_at_ms": 1_000,
        "started_at_ms": 1_000, "finished_at_ms": 3_500, "now_ms": 4_000,
    }  # fmt: skip
    return JobSnapshot(job=job, state=state, n=n, done=done, **(values | changes))


def plan_and_begin(out: Path, job: str, wanted: list[str], **options: bool) -> tuple[Work, list[int]]:
    """A rerun for requests `wanted`: what the feeder does; the open work and the ordinals that must be sent."""
    work = Work.open(out, **options)
    FinishedPlan.build(work)
    work.begin(job)
    plan = open_plan(str(work.folder))
    plan.rewind(0)
    missing = []
    for ordinal, text in enumerate(wanted):
        carried = plan.take(f"c-{text}", fingerprint(text))
        if carried is None:
            missing.append(ordinal)
        else:
            plan.carry(ordinal, carried)
    plan.flush()
    plan.close()
    return work, missing


def finished_file(out: Path, texts: list[str], job: str = "old") -> None:
    """A whole OUT of an earlier run; a text with "!" failed."""
    failed = FailureClass.TIMEOUT
    records = (record(i, text=t.strip("!"), cls=failed if "!" in t else None) for i, t in enumerate(texts))
    out.write_bytes(b"".join(entry(job, r).line for r in records))
