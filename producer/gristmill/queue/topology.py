"""Which node of a cluster owns a slot, and the connections to each node.

The table of owners is asked of any node, when it is first needed and after every sign that it is wrong: a node that
does not answer, or says that the cluster is down. A node that has another owner's slot says so (MOVED) and is believed
for that slot. Nodes are asked in turn, so that one that is cut off from the others and knows only the past is not asked
for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, NoPermissionError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gristmill.contract.storeurl import Host
from gristmill.queue.connection import refusal
from gristmill.queue.errors import StoreError

SLOTS = 16384


class Topology:
    """See the head of the module; for one event loop.

    Args:
        seeds: nodes to ask first.
        connect: makes a client of one node, which repeats nothing by itself.
    """

    def __init__(self, seeds: tuple[Host, ...], connect: Callable[[Host], Redis]) -> None:
        self._connect = connect
        self._seeds = seeds
        self._clients: dict[Host, Redis] = {}
        self._known: list[Host] = list(seeds)
        self._owners: list[Host | None] = [None] * SLOTS
        self._doubt = True
        self._looks = 0
        self._looking = asyncio.Lock()

    def node(self, host: Host) -> Redis:
        """The client of one node."""
        client = self._clients.get(host)
        if client is None:
            client = self._clients[host] = self._connect(host)
        return client

    def seed(self) -> Redis:
        """Any node's client."""
        return self.node(self._seeds[0])

    async def owner(self, slot: int) -> tuple[Host, Redis]:
        """The node that owns `slot`, as far as is known.

        Raises:
            redis.exceptions.RedisError: no node can be asked, or none has the slot.
            StoreError: it is no cluster.
        """
        if self._doubt:
            await self._look()
        host = self._owners[slot]
        if host is None:
            self._doubt = True
            raise RedisConnectionError("a part of the cluster has no primary just now")
        return host, self.node(host)

    async def primaries(self) -> dict[Host, int]:
        """Every node that owns slots, asked anew: its place -> one of its slots.

        Raises:
            As `owner`.
        """
        self._doubt = True
        await self._look()
        return {host: self._owners.index(host) for host in sorted({h for h in self._owners if h is not None})}

    def doubt(self) -> None:
        """The table may be wrong: ask again before the next call."""
        self._doubt = True

    def learn(self, error: MovedError, said_by: Host) -> None:
        """A node has said who owns a slot."""
        self._owners[error.slot_id] = (error.host or said_by[0], error.port)

    async def _look(self) -> None:
        looks = self._looks
        async with self._looking:
            if self._looks != looks:  # another call has just looked
                return
            self._owners = await self._ask()
            self._looks += 1
            self._doubt = False

    async def _ask(self) -> list[Host | None]:
        """The owners as the first node says that answers."""
        failure: Exception = RedisConnectionError("no node of the cluster is known")
        for host in list(self._known):
            self._known.append(self._known.pop(0))
            try:
                slots = await self.node(host).execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]  # untyped in redis-py
                return self._read(slots, host)
            except NoPermissionError:
                raise
            except ResponseError as error:
                raise StoreError(
                    f"the store is no cluster ({error}): write its URL with redis:// in place of redis+cluster://"
                ) from None
            except (RedisConnectionError, RedisTimeoutError, OSError) as error:
                if refusal(error) is not None:
                    raise
                failure = error
        raise failure

    def _read(self, ranges: Any, asked: Host) -> list[Host | None]:
        """The owners from a reply: for each range its first and last slot, its primary, its replicas."""
        owners: list[Host | None] = [None] * SLOTS
        known: dict[Host, None] = {}
        for first, last, primary, *replicas in ranges:
            owners[first : last + 1] = [_place(primary, asked)] * (last + 1 - first)
            known |= {place: None for node in (primary, *replicas) if (place := _place(node, asked))}
        self._known = [host for host in self._known if host in known or host in self._seeds]
        self._known += [host for host in known if host not in self._known]
        return owners

    async def aclose(self) -> None:
        clients, self._clients = list(self._clients.values()), {}
        await asyncio.gather(*(client.aclose() for client in clients), return_exceptions=True)


def _place(node: Any, asked: Host) -> Host | None:
    """Host and port of a node; None where the cluster does not know its name."""
    name, port, *_ = node
    host = name.decode() if isinstance(name, bytes) else str(name or "")
    if host == "?":
        return None
    return host or asked[0], int(port)
