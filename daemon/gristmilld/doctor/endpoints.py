"""Each model server: does it answer, take its key, list models, and serve metrics? One thread each, bounded in time."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from gristmill.preflight import PROBE_TIMEOUT_S, Unusable, Usable, direct, probe
from gristmilld.config import EndpointConfig
from gristmilld.doctor.finding import Finding, fail, ok, warn

METRICS_TIMEOUT_S = 3.0
MOST_NAMED = 3
_METRICS_READ_BYTES = 64 << 10
_FAMILIES = {"vllm": b"vllm:", "SGLang": b"sglang:", "llama.cpp": b"llamacpp:", "TGI": b"tgi_"}
_KEY_ADVICE = "check the key that key_env or key_file names, or OPENAI_API_KEY for -e"
_FIXES = {
    "key": _KEY_ADVICE,
    "away": "start the server, or check host, port and firewall",
    "tls": "name its CA's file as ca_file of the endpoint",
}


def examine(endpoints: Sequence[EndpointConfig]) -> list[Finding]:
    """What there is to say of each, in their order."""
    if not endpoints:
        return []
    with ThreadPoolExecutor(min(len(endpoints), 32)) as threads:
        return [finding for each in threads.map(_examine, endpoints) for finding in each]


def _examine(endpoint: EndpointConfig) -> list[Finding]:
    check = f"endpoint {endpoint.name}"
    try:
        tls = trust(endpoint)
    except (OSError, ssl.SSLError):
        return [fail(check, f"{endpoint.ca_file} holds no certificates", "name a PEM file as ca_file")]
    key = endpoint.key.reveal() if endpoint.key else None
    verdict = probe(endpoint.url, key, PROBE_TIMEOUT_S, tls=tls, proxy=endpoint.proxy)
    if isinstance(verdict, Unusable):
        return [fail(check, verdict.problem, _FIXES.get(verdict.kind, verdict.advice))]
    found = [_usable(check, endpoint, verdict, tls)]
    if key and travels_bare(endpoint.url):
        found.append(
            warn(check, "its key is sent without TLS to another machine", "use https://, or a private network")
        )
    return found


def trust(endpoint: EndpointConfig) -> ssl.SSLContext | None:
    """Which certificates its probe trusts; None is the system's.

    Raises:
        OSError: `ca_file` can't be read, or holds no certificates.
    """
    if endpoint.insecure:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    return ssl.create_default_context(cafile=endpoint.ca_file) if endpoint.ca_file else None


def travels_bare(url: str) -> bool:
    """Whether what is sent there leaves this machine unencrypted. PURE."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost" or host.endswith(".localhost")
    return parts.scheme == "http" and not loopback


def _usable(check: str, endpoint: EndpointConfig, verdict: Usable, tls: ssl.SSLContext | None) -> Finding:
    if verdict.models is None:
        return warn(
            check,
            f"{endpoint.url} answers, but has no list of models",
            "check that the base URL is right; if it is, name the model with -m when you submit",
        )
    named = ", ".join(verdict.models[:MOST_NAMED]) + (", ..." if len(verdict.models) > MOST_NAMED else "")
    served = f"serves {named}" if named else "serves no model"
    return ok(check, f"{endpoint.url} {served}; {_metrics(endpoint, tls)}")


def _metrics(endpoint: EndpointConfig, tls: ssl.SSLContext | None) -> str:
    """What is known of the server's own metrics; its key is not sent there."""
    parts = urlsplit(endpoint.url)
    url = f"{parts.scheme}://{parts.netloc}/metrics"
    try:
        with direct(tls=tls, proxy=endpoint.proxy).open(url, timeout=METRICS_TIMEOUT_S) as answer:
            text = answer.read(_METRICS_READ_BYTES)
    except (OSError, ValueError):
        return "no metrics"
    kinds = [name for name, start in _FAMILIES.items() if start in text]
    return f"metrics ({', '.join(kinds) or 'of another kind'}) at {url}"
