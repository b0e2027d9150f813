"""Webhooks: signed by the known scheme, and no way into the daemon's own network."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket

import pytest

from gristmilld.control import webhook
from gristmilld.control.webhook import WebhookError, post, sign

PRIVATE = [
    "127.0.0.1", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
    "[::1]", "[fe80::1]", "[fc00::1]", "[::ffff:10.0.0.1]", "[64:ff9b:1::1]", "[64:ff9b::a00:1]", "[2002:0a00:0001::1]",
]  # fmt: skip


@pytest.mark.parametrize("host", PRIVATE)
async def test_private_addresses_are_refused(host: str):
    """Loopback, private, link-local (a cloud's metadata), shared, multicast; also wrapped into an IPv6 address."""
    with pytest.raises(WebhookError, match="private address"):
        await post(f"http://{host}:9/x?token=hidden", b"{}", {}, private=False)


async def test_a_name_for_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch):
    """What counts is the address that would be connected to; the sentence shows neither path nor query."""

    def resolve(host: str, port: int, *_: object, **__: object) -> list:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(WebhookError, match="private address") as caught:
        await post("http://innocent.example:9/x?token=hidden", b"{}", {}, private=False)
    assert "hidden" not in str(caught.value)


def test_public_addresses_are_not_private():
    """The judgement is not just a refusal of everything."""
    for host in ("93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"):
        assert not webhook._is_private(host)


@pytest.mark.parametrize("url", ["ftp://h/x", "file:///etc/passwd", "h/x", "http://", "http://[::1"])
async def test_other_urls_are_refused(url: str):
    """Only http and https, with a host."""
    with pytest.raises(WebhookError, match="must begin with https"):
        await post(url, b"{}", {}, private=True)


@pytest.mark.parametrize(
    ("secret", "key"), [("plain text", b"plain text"), ("whsec_" + base64.b64encode(b"\0\1\2").decode(), b"\0\1\2")]
)
def test_a_call_is_signed(secret: str, key: bytes):
    """HMAC-SHA256 over id, time and body, by either spelling of a secret."""
    headers = sign("gm-j-e", 1_700_000_000, b'{"a":1}', secret)
    expected = hmac.new(key, b'gm-j-e.1700000000.{"a":1}', hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(expected).decode()
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("gm-j-e", "1700000000")
