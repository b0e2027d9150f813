"""A client of a cluster that looks like the client of one server.

A command goes to the node that owns its key's slot, and a pipeline is split by node, so callers need not know; only a
command whose keys lie in different slots is refused by the server. What can go wrong, and what is done:

* MOVED: the command was not run; it is sent to the node that was named.
* No answer, LOADING, CLUSTERDOWN: the table of owners is asked for anew, and the call repeated with back-off, as with
  one server; but what is `sent_once` is not.
* ASK, TRYAGAIN: the slot is on its way to another node, and its keys may lie with both. A script of ours names many
  keys and would not run on either, so the answer is to wait until it has arrived, as through any outage.

All keys of a job lie in one slot. Commands without a key (SCAN, TIME, WAIT) go to the node that has the list of jobs,
and those of a client from `at` to the node of a job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gristmill.contract import keys
from gristmill.queue.connection import PatientRetry
from gristmill.queue.topology import Topology

T = TypeVar("T")
Words = tuple[Any, ...]

HOPS = 5
"""So often one call is sent elsewhere; the cluster does not agree with itself when that does not do."""
WAITED_OUT = (AskError, TryAgainError, ClusterDownError)
"""Refusals that end by themselves; nothing was run."""
REPEATED = (RedisConnectionError, RedisTimeoutError, *WAITED_OUT)
_KEYLESS = frozenset(
    "ACL CLIENT CLUSTER CONFIG DBSIZE FLUSHALL INFO PING SCAN SCRIPT TIME WAIT WAITAOF".split()  # noqa: SIM905  # a table
)
_SCRIPTS = frozenset({"EVAL", "EVALSHA"})
_HOME = key_slot(keys.JOBS.encode())


def slot_of(words: Words, home: int = _HOME) -> int:
    """The slot of a command's first key; `home` for commands without one."""
    name = words[0]
    if name in _SCRIPTS:
        key = words[3]
    elif name.split(" ")[0] in _KEYLESS:
        return home
    else:
        key = words[1]
    return key_slot(key if isinstance(key, bytes) else str(key).encode())


def at(redis: Redis, key: str) -> Redis:
    """A client whose commands without a key go to the server of `key`; `redis` itself where that is no cluster."""
    return redis.at_home(key_slot(key.encode())) if isinstance(redis, ClusterRedis) else redis


async def each_primary(redis: Redis) -> list[tuple[str, Redis]]:
    """A client of every server that holds keys, and its address; of one server just that, with no address.

    Commands without a key go to that server, or to the one that has taken its place.

    Raises:
        redis.exceptions.RedisError: no node of the cluster can be asked.
        StoreError: it is no cluster.
    """
    return await redis.primaries() if isinstance(redis, ClusterRedis) else [("", redis)]


class ClusterRedis(Redis):
    """See the head of the module.

    Args:
        topology: of the cluster; closed with this client.
        patience: repeats calls; it should know `REPEATED`.
        home: where commands without a key go.
    """

    def __init__(self, topology: Topology, patience: PatientRetry, home: int = _HOME) -> None:
        super().__init__(connection_pool=topology.seed().connection_pool)
        self._topology = topology
        self._patience = patience
        self._home = home

    def at_home(self, slot: int) -> ClusterRedis:
        """A client with the same connections and another home; it need not be closed."""
        return ClusterRedis(self._topology, self._patience, slot)

    async def primaries(self) -> list[tuple[str, Redis]]:
        """See `each_primary`."""
        places = await self._patience.call_with_retry(self._topology.primaries, _ignore)
        return [(f"{host}:{port}", self.at_home(slot)) for (host, port), slot in places.items()]

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        slot = slot_of(args, self._home)

        async def attempt() -> Any:
            for _ in range(HOPS):
                host, node = await self._topology.owner(slot)
                try:
                    return await self._watched(node.execute_command(*args, **options))  # type: ignore[no-untyped-call]  # untyped in redis-py
                except MovedError as error:
                    self._topology.learn(error, host)
            raise TryAgainError("the nodes of the cluster do not agree on who owns a slot")

        return await self._patience.call_with_retry(attempt, _ignore)

    async def _watched(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except (RedisConnectionError, RedisTimeoutError, ClusterDownError):
            self._topology.doubt()
            raise

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> ClusterPipeline:
        """Commands to be sent together, to each node its own; a transaction is not to be had.

        Raises:
            ValueError: one is asked for.
        """
        if transaction:
            raise ValueError("a cluster has no transaction over its nodes")
        return ClusterPipeline(self)

    async def send_together(self, stack: Sequence[tuple[Words, dict[str, Any]]]) -> list[Any]:
        """The replies to `stack`, in its order; a refusal among them stands in its place.

        Raises:
            redis.exceptions.RedisError: a node did not answer, or has to be waited for; some may have been run.
        """
        slots = [slot_of(words, self._home) for words, _ in stack]

        async def attempt() -> list[Any]:
            replies: list[Any] = [None] * len(stack)
            left = list(range(len(stack)))
            for _ in range(HOPS):
                left = await self._round(stack, slots, left, replies)
                if not left:
                    return replies
            raise TryAgainError("the nodes of the cluster do not agree on who owns a slot")

        return await self._patience.call_with_retry(attempt, _ignore)

    async def _round(
        self, stack: Sequence[tuple[Words, dict[str, Any]]], slots: list[int], left: list[int], replies: list[Any]
    ) -> list[int]:
        """Send those of `stack` whose places are `left`, each to its node; gives the places of what has moved."""
        groups: dict[tuple[str, int], tuple[Redis, list[int]]] = {}
        for place in left:
            host, node = await self._topology.owner(slots[place])
            groups.setdefault(host, (node, []))[1].append(place)
        moved = []
        for host, (node, places) in groups.items():
            found = await self._watched(_send(node, [stack[place] for place in places]))
            for place, reply in zip(places, found, strict=True):
                replies[place] = reply
                if isinstance(reply, MovedError):
                    self._topology.learn(reply, host)
                    moved.append(place)
                elif isinstance(reply, WAITED_OUT):
                    self._topology.doubt()
                    raise reply
        return moved

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await self._topology.aclose()


async def _send(node: Redis, commands: Sequence[tuple[Words, dict[str, Any]]]) -> list[Any]:
    async with node.pipeline(transaction=False) as pipe:
        for words, options in commands:
            pipe.execute_command(*words, **options)
        replies: list[Any] = await pipe.execute(raise_on_error=False)
    return replies


async def _ignore(_error: Exception) -> None:
    """What there is to do after an error was done where it was seen."""


class ClusterPipeline(Pipeline):
    """Collects commands for `ClusterRedis.send_together`."""

    def __init__(self, redis: ClusterRedis) -> None:
        super().__init__(redis.connection_pool, redis.response_callbacks, transaction=False, shard_hint=None)
        self._redis = redis

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """As that of one server; but an error is raised as it came: the library would put the command into its text."""
        stack: Any = self.command_stack
        if not stack:
            return []
        try:
            replies = await self._redis.send_together(stack)
        finally:
            await self.reset()  # type: ignore[no-untyped-call]  # untyped in redis-py
        for reply in replies:
            if raise_on_error and isinstance(reply, Exception):
                raise reply
        return replies
