"""URLs of stores: one server, a primary that sentinels know, or a cluster. PURE.

==========================================================  ==========================================================
form                                                        means
==========================================================  ==========================================================
``redis://[USER:PASSWORD@]HOST[:PORT][/DB]``, ``unix://``   one server at that address
``redis+sentinel://[..@]HOST[:PORT],HOST2../SERVICE[/DB]``  the primary of SERVICE, as these sentinels know it just now
``redis+cluster://[..@]HOST[:PORT],HOST2..``                the cluster that these nodes belong to
==========================================================  ==========================================================

With ``rediss`` in place of ``redis`` everything goes over TLS, also what sentinels are asked. User and password are the
store's; the sentinels' own are the query options ``sentinel_username`` and ``sentinel_password``. Other query options
are those of a plain URL (``ssl_ca_certs``).
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

import msgspec

PLAIN_FORM = "redis://HOST:PORT, rediss://, unix:///PATH"
SENTINEL_FORM = "redis+sentinel://[USER:PASSWORD@]HOST:26379,HOST2:26379/SERVICE[/DB]"
CLUSTER_FORM = "redis+cluster://[USER:PASSWORD@]HOST:6379,HOST2:6379"
FORMS = f"{PLAIN_FORM}, {SENTINEL_FORM} or {CLUSTER_FORM}"
SENTINEL_PORT = 26379
STORE_PORT = 6379
_PLAIN = ("redis", "rediss", "unix")
_KINDS = ("sentinel", "cluster")

_AUTHORITY = re.compile("([^/?#:]+://)([^/?#]*)")

Host = tuple[str, int]


class Plain(msgspec.Struct, frozen=True):
    """One server; `url` is what the client library takes."""

    url: str

    def __repr__(self) -> str:
        return "Plain()"


class Sentinels(msgspec.Struct, frozen=True):
    """The primary of `service`, looked up at `hosts`.

    Attributes:
        url: a plain URL that holds user, password, number and options of the store; its host means nothing.
        username: at the sentinels, as `password`; None where they want none.
    """

    hosts: tuple[Host, ...]
    service: str
    url: str
    username: str | None
    password: str | None

    def __repr__(self) -> str:
        return f"Sentinels({self.hosts!r}, {self.service!r})"


class Cluster(msgspec.Struct, frozen=True):
    """The cluster of the nodes `hosts`; `url` as in `Sentinels`."""

    hosts: tuple[Host, ...]
    url: str

    def __repr__(self) -> str:
        return f"Cluster({self.hosts!r})"


def parse_store_url(text: str) -> Plain | Sentinels | Cluster:
    """What the URL `text` means.

    Raises:
        ValueError: one sentence with the form to write; it repeats nothing of the text, which may hold a password.
    """
    try:
        parts = _split(text)
    except ValueError:
        raise ValueError(f"the store's URL cannot be read: write {PLAIN_FORM}") from None
    scheme, _, kind = parts.scheme.partition("+")
    if kind in _KINDS and scheme in {"redis", "rediss"}:
        return _sentinels(parts, scheme) if kind == "sentinel" else _cluster(parts, scheme)
    if kind or scheme not in _PLAIN:
        raise ValueError(f"the store's URL cannot be used: write {FORMS}")
    number = parts.path.strip("/")
    if scheme != "unix" and number and not number.isdecimal():  # the client library would take number 0
        raise ValueError("the store's URL ends with something else than a number: write redis://HOST:PORT/DB")
    return Plain(text)


def _split(text: str) -> SplitResult:
    """As `urlsplit`, which would look for one host and takes no list with an IPv6 address in it.

    Raises:
        ValueError: it is no URL.
    """
    found = _AUTHORITY.match(text)
    if found is None:
        return urlsplit(text)
    return urlsplit(f"{found[1]}{text[found.end() :]}")._replace(netloc=found[2])


def _sentinels(parts: SplitResult, scheme: str) -> Sentinels:
    service, _, number = parts.path.strip("/").partition("/")
    if not service or (number and not number.isdecimal()):
        raise ValueError(f"the store's URL names no service of its sentinels, or no number: write {SENTINEL_FORM}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    username, password = options.pop("sentinel_username", None), options.pop("sentinel_password", None)
    return Sentinels(
        _hosts(parts.netloc, SENTINEL_PORT, SENTINEL_FORM),
        unquote(service),
        _plain_url(parts, scheme, f"/{number or 0}", options),
        username,
        password,
    )


def _cluster(parts: SplitResult, scheme: str) -> Cluster:
    if parts.path.strip("/") not in {"", "0"}:
        raise ValueError(f"the store's URL names a number, and a cluster has none: write {CLUSTER_FORM}")
    hosts = _hosts(parts.netloc, STORE_PORT, CLUSTER_FORM)
    return Cluster(hosts, _plain_url(parts, scheme, "", dict(parse_qsl(parts.query, keep_blank_values=True))))


def _plain_url(parts: SplitResult, scheme: str, path: str, options: dict[str, str]) -> str:
    who, at, _ = parts.netloc.rpartition("@")
    query = f"?{urlencode(options)}" if options else ""
    return f"{scheme}://{who}{at}localhost{path}{query}"


def _hosts(netloc: str, default_port: int, form: str) -> tuple[Host, ...]:
    """The ``HOST[:PORT]`` of a comma-separated list; an IPv6 address stands in brackets."""
    found = []
    for word in netloc.rpartition("@")[2].split(","):
        try:
            one = urlsplit(f"//{word}")
            host, port = one.hostname, one.port
        except ValueError:
            host, port = None, None
        if not host:
            raise ValueError(f"the store's URL has a host or port that cannot be read: write {form}")
        found.append((host, port or default_port))
    return tuple(found)


def shown(url: str) -> str:
    """The URL without what may be a secret: user, password and query."""
    try:
        parts = _split(url)
        where = ",".join(_shown_host(word) for word in parts.netloc.rpartition("@")[2].split(","))
    except ValueError:
        return "(not a URL)"
    if not parts.scheme or ("@" in parts.path and parts.scheme != "unix"):
        return "(not a URL)"
    return f"{parts.scheme}://{where}{parts.path}"


def _shown_host(word: str) -> str:
    """
    Raises:
        ValueError: it is no host and port, so it may be a part of a password.
    """
    parts = urlsplit(f"//{word}")
    host = parts.hostname or ""
    return (f"[{host}]" if ":" in host else host) + (f":{parts.port}" if parts.port else "")
