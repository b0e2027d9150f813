"""The notice board of a pool: which endpoints can't be called just now, said by each worker for all others.

A worker that is told to slow down (429) says until when, so that the workers of every process and host hold back too,
and whoever watches a job can be told what it is waiting for. Only trouble is posted: while all is well nothing is
written. It is advisory and plain commands do it all; a notice that its worker has not renewed is not read any more.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from redis.asyncio import Redis

from gristmill.contract import keys

FRESH_MS = 10_000
"""A notice older than this is its dead worker's, and counts for nothing."""
_KEEP_S = 60


class Notice(msgspec.Struct, frozen=True):
    """One endpoint in trouble, as one worker sees it.

    Attributes:
        endpoint: its base URL.
        state: ``cooling`` (it asked us to wait) or ``down``.
        until_ms: when it may be called again, on the store's clock.
        said_ms: when this was posted, on the store's clock.
    """

    endpoint: str
    state: str
    until_ms: int
    said_ms: int


class Board(msgspec.Struct, frozen=True):
    """What stands on the board, and the store's time when it was read. Both in ms."""

    now_ms: int
    notices: list[Notice]


async def post(redis: Redis, pool: str, worker: str, troubles: Mapping[str, tuple[str, int]], now_ms: int) -> None:
    """Replace what `worker` says.

    Args:
        troubles: endpoint URL -> (state, ms until it may be called again, on the store's clock).
        now_ms: the store's time.
    """
    notices = [Notice(url, state, until_ms, now_ms) for url, (state, until_ms) in troubles.items()]
    async with redis.pipeline(transaction=False) as pipe:
        if notices:
            pipe.hset(keys.board(pool), worker, msgspec.json.encode(notices))
            pipe.expire(keys.board(pool), _KEEP_S)
        else:
            pipe.hdel(keys.board(pool), worker)
        await pipe.execute()


async def read(redis: Redis, pool: str, *, but: str = "") -> Board:
    """What the workers of `pool` say, all but the worker `but`."""
    async with redis.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.hgetall(keys.board(pool))
        (seconds, micros), texts = await pipe.execute()
    now_ms = seconds * 1000 + micros // 1000
    said = [msgspec.json.decode(t, type=list[Notice]) for worker, t in texts.items() if worker != but.encode()]
    return Board(now_ms, [n for notices in said for n in notices if now_ms - n.said_ms < FRESH_MS])
