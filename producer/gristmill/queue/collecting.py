"""The collector's side: read records that are not acked, and free those that are durable outside."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gristmill.queue.handle import Handle
from gristmill.queue.loader import Arg
from gristmill.queue.replies import AckReply, AckStatus

LOOK_AHEAD_BLOCKS = 256
LOOK_AHEAD_UNSEEN_BLOCKS = 2048
MAX_ACK = 4000


async def read_blocks(handle: Handle, max_bytes: int, *, after: int | None = None) -> dict[int, dict[int, bytes]]:
    """Records not yet acked, lowest blocks first: block -> index -> record; about `max_bytes`, at least one record.

    Needs no lease: it only reads. Empty when there is nothing to collect. Who reads without acking pages with `after`,
    the highest block seen so far (-1 at first): then every block is given whole, however large.
    """
    members: Any = await handle.redis.smembers(handle.keys.unacked)
    lowest = -1 if after is None else after
    blocks = sorted(b for b in map(int, members) if b > lowest)[:LOOK_AHEAD_BLOCKS]
    if not blocks:
        return {}
    async with handle.redis.pipeline(transaction=False) as pipe:
        for block in blocks:
            pipe.hget(handle.keys.block(block), "#")
        sizes = [int(size or 0) for size in await pipe.execute()]
    if after is None and sizes[0] > max_bytes:
        part = await _part_of_block(handle, blocks[0], max_bytes)
        return {blocks[0]: part} if part else {}
    chosen, total = blocks[:1], sizes[0]
    for block, size in zip(blocks[1:], sizes[1:], strict=True):
        total += size
        if total > max_bytes:
            break
        chosen.append(block)
    return await _whole_blocks(handle, chosen)


async def _whole_blocks(handle: Handle, blocks: Sequence[int]) -> dict[int, dict[int, bytes]]:
    async with handle.redis.pipeline(transaction=False) as pipe:
        for block in blocks:
            pipe.hgetall(handle.keys.block(block))
        replies = await pipe.execute()
    read = {}
    for block, fields in zip(blocks, replies, strict=True):
        fields.pop(b"#", None)
        if fields:
            read[block] = {int(index): record for index, record in fields.items()}
    return read


async def _part_of_block(handle: Handle, block: int, max_bytes: int) -> dict[int, bytes]:
    """Some records of a block that is too large to be read whole, lowest indices first."""
    key = handle.keys.block(block)
    indices = sorted(int(field) for field in await handle.redis.hkeys(key) if field != b"#")
    async with handle.redis.pipeline(transaction=False) as pipe:
        for index in indices:
            pipe.hstrlen(key, str(index))
        lengths = await pipe.execute()
    chosen: list[int] = []
    total = 0
    for index, length in zip(indices, lengths, strict=True):
        total += length
        if chosen and total > max_bytes:
            break
        chosen.append(index)
    if not chosen:
        return {}
    records: Any = await handle.redis.hmget(key, [str(index) for index in chosen])
    return {index: record for index, record in zip(chosen, records, strict=True) if record is not None}


async def read_unseen(
    handle: Handle, seen: Mapping[int, Collection[int]], max_bytes: int, *, below: int | None = None
) -> dict[int, dict[int, bytes]]:
    """As `read_blocks`, but only records that are not in `seen` (block -> indices that were read and not acked).

    For a reader that acks late: what it holds already is not sent again. A block in which nothing is new costs one
    small question. Only blocks with a number under `below` are looked at.
    """
    members: Any = await handle.redis.smembers(handle.keys.unacked)
    blocks = sorted(b for b in map(int, members) if below is None or b < below)[:LOOK_AHEAD_UNSEEN_BLOCKS]
    whole: list[int] = []
    parts: dict[int, int] = {}  # block -> about how many of its records fit
    left = max_bytes
    for block, count, size in await _changed(handle, blocks, seen):
        if left <= 0:
            break
        if size <= left and not seen.get(block):
            whole.append(block)
        else:
            parts[block] = max(1, left * count // max(size, 1))
        left -= size
    read = await _whole_blocks(handle, whole) if whole else {}
    if parts:
        read.update(await _unseen_parts(handle, parts, seen))
    return read


async def _unseen_parts(
    handle: Handle, parts: Mapping[int, int], seen: Mapping[int, Collection[int]]
) -> dict[int, dict[int, bytes]]:
    """Of each block in `parts`, at most so many records that are not seen, lowest indices first."""
    chosen: dict[int, list[int]] = {}
    async with handle.redis.pipeline(transaction=False) as pipe:
        for block in parts:
            pipe.hkeys(handle.keys.block(block))
        for (block, most), fields in zip(parts.items(), await pipe.execute(), strict=True):
            known = seen.get(block, ())
            new = sorted(i for i in (int(f) for f in fields if f != b"#") if i not in known)[:most]
            if new:
                chosen[block] = new
    async with handle.redis.pipeline(transaction=False) as pipe:
        for block, indices in chosen.items():
            pipe.hmget(handle.keys.block(block), [str(index) for index in indices])
        replies = await pipe.execute() if chosen else []
    read = {}
    for (block, indices), records in zip(chosen.items(), replies, strict=True):
        read[block] = {i: record for i, record in zip(indices, records, strict=True) if record is not None}
    return read


async def _changed(
    handle: Handle, blocks: Sequence[int], seen: Mapping[int, Collection[int]]
) -> list[tuple[int, int, int]]:
    """Of `blocks`, those with records that are not seen: number, count of records, their bytes."""
    async with handle.redis.pipeline(transaction=False) as pipe:
        for block in blocks:
            pipe.hlen(handle.keys.block(block))
            pipe.hget(handle.keys.block(block), "#")
        replies = await pipe.execute() if blocks else []
    looked = zip(blocks, replies[::2], replies[1::2], strict=True)
    return [(b, length - 1, int(size or 0)) for b, length, size in looked if length - 1 > len(seen.get(b, ()))]


async def ack(handle: Handle, token: str, indices: Mapping[int, Sequence[int]]) -> AckReply:
    """Free records that are durable outside: block -> indices; see scripts/ack.lua. Safe to repeat.

    Large ones go in several calls; the reply is their sum. It stops at the first that is refused.
    """
    total = AckReply(AckStatus.OK, handle.version)
    keys = handle.keys
    for part in _parts(indices):
        names = [keys.meta, keys.acked, keys.done, keys.unacked, *(keys.block(block) for block, _ in part)]
        args: list[Arg] = [token]
        for block, some in part:
            args += (block, len(some), *some)
        status, version, acked, unknown = await handle.call("ack", names, *args, version_at=1)
        total = AckReply(AckStatus(status.decode()), version, total.acked + acked, total.unknown + unknown)
        if total.status is not AckStatus.OK:
            break
    return total


def _parts(indices: Mapping[int, Sequence[int]]) -> Iterator[list[tuple[int, Sequence[int]]]]:
    part: list[tuple[int, Sequence[int]]] = []
    count = 0
    for block, some in indices.items():
        if part and count + len(some) > MAX_ACK:
            yield part
            part, count = [], 0
        part.append((block, some))
        count += len(some)
    if part:
        yield part
