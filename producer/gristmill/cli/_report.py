"""Everything that a bug report about a job needs, as one object and as lines. Pure.

It holds no key, no password and no prompt: URLs are cut to scheme, host, port and path, of the input only its
name and size are told, and what shapes bodies (system message, values put into them) is left out.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import msgspec

from gristmill.cli import _jobview
from gristmill.cli._units import format_bytes, format_duration
from gristmill.contract.manifest import Manifest
from gristmill.queue.registry import DaemonInfo
from gristmill.queue.replies import JobSnapshot, Lease
from gristmill.queue.store import StoreInfo, shown
from gristmill.queue.waiting import Wait, idle_s

_COUNTERS = ("version", "sealed_runs", "prod", "cur", "done", "failed", "acked", "in_flight", "waiting", "suspects",
             "redelivered", "dup", "stale", "missing", "payload_bytes", "results_bytes")  # fmt: skip
_SECRET_OR_LONG = ("source", "recipe", "wishes", "endpoints", "input_digest", "job", "name")


def report(
    snapshot: JobSnapshot,
    manifest: Manifest,
    *,
    store: StoreInfo,
    store_name: str,
    daemons: list[DaemonInfo],
    wait: Wait | None,
    versions: dict[str, str],
) -> dict[str, Any]:
    """The report as plain values; `job` is the object of ``status --json``."""
    return {
        "job": _jobview.summarise(snapshot).to_json(),
        "notes": _jobview.notes(snapshot, len(daemons), private=_jobview.is_private(manifest)),
        "waiting_for": None if wait is None else {"reason": str(wait.reason), "what": wait.what},
        "idle_s": idle_s(snapshot),
        "paused": None if snapshot.reason is None else {"reason": str(snapshot.reason), "detail": snapshot.detail},
        "versions": versions,
        "store": {"at": store_name, **msgspec.to_builtins(store)},
        "daemons": [msgspec.to_builtins(daemon) for daemon in daemons],
        "counters": {name: getattr(snapshot, name) for name in _COUNTERS},
        "leases": {"feeder": _lease(snapshot.feeder), "collector": _lease(snapshot.collector)},
        "times_ms": {
            "created": snapshot.created_at_ms,
            "started": snapshot.started_at_ms,
            "finished": snapshot.finished_at_ms,
            "now": snapshot.now_ms,
            "deadline": snapshot.deadline_ms,
        },
        "manifest": _manifest(manifest),
    }


def _lease(lease: Lease | None) -> dict[str, Any] | None:
    return None if lease is None else {"holder": lease.holder, "expires_in_ms": lease.expires_in_ms}


def _manifest(manifest: Manifest) -> dict[str, Any]:
    """Its settings, and of the rest what tells nothing private."""
    kept: dict[str, Any] = msgspec.to_builtins(manifest)
    for name in _SECRET_OR_LONG:
        kept.pop(name, None)
    source = manifest.source
    return {
        **kept,
        "endpoints": [shown(e) if "://" in e else e for e in manifest.endpoints],
        "input": None if source is None else {"name": PurePath(source.path).name, "bytes": source.size},
        "detached": manifest.wishes.detached,
        "notifies": manifest.wishes.notify is not None,
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The report below the lines of `producer status`."""
    store, waits, paused = found["store"], found["waiting_for"], found["paused"]
    limit = f" of {format_bytes(store['max_memory_bytes'])}" if store["max_memory_bytes"] else ", no limit"
    log = "append-only log on" if store["appendonly"] else "append-only log OFF"
    memory = f"{format_bytes(store['used_memory_bytes'])} used{limit}"
    told = [
        "versions   " + ", ".join(f"{name} {version}" for name, version in found["versions"].items()),
        f"server     {store['product']} {store['version']} at {store['at']}, {store['policy']}, {log}, {memory}",
    ]
    told += [
        f"daemon     {d['daemon_id']}: {d['version']}, {d['host']} pid {d['pid']}, {d['workers']} workers, "
        f"{d['slots']:,} slots, {d['recent_crashes']} crashes lately"
        for d in found["daemons"]
    ]
    told.append("counters   " + ", ".join(f"{name} {n:,}" for name, n in found["counters"].items()))
    told += [
        f"lease      {role}: {lease['holder']}, ends in {lease['expires_in_ms'] / 1000:.0f} s unless renewed"
        for role, lease in found["leases"].items()
        if lease is not None
    ]
    told.append(f"idle       {format_duration(found['idle_s'])} since a request finished" + _for(waits))
    if paused is not None:
        told.append(f"paused     {paused['reason']}: {paused['detail'] or 'no detail'}")
    return [*told, f"manifest   {msgspec.json.encode(found['manifest']).decode()}"]


def _for(waits: dict[str, str] | None) -> str:
    return f"; waits for {waits['what']} ({waits['reason']})" if waits else ""
