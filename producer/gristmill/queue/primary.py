"""A store whose primary is looked up at sentinels, anew for each connection that is made.

So a failover needs nothing but new connections: the old ones break, or the server says READONLY, which ends its
connection here as if it had broken, and whoever repeats the call is connected to the new primary. A server that the
sentinels name and that says of itself that it is a replica (a failover is under way) is not taken: that is an outage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError

from gristmill.queue.connection import PromptConnection, PromptSSLConnection


class Primary:
    """Where the primary of `service` is.

    Args:
        sentinels: a client of each.
        service: what they call it.
    """

    def __init__(self, sentinels: Sequence[Redis], service: str) -> None:
        self._service = service
        self._sentinel = Sentinel([])  # type: ignore[no-untyped-call]  # untyped in redis-py
        self._sentinel.sentinels = list(sentinels)

    async def find(self) -> tuple[str, int]:
        """Host and port of the primary.

        Raises:
            redis.exceptions.ConnectionError: no sentinel answers, or none knows a primary that is up.
        """
        try:
            host, port = await self._sentinel.discover_master(self._service)
        except MasterNotFoundError:  # its text holds what we know of the sentinels
            raise RedisConnectionError(
                f"no sentinel that answers knows a primary of {self._service} that is up"
            ) from None
        return str(host), int(port)

    async def aclose(self) -> None:
        """Close the connections to sentinels; they are made anew when needed."""
        await asyncio.gather(*(sentinel.aclose() for sentinel in self._sentinel.sentinels), return_exceptions=True)

    def __repr__(self) -> str:
        return f"Primary({self._service!r})"


class _FollowMixin(AbstractConnection):
    """Connects to the primary of the moment."""

    host: str
    port: int

    def __init__(self, *, primary: Primary, **options: Any) -> None:
        super().__init__(**options)
        self._primary = primary

    async def _connect(self) -> None:
        self.host, self.port = await self._primary.find()
        await super()._connect()  # type: ignore[no-untyped-call,safe-super]  # untyped in redis-py, and not abstract there

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        await super().on_connect_check_health(check_health)
        await self.send_command("ROLE", check_health=False)
        role = (await self.read_response())[0]
        if role not in (b"master", "master"):
            raise RedisConnectionError("the store's primary is being changed: the server that was named is a replica")

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)
        except ReadOnlyError:
            await self.disconnect()
            raise RedisConnectionError(
                "the store's primary is being changed: this server has become a replica"
            ) from None


class FollowingConnection(_FollowMixin, PromptConnection):
    """Over TCP."""


class FollowingSSLConnection(_FollowMixin, PromptSSLConnection):
    """Over TLS."""


FOLLOWING: dict[type[AbstractConnection], type[AbstractConnection]] = {
    Connection: FollowingConnection,
    SSLConnection: FollowingSSLConnection,
}


class FollowingPool(ConnectionPool):
    """Connections to the primary of the moment."""

    def __init__(self, *, primary: Primary, **options: Any) -> None:
        self._primary = primary
        super().__init__(primary=primary, **options)

    async def doubt(self) -> None:
        """Ask anew who is the primary for every call that begins from now on."""
        await self.disconnect(inuse_connections=False)

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:
            await self._primary.aclose()
