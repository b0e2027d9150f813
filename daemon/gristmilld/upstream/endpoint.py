"""One endpoint of one worker process: where it is, how to speak to it, and how it fares.

Everything that a call needs is made once: the headers with the key, the URLs by path, the TLS context. The key goes to
this scheme, host and port alone, since no redirect is followed.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from gristmill import __version__
from gristmill.contract.failure import Failure
from gristmilld.upstream.ages import Ages
from gristmilld.upstream.dial import Origin
from gristmilld.upstream.limits import Limits, Pass
from gristmilld.upstream.outcome import Answer, FailedCall

if TYPE_CHECKING:
    from gristmilld.config import EndpointConfig

log = logging.getLogger(__name__)

USER_AGENT = f"gristmill/{__version__}"
MAX_TARGETS = 64
"""Paths whose URL is remembered; a job has one or two."""


class Call:
    """One call in flight. Leaving the context counts it as over; without an outcome it says nothing of the endpoint.

    Attributes:
        outcome: set it to what `UpstreamClient.send` gave; after the context, a 5xx that was part of a burst has
            become `overloaded` here, so decide by this value.
    """

    __slots__ = ("_endpoint", "_pass", "outcome")

    def __init__(self, endpoint: Endpoint, granted: Pass) -> None:
        self._endpoint = endpoint
        self._pass = granted
        self.outcome: Answer | Failure | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.outcome = self._endpoint.settle(self._pass, self.outcome)


class Endpoint:
    """An endpoint and its state in this process.

    Raises:
        ValueError: the CA file cannot be read, or the key is none; the message says which endpoint.
    """

    def __init__(self, config: EndpointConfig, *, now: Callable[[], float] = time.monotonic) -> None:
        self.name = config.name
        self.url = config.url
        self.headers = _headers(config)
        self.proxy = URL(config.proxy) if config.proxy else None
        self.ordinary = config.aiohttp or self.proxy is not None
        self.origin = _origin(config)
        self.limits = Limits(config.max_in_flight)
        self.now = now
        self._targets: dict[str, URL] = {}
        self._heads: dict[str, bytes] = {}
        self._ages = Ages()

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, {self.url!r}, {self.state})"

    def target(self, path: str) -> URL:
        """The URL of `path`, which begins with a slash."""
        url = self._targets.get(path)
        if url is None:
            if len(self._targets) >= MAX_TARGETS:
                self._targets.clear()
            url = self._targets[path] = URL(self.url + path)
        return url

    def head(self, path: str) -> bytes:
        """The head of a request to `path`, up to the value of its Content-Length, which comes last."""
        head = self._heads.get(path)
        if head is None:
            if len(self._heads) >= MAX_TARGETS:
                self._heads.clear()
            head = self._heads[path] = _head(self.target(path), self.headers)
        return head

    @property
    def outstanding(self) -> int:
        """Calls in flight."""
        return self.limits.outstanding

    @property
    def ready(self) -> bool:
        """Whether a call may begin now."""
        return self.limits.ready(self.now())

    @property
    def ready_in_s(self) -> float:
        """Seconds until cool-down and breaker let a call through."""
        return self.limits.ready_in_s(self.now())

    @property
    def state(self) -> str:
        """``ok``, ``limited``, ``cooling`` or ``down``: for metrics and messages."""
        limits = self.limits
        if limits.open_until_s is not None:
            return "down"
        if limits.ready_in_s(self.now()) > 0.0:
            return "cooling"
        return "limited" if limits.limit < limits.ceiling else "ok"

    def begin(self) -> Call:
        """Count a call as in flight; do it in the same step as `EndpointPool.pick`, before anything is awaited."""
        return Call(self, self.limits.begin(self.now()))

    def settle(self, granted: Pass, outcome: Answer | Failure | None) -> Answer | Failure | None:
        """Count a call as over, tell of a change that a person should see, and explain its outcome (see `Limits`)."""
        limits = self.limits
        if outcome is None:
            limits.abandoned(granted)
            return None
        was_down = limits.open_until_s is not None
        if isinstance(outcome, Failure):
            outcome = limits.failed(granted, outcome, self.now())
            advice = self._ages.note(outcome) if isinstance(outcome, FailedCall) else None
            if advice is not None:
                log.warning("endpoint %s: %s", self.name, advice)
        else:
            limits.good(granted, self.now())
        if was_down != (limits.open_until_s is not None):
            self._tell(outcome)
        return outcome

    def _tell(self, outcome: Answer | Failure) -> None:
        if self.limits.open_until_s is None:
            log.info("endpoint %s answers again", self.name)
        elif isinstance(outcome, Failure):
            log.warning("endpoint %s is down, its requests wait: %s", self.name, outcome.message)


def _headers(config: EndpointConfig) -> CIMultiDictProxy[str]:
    headers = CIMultiDict({"Content-Type": "application/json", "User-Agent": USER_AGENT})
    if config.key is not None:
        key = config.key.reveal()
        if not key.isascii() or not key.isprintable():
            raise ValueError(f"endpoint {config.name}: its key holds characters that no HTTP header may: check the key")
        headers["Authorization"] = f"Bearer {key}"
    return CIMultiDictProxy(headers)


def _head(url: URL, headers: Mapping[str, str]) -> bytes:
    lines = [f"POST {url.raw_path_qs} HTTP/1.1", f"Host: {url.host_port_subcomponent}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "Content-Length: "]).encode("ascii")


def _origin(config: EndpointConfig) -> Origin:
    url = URL(config.url)
    assert url.raw_host is not None
    assert url.port is not None
    tls = _tls(config)  # also without TLS, so that a wrong ca_file is found
    return Origin(url.raw_host, url.port, tls if url.scheme == "https" else None)


def _tls(config: EndpointConfig) -> ssl.SSLContext | bool:
    """As `Origin.tls`."""
    if config.insecure:
        return False
    if config.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=config.ca_file)
    except (OSError, ssl.SSLError):
        raise ValueError(
            f"endpoint {config.name}: {config.ca_file} can't be read as PEM certificates: check ca_file"
        ) from None
