"""Makes connections: name, address, TCP, TLS.

A name is looked up once in `DNS_TTL_S`, by one lookup however many calls want it, and again after none of its addresses
could be reached. Its addresses are tried as happy eyeballs says (RFC 8305), beginning with another one each time, so
that the connections to a name with many addresses are spread over them.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import lru_cache
from time import monotonic
from typing import NamedTuple

import aiohappyeyeballs

from gristmilld.upstream.connection import Connection

DNS_TTL_S = 300.0
HAPPY_EYEBALLS_DELAY_S = 0.25

Addresses = Sequence[aiohappyeyeballs.AddrInfoType]


class Origin(NamedTuple):
    """Where connections go; those of one origin serve each other's calls.

    Attributes:
        host: name or address, as it is looked up and as the certificate must name it.
        port: TCP port.
        tls: None without TLS; True checks against the system's certificates, False does not check.
    """

    host: str
    port: int
    tls: ssl.SSLContext | bool | None


class Dialler:
    """Makes the connections of one client, in one loop.

    Args:
        make: makes the protocol of a new connection.
    """

    def __init__(self, make: Callable[[], Connection]) -> None:
        self._make = make
        self._known: dict[tuple[str, int], tuple[float, Addresses]] = {}
        self._lookups: dict[tuple[str, int], asyncio.Task[Addresses]] = {}
        self._turn = 0

    async def dial(self, origin: Origin) -> Connection:
        """A new connection to `origin`.

        Raises:
            One of `exceptions.NOT_CONNECTED`.
        """
        loop = asyncio.get_running_loop()
        addresses = await self._addresses(origin.host, origin.port)
        self._turn += 1
        first = self._turn % len(addresses)
        try:
            sock = await aiohappyeyeballs.start_connection(
                [*addresses[first:], *addresses[:first]], happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_S, interleave=1
            )
        except OSError:
            self._known.pop((origin.host, origin.port), None)
            raise
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            tls = _context(verify=origin.tls) if isinstance(origin.tls, bool) else origin.tls
            name = None if tls is None else origin.host.rstrip(".")
            _, connection = await loop.create_connection(self._make, sock=sock, ssl=tls, server_hostname=name)
        except BaseException:
            sock.close()
            raise
        return connection

    def close(self) -> None:
        """End the lookups that are under way."""
        for lookup in self._lookups.values():
            lookup.cancel()

    async def _addresses(self, host: str, port: int) -> Addresses:
        key = (host, port)
        known = self._known.get(key)
        if known is not None and monotonic() < known[0]:
            return known[1]
        lookup = self._lookups.get(key)
        if lookup is None:
            lookup = self._lookups[key] = asyncio.create_task(self._look_up(key))
            lookup.add_done_callback(_look)
        return await asyncio.shield(lookup)

    async def _look_up(self, key: tuple[str, int]) -> Addresses:
        try:
            addresses: Addresses = await asyncio.get_running_loop().getaddrinfo(
                *key, type=socket.SOCK_STREAM, flags=_flags(key[0])
            )
            self._known[key] = monotonic() + DNS_TTL_S, addresses
            return addresses
        finally:
            del self._lookups[key]


def _look(lookup: asyncio.Task[Addresses]) -> None:
    """The calls that wanted it may have been cancelled; then nobody else looks at its error."""
    if not lookup.cancelled():
        lookup.exception()


def _flags(host: str) -> int:
    """Addresses of families that this machine does not have are of no use; an address needs no lookup."""
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host.partition("%")[0])
    except OSError:
        return socket.AI_ADDRCONFIG
    return socket.AI_NUMERICHOST


@lru_cache(maxsize=2)
def _context(*, verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context
