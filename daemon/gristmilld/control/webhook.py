"""One signed call of a webhook, by the Standard Webhooks scheme, that reaches no address it is not meant to reach.

Headers: ``webhook-id`` (the same for every repetition), ``webhook-timestamp`` (s), and ``webhook-signature``:
``v1,`` and the base64 of HMAC-SHA256 over ``id.timestamp.body``.

Whoever may submit a job names the URL. So a private address (loopback, private networks, link-local and the like) is
refused unless the daemon's settings allow it; the address that was judged is the one that is connected to; redirects
are not followed; and no proxy of the environment is used.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Mapping

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

TIMEOUT_S = 15.0
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.IPv6Network("64:ff9b:1::/48")
_HOW_TO_ALLOW = "`private` in the daemon's [webhooks] allows those"


class WebhookError(Exception):
    """It was not called, or did not take the call; a sentence without the URL's path and query, which may be secret."""


def sign(key: str, at_s: int, body: bytes, secret: str) -> dict[str, str]:
    """The headers of a call."""
    digest = hmac.new(_secret_bytes(secret), f"{key}.{at_s}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": key,
        "webhook-timestamp": str(at_s),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        "content-type": "application/json",
    }


def _secret_bytes(secret: str) -> bytes:
    """``whsec_`` announces base64, as the scheme has it; any other text is taken as it is."""
    if secret.startswith("whsec_"):
        return base64.b64decode(secret.removeprefix("whsec_"))
    return secret.encode()


async def post(url: str, body: bytes, headers: Mapping[str, str], *, private: bool) -> None:
    """Send `body`; `private` addresses are refused unless it is set.

    Raises:
        WebhookError: refused here, unreachable, or answered with anything but 2xx.
    """
    target = _parse(url)
    where = str(target.origin())
    if not private and target.host is not None and _is_private_literal(target.host):
        raise WebhookError(f"the webhook {where} has a private address: {_HOW_TO_ALLOW}")
    resolver = ThreadedResolver() if private else _PublicResolver()
    connector = aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session,
            session.post(target, data=body, headers=headers, allow_redirects=False) as answer,
        ):
            if not 200 <= answer.status < 300:
                raise WebhookError(f"the webhook {where} answered {answer.status}")
    except (aiohttp.ClientError, OSError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, _PrivateAddressError) else error
        why = str(cause) if isinstance(cause, _PrivateAddressError) else type(error).__name__
        raise WebhookError(f"the webhook {where} can't be called: {why}") from error


def _parse(url: str) -> URL:
    try:
        target = URL(url)
    except ValueError:
        raise WebhookError("the webhook's URL can't be read: it must begin with https:// or http://") from None
    if target.scheme not in {"http", "https"} or not target.host:
        raise WebhookError("the webhook's URL can't be used: it must begin with https:// or http://")
    return target


class _PrivateAddressError(OSError):
    """A name that stands for a private address."""


class _PublicResolver(ThreadedResolver, AbstractResolver):
    """Gives public addresses alone, so what is judged is what is connected to."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await super().resolve(host, port, family)
        public = [one for one in found if not _is_private(one["host"])]
        if not public:
            raise _PrivateAddressError(f"its name stands for a private address: {_HOW_TO_ALLOW}")
        return public


def _is_private_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return _is_private(host)


def _is_private(host: str) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64_LOCAL:
            return True
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        address = inner or address
    return not address.is_global or address.is_multicast
