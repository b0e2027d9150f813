"""Ask every endpoint for its models before a job starts: a wrong setup should cost seconds and not one request.

One ``GET {base}/models`` per endpoint, in parallel, each within 10 s. What counts is whether the endpoint can be worked
with: an answer of 404 is one (some servers have no list; the first requests will tell), a refused key or a redirect is
none. A redirect is never followed, since the key belongs to the host that the user named. Environment proxies are not
used, since the daemon does not use them either.

The probes run in daemon threads: a name server that hangs cannot hold up the end of the command.
"""

from __future__ import annotations

import http.client
import queue
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

PROBE_TIMEOUT_S = 10.0
"""Until one endpoint must have answered, from connecting to the last byte."""

_LIST_CAP_BYTES = 4 << 20


class Usable(msgspec.Struct, frozen=True):
    """An endpoint that can be worked with; `models` is None where it has no list."""

    url: str
    models: list[str] | None


class Unusable(msgspec.Struct, frozen=True):
    """An endpoint that cannot be worked with: `problem` says which and why, `advice` what to do.

    `kind` is for whoever has advice of their own: the key, nobody there, TLS, or anything else.
    """

    url: str
    problem: str
    advice: str
    kind: Literal["key", "away", "tls", "other"] = "other"

    @property
    def message(self) -> str:
        """One sentence of both."""
        return f"{self.problem}: {self.advice}"


Verdict = Usable | Unusable


class _Model(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_Model]


def preflight(urls: Sequence[str], key: str | None, timeout_s: float = PROBE_TIMEOUT_S) -> list[Verdict]:
    """The verdict on each base URL, in the order of `urls`, after at most `timeout_s` and a second."""
    answers: queue.SimpleQueue[tuple[int, Verdict]] = queue.SimpleQueue()
    for i, url in enumerate(urls):
        threading.Thread(
            target=lambda i=i, url=url: answers.put((i, probe(url, key, timeout_s))), daemon=True, name="preflight"
        ).start()
    verdicts: dict[int, Verdict] = {}
    deadline = time.monotonic() + timeout_s + 1
    while len(verdicts) < len(urls):
        try:
            i, verdict = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        verdicts[i] = verdict
    return [verdicts.get(i) or _silent(url, timeout_s) for i, url in enumerate(urls)]


def wait_for_endpoint(
    urls: Sequence[str],
    key: str | None,
    patience_s: float,
    waiting: Callable[[list[Verdict]], None] = lambda _: None,
) -> list[Verdict]:
    """Repeat `preflight` until an endpoint is usable or `patience_s` is over; `waiting` hears of every vain round."""
    deadline = time.monotonic() + patience_s
    while True:
        verdicts = preflight(urls, key)
        left_s = deadline - time.monotonic()
        if left_s <= 0 or any(isinstance(v, Usable) for v in verdicts):
            return verdicts
        waiting(verdicts)
        time.sleep(min(1.0, left_s))


def probe(
    url: str,
    key: str | None,
    timeout_s: float = PROBE_TIMEOUT_S,
    *,
    tls: ssl.SSLContext | None = None,
    proxy: str | None = None,
) -> Verdict:
    """Ask one endpoint; never raises.

    Args:
        tls: which certificates to trust; None is the system's.
        proxy: URL of the HTTP proxy to ask through.
    """
    headers = {"Accept": "application/json", "User-Agent": "gristmill"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    opener = direct(tls=tls, proxy=proxy)
    try:
        request = urllib.request.Request(f"{url}/models", headers=headers)  # noqa: S310  normalised to http or https
        with opener.open(request, timeout=timeout_s) as response:
            return Usable(url, _models(response.read(_LIST_CAP_BYTES)))
    except urllib.error.HTTPError as error:
        with error:
            return _refused(url, error, has_key=bool(key))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _unreachable(url, error, timeout_s)


def direct(*, tls: ssl.SSLContext | None = None, proxy: str | None = None) -> urllib.request.OpenerDirector:
    """Opens URLs without the environment's proxies, and follows no redirect."""
    proxies = {"http": proxy, "https": proxy} if proxy else {}
    return urllib.request.build_opener(
        urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=tls), _NoRedirect()
    )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _models(body: bytes) -> list[str] | None:
    """The ids of a model list; None where the body is no such list."""
    try:
        return [m.id for m in msgspec.json.decode(body, type=_ModelList).data]
    except msgspec.MsgspecError:
        return None


def _refused(url: str, error: urllib.error.HTTPError, *, has_key: bool) -> Verdict:
    """The verdict on an HTTP error status."""
    code = error.code
    if code in {401, 403}:
        what, how = ("key", "check the key in") if has_key else ("request without a key", "set")
        return Unusable(url, f"{url} refused the {what} ({code})", f"{how} OPENAI_API_KEY", "key")
    if code == 402:
        return Unusable(url, f"{url} asks for payment (402)", "top up the account that the key belongs to")
    if 300 <= code < 400:
        target = error.headers.get("Location", "another address").split("?")[0]
        return Unusable(url, f"{url} redirects to {target} ({code})", "give that server's own base URL with -e")
    return Usable(url, None)


def _silent(url: str, timeout_s: float) -> Unusable:
    return Unusable(
        url, f"{url} gave no answer within {timeout_s:g} s", f"check the address and the server, {_OR_WAIT}", "away"
    )


_OR_WAIT = "or wait for it with --wait-for-endpoint SECONDS"


def _unreachable(url: str, error: Exception, timeout_s: float) -> Unusable:
    """The verdict on a connection that failed."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return _silent(url, timeout_s)
    if isinstance(cause, ConnectionRefusedError):
        advice = f"start the server or check host and port, {_OR_WAIT}"
        return Unusable(url, f"{url} refused the connection", advice, "away")
    if isinstance(cause, socket.gaierror):
        return Unusable(url, f"the host of {url} cannot be resolved ({cause.strerror})", "check the spelling and DNS")
    if isinstance(cause, ssl.SSLCertVerificationError):
        problem = f"the TLS certificate of {url} is not trusted ({cause.verify_message})"
        return Unusable(url, problem, "set SSL_CERT_FILE to its CA's file", "tls")
    if isinstance(cause, ssl.SSLError):
        return Unusable(url, f"TLS with {url} failed ({cause.reason or 'handshake'})", "is it http:// that it speaks?")
    if isinstance(cause, http.client.HTTPException | ConnectionError):
        problem = f"{url} does not answer as an HTTP server ({type(cause).__name__})"
        return Unusable(url, problem, "check scheme, host and port")
    detail = cause.strerror if isinstance(cause, OSError) and cause.strerror else type(cause).__name__
    return Unusable(url, f"{url} cannot be reached ({detail})", "check the address")
