"""The invariants of the lease queue, read from the raw keys of one job.

`check_invariants` asserts what a look at the store can show (I1-I10, I12, I16); it trusts no counter and no script.
What only a history can show (I7 over time, I11, I13-I15) is the property machine's to assert.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from redis.asyncio import Redis

from gristmill.queue import LeaseQueue

ENDED = ("cancelled", "expired")
FIELD_OVERHEAD = 100


@dataclass
class Census:
    """Where every index of a job is, as the store's own keys say."""

    state: str = ""
    meta: dict[str, str] = field(default_factory=dict)
    prod: int = 0
    cur: int = 0
    done: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)
    suspects: set[int] = field(default_factory=set)
    held: dict[str, dict[int, int]] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    history: dict[int, tuple[int, ...]] = field(default_factory=dict)
    records: dict[int, bytes] = field(default_factory=dict)
    blocks: dict[int, dict[bytes, bytes]] = field(default_factory=dict)
    runs: dict[int, dict[bytes, bytes]] = field(default_factory=dict)
    run_firsts: list[int] = field(default_factory=list)

    @property
    def held_indices(self) -> set[int]:
        return {i for holds in self.held.values() for i in holds}


def _bits(bitmap: bytes | None) -> set[int]:
    data = bitmap or b""
    return {8 * at + bit for at, byte in enumerate(data) for bit in range(8) if byte >> (7 - bit) & 1}


async def census(redis: Redis, queue: LeaseQueue) -> Census:
    """Read every key of the job."""
    keys = queue.keys
    meta = {k.decode(): v.decode() for k, v in (await redis.hgetall(keys.meta)).items()}
    rows = await redis.zrange(keys.runs, 0, -1, withscores=True)
    seen = Census(
        state=meta["state"],
        meta=meta,
        prod=int(meta["prod"]),
        cur=int(meta["cur"]),
        done=_bits(await redis.get(keys.done)),
        acked=_bits(await redis.get(keys.acked)),
        waiting={int(x) for x in await redis.zrange(keys.waiting, 0, -1)},
        suspects={int(x) for x in await redis.zrange(keys.suspects, 0, -1)},
        tokens={x.decode() for x in await redis.zrange(keys.workers, 0, -1)},
        run_firsts=[int(first) for _, first in rows],
        history={
            int(i): tuple(map(int, text.decode().split(","))) for i, text in (await redis.hgetall(keys.history)).items()
        },
    )
    prefix = keys.pattern[:-1]
    async for raw in redis.scan_iter(match=keys.pattern, count=500):
        key = raw.decode()
        kind, _, name = key.removeprefix(prefix).partition(":")
        if kind == "h":
            seen.held[name] = {int(i): int(c) for i, c in (await redis.hgetall(key)).items()}
        elif kind == "r":
            seen.blocks[int(name)] = await redis.hgetall(key)
        elif kind == "p":
            seen.runs[int(name)] = await redis.hgetall(key)
            assert await redis.ttl(key) == -1, f"I8: payload run {name} has a time to live"
    for fields in seen.blocks.values():
        seen.records |= {int(i): record for i, record in fields.items() if i != b"#"}
    return seen


def _check_places(seen: Census, *, lost_suffix: bool) -> None:
    held = [i for holds in seen.held.values() for i in holds]
    assert len(held) == len(set(held)), "I2: an index is held twice"
    assert {t for t, holds in seen.held.items() if holds} <= seen.tokens, "indices are held without a lease"
    assert int(seen.meta["in_flight"]) == len(held), "I4: in_flight is not the number of held indices"
    assert all(i < seen.prod for i in seen.done), "I5: a done bit at or beyond prod"
    assert int(seen.meta["done"]) == len(seen.done), "I5: the counter of done differs from the bits"
    if seen.state in ENDED:
        return
    waiting = seen.waiting | seen.suspects
    live = set(held) - seen.done
    fresh = set(range(seen.cur, seen.prod)) - (seen.done if lost_suffix else set())
    assert not seen.waiting & seen.suspects, "I3: waiting and suspect at once"
    assert not waiting & seen.done, "I3: waiting though done"
    assert not waiting & set(held), "I3: waiting and held"
    assert not fresh & (seen.done | waiting | set(held)), "I1: fresh and something else"
    everywhere = seen.done | waiting | live | fresh
    assert everywhere == set(range(seen.prod)), f"I1: lost {set(range(seen.prod)) - everywhere}"


def _check_results(seen: Census, block_size: int, unacked: set[int]) -> None:
    assert seen.acked <= seen.done, "acked but not done"
    assert int(seen.meta["acked"]) == len(seen.acked), "the counter of acked differs from the bits"
    assert set(seen.records) == seen.done - seen.acked, "I6: stored records are not those done and not acked"
    assert unacked == set(seen.blocks), "the set of unacked blocks is not that of blocks with records"
    total = 0
    for block, fields in seen.blocks.items():
        records = {i: r for i, r in fields.items() if i != b"#"}
        assert records, "I16: an empty result block"
        assert all(int(i) // block_size == block for i in records), "a record lies in a wrong block"
        size = sum(len(r) + FIELD_OVERHEAD for r in records.values())
        assert int(fields[b"#"]) == size, f"I9: bytes of result block {block}"
        total += size
    assert int(seen.meta["results_bytes"]) == total, "I9: results_bytes"


def _check_payload(seen: Census) -> None:
    total = 0
    bounds = itertools.pairwise([*seen.run_firsts, seen.prod])
    for run, (first, end) in enumerate(bounds):
        left = set(range(first, end)) - seen.done
        fields = seen.runs.get(run)
        if fields is None:
            assert not left or seen.state in ENDED, f"I8/I12: run {run} is gone though {left} are not done"
            continue
        payload = {name: value for name, value in fields.items() if not name.startswith(b"#")}
        frames = {int(name) for name in payload if not name.startswith(b"i:")}
        assert frames == left, f"I8: frames of run {run} are not those not done"
        assert left, f"I16: run {run} is kept though all of it is done"
        assert int(fields[b"#n"]) == len(frames), f"frames counted in run {run}"
        size = sum(len(value) + FIELD_OVERHEAD for value in payload.values())
        assert int(fields[b"#"]) == size, f"I9: bytes of run {run}"
        total += size
    assert int(seen.meta["payload_bytes"]) == total, "I9: payload_bytes"
    assert set(seen.runs) <= set(range(len(seen.run_firsts))), "a payload run that was never sealed"


def _check_completion(seen: Census) -> None:
    everything = seen.meta["closed"] == "1" and len(seen.done) == int(seen.meta["n"])
    if seen.meta["closed"] == "1":
        assert int(seen.meta["n"]) == seen.prod, "closed with another n than was sealed"
    if seen.state == "complete":
        assert everything, "I10: complete though not everything is done"
        assert not seen.runs, "I16: a payload run is left after completion"
    elif seen.state not in ENDED:
        assert not everything, "I10: everything is done but the job is not complete"


async def check_invariants(redis: Redis, queue: LeaseQueue, *, lost_suffix: bool = False) -> Census:
    """Assert the invariants on the job as it lies in the store; gives what was seen.

    Args:
        lost_suffix: the store was taken back in time, so indices not handed out yet may be done already.
    """
    seen = await census(redis, queue)
    unacked = {int(b) for b in await redis.smembers(queue.keys.unacked)}
    _check_places(seen, lost_suffix=lost_suffix)
    _check_results(seen, queue.block_size, unacked)
    _check_payload(seen)
    _check_completion(seen)
    return seen
