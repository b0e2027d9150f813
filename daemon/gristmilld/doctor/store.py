"""The store: is it there, fit, safe, near, and roomy enough?"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError

from gristmill import __version__
from gristmill.embedded import EmbeddedStore, EmbeddedStoreError
from gristmill.queue import registry
from gristmill.queue.cluster import each_primary
from gristmill.queue.errors import StoreError
from gristmill.queue.store import connect, faults, read_infos, shown, store_info
from gristmilld.config import DaemonConfig
from gristmilld.control.rqstore import why_none
from gristmilld.doctor.finding import Finding, fail, ok, warn

TIMEOUT_S = 5.0
PINGS = 7
SLOW_PING_S = 0.02
"""A worker waits for the store at each claim and commit, some ten times a second."""
SKEW_S = 2.0
ROOM_BYTES = (1 << 30) + (512 << 20)
"""What one job may put into the store by default: payload mark and results mark."""
LEAST_ROOM_BYTES = 128 << 20
_GIB = 1 << 30
_KEY = "gm:doctor"


async def examine(config: DaemonConfig) -> list[Finding]:
    """Everything about the store of `config`; the private one where it names none."""
    if config.redis:
        found = await _examine_at(config.redis)
        lacks, _, fix = why_none(config).partition("; ")
        return [*found, warn("control plane", lacks, fix)] if lacks else found
    try:
        embedded = await asyncio.to_thread(EmbeddedStore.open, Path(config.state_dir))
    except EmbeddedStoreError as error:
        return [fail("store", str(error), "pip install 'gristmill[embedded]', or give --redis URL")]
    try:
        return await _examine_at(embedded.url)
    finally:
        await asyncio.to_thread(embedded.close)


async def _examine_at(url: str) -> list[Finding]:
    try:
        redis = connect(
            url, timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S, max_connections=2, name="gristmilld-doctor"
        )
    except StoreError as error:
        return [fail("store", str(error), "mend the URL")]
    try:
        async with asyncio.timeout(4 * TIMEOUT_S):
            return await _examine(redis, url)
    except TimeoutError:
        return [fail("store", f"{shown(url)} does not answer in time", "look at its load, its log and the network")]
    except StoreError as error:
        text, _, fix = str(error).rpartition("; ")
        return [fail("store", f"{shown(url)}: {text}", fix)]
    except (RedisError, OSError) as error:
        return [fail("store", f"{shown(url)}: {type(error).__name__}: {error}", "look at the store's log")]
    finally:
        await redis.aclose()


async def _examine(redis: Redis, url: str) -> list[Finding]:
    found: list[Finding] = []
    infos, servers = await read_infos(redis), dict(await each_primary(redis))
    for node, info in infos.items():
        fsync = await _fsync(servers[node]) if node in servers else ""
        found += judge(info, url, fsync, node)
    found.append(await _writes(redis))
    found += await _times(redis)
    return [*found, await _daemons(redis)]


async def _fsync(redis: Redis) -> str:
    """How often it syncs its log; empty where we may not know."""
    try:
        return str((await redis.config_get("appendfsync")).get("appendfsync", ""))
    except RedisError:
        return ""


def judge(info: Mapping[str, Any], url: str, fsync: str = "", node: str = "") -> Iterator[Finding]:
    """What the INFO of a store says, or of the primary `node` of a cluster. PURE."""
    store = store_info([info])
    against = faults(info, clustered=bool(node))
    yield ok("store", f"{store.product} {store.version} at {f'{node} of ' if node else ''}{shown(url)}")
    for what, sentence in against.items():
        text, _, fix = sentence.partition(": ")
        yield fail(f"store {what}", f"{node}: {text}" if node else text, fix)
    if "eviction" not in against:
        yield ok("store eviction", f"maxmemory-policy {store.policy}")
    if "log" not in against:
        yield _persistence(info, appendonly=store.appendonly, fsync=fsync)
    yield _memory(info, store.used_memory_bytes, store.max_memory_bytes)


def _persistence(info: Mapping[str, Any], *, appendonly: bool, fsync: str) -> Finding:
    check = "store persistence"
    if not appendonly:
        return warn(
            check,
            "the append-only log is off: a restart of the store loses what is queued since its last snapshot",
            "CONFIG SET appendonly yes, and appendonly yes in its configuration",
        )
    if fsync == "no":
        return warn(
            check, "the log is synced when the system likes (appendfsync no)", "CONFIG SET appendfsync everysec"
        )
    if str(info.get("aof_last_bgrewrite_status", "ok")) != "ok":
        return warn(check, "the last rewrite of the log failed", "free disk space and memory, then BGREWRITEAOF")
    return ok(check, f"append-only log is on{f', synced {fsync}' if fsync else ''}; its last write went well")


def _memory(info: Mapping[str, Any], used: int, limit: int) -> Finding:
    total = int(info.get("total_system_memory", 0))
    top = limit or total
    check, room = "store memory", top - used
    text = f"{used / _GIB:.2f} GiB used of {top / _GIB:.1f} GiB ({'its limit' if limit else 'the machine; no limit'})"
    if top and room < LEAST_ROOM_BYTES:
        return fail(check, f"{text}: feeders wait", "collect results, `producer rm` old jobs, or raise maxmemory")
    if top and room < ROOM_BYTES:
        return warn(
            check,
            f"{text}: less than one job may take (payload mark 1 GiB and results mark 0.5 GiB)",
            "raise maxmemory, or submit with smaller --payload-mark and --results-mark",
        )
    return ok(check, text)


async def _writes(redis: Redis) -> Finding:
    """Whether we may run scripts that write."""
    check = "store writes"
    try:
        await redis.eval("return redis.call('SET', KEYS[1], '1', 'PX', 1000)", 1, _KEY)
    except NoPermissionError as error:
        return fail(
            check, f"this user may not run scripts that write gm:* keys ({error})", "ACL SETUSER ... ~gm:* +@all"
        )
    except RedisError as error:
        return fail(check, f"a script that writes is refused: {error}", "look at the store's memory, disk and role")
    return ok(check, "a script may write")


async def _times(redis: Redis) -> list[Finding]:
    """How far away the store is, and by how much its clock differs."""
    trips_s, skews_s = [], []
    for _ in range(PINGS):
        before_s, begun_s = time.time(), time.perf_counter()
        seconds, micros = await redis.time()
        trip_s = time.perf_counter() - begun_s
        trips_s.append(trip_s)
        skews_s.append(int(seconds) + int(micros) / 1e6 - (before_s + trip_s / 2))
    return [latency(statistics.median(trips_s)), skew(skews_s[trips_s.index(min(trips_s))])]


def latency(trip_s: float) -> Finding:
    """What a round trip of `trip_s` means. PURE."""
    text = f"{trip_s * 1000:.1f} ms a round trip, median of {PINGS}"
    if trip_s < SLOW_PING_S:
        return ok("store latency", text)
    return warn("store latency", f"{text}: claims and commits wait for it", "bring daemons and store closer together")


def skew(ahead_s: float) -> Finding:
    """What it means that the store's clock is `ahead_s` ahead of ours. PURE."""
    text = f"the store's clock is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    if abs(ahead_s) < SKEW_S:
        return ok("clocks", text)
    return warn("clocks", f"{text}: deadlines by time of day and times in logs are off by that", "run NTP on both")


async def _daemons(redis: Redis) -> Finding:
    """Who works on this store already, and with which version."""
    alive = await registry.live_daemons(redis)
    others = sorted({info.version for info in alive} - {__version__})
    text = f"{len(alive)} connected, {sum(info.slots for info in alive):,} slots"
    if others:
        return warn("daemons", f"{text}; some run {', '.join(others)}, this is {__version__}", "see docs/scaling.md")
    return ok("daemons", text)
