"""From an exception of the HTTP client to a failure, in one place.

What matters is when it happened: before there was a connection (the endpoint is down, or the setup is wrong), on a
connection that had been used before and may have been closed by the server meanwhile (stale: nothing is lost, send
again), or later (the server may have begun to work: that costs an attempt).
"""

from __future__ import annotations

import errno
import os
import ssl

import aiohttp
import msgspec

from gristmill.contract.failure import FailureClass
from gristmill.contract.manifest import Timeouts
from gristmilld.upstream.body import UploadStalledError
from gristmilld.upstream.outcome import Clock, FailedCall, Shape

_C = FailureClass

CAUGHT = (aiohttp.ClientError, OSError, TimeoutError)
"""What a call may raise when the network or the server fails; anything else is a fault of ours."""

STALE_WITHIN_S = 10.0
"""A server that closes a connection later than this had taken the request up, whoever used the connection before."""

_NO_MORE_FILES = frozenset({errno.EMFILE, errno.ENFILE})


class Moment(msgspec.Struct, frozen=True):
    """When a call failed.

    Attributes:
        reused: the connection had carried another call before.
        answered: the response's headers had come.
        elapsed_s: since the call began.
    """

    reused: bool
    answered: bool
    elapsed_s: float


def failure_of(error: BaseException, moment: Moment, timeouts: Timeouts) -> FailedCall:
    """What `error`, one of `CAUGHT`, means. Its own text is not used: it may hold a URL with a password."""
    if isinstance(error, TimeoutError):
        return _timeout(error, moment, timeouts)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return _proxy_refused(error.status)
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientConnectorCertificateError):
        return _no_connection(error)
    if isinstance(error, ssl.SSLError | aiohttp.ServerFingerprintMismatch):
        return _tls()
    if isinstance(error, aiohttp.ClientResponseError):
        return FailedCall(_C.TRANSIENT, "what answers does not speak HTTP", shape=Shape.NOT_HTTP)
    return _cut_off(error, moment)


def _timeout(error: TimeoutError, moment: Moment, timeouts: Timeouts) -> FailedCall:
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return _ran_out(Clock.CONNECT, f"no connection within {timeouts.connect_s:g} s")
    if isinstance(error, UploadStalledError):
        return _ran_out(Clock.IDLE, f"the server took nothing of the request for {timeouts.idle_s:g} s")
    if not isinstance(error, aiohttp.ServerTimeoutError):
        return _ran_out(Clock.TOTAL, f"no whole answer within {timeouts.total_s:g} s")
    if moment.answered:
        return _ran_out(Clock.IDLE, f"nothing more of the answer came for {timeouts.idle_s:g} s")
    return _ran_out(Clock.FIRST_BYTE, f"nothing of an answer came within {timeouts.first_byte_s:g} s")


def _ran_out(clock: Clock, message: str) -> FailedCall:
    return FailedCall(_C.TIMEOUT, f"{message} (clock: {clock})", clock=clock)


def _proxy_refused(status: int) -> FailedCall:
    cls = _C.ENDPOINT_DOWN if status >= 500 else _C.CONFIG_ERROR
    return FailedCall(cls, f"the proxy refused to connect to the endpoint ({status})", shape=Shape.PROXY)


def _no_connection(error: aiohttp.ClientConnectorError | aiohttp.ClientConnectorCertificateError) -> FailedCall:
    cause = error.certificate_error if isinstance(error, aiohttp.ClientConnectorCertificateError) else error.os_error
    if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return FailedCall(_C.ENDPOINT_DOWN, "the server closed the connection while TLS was being set up")
    if isinstance(cause, ssl.SSLError | ssl.CertificateError):
        return _tls()
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return FailedCall(_C.ENDPOINT_DOWN, "the endpoint's host name can't be resolved", shape=Shape.DNS)
    code = getattr(cause, "errno", None)
    if code in _NO_MORE_FILES:
        return FailedCall(
            _C.CONFIG_ERROR, "no more files can be opened: raise `ulimit -n` or lower --concurrency", shape=Shape.FILES
        )
    shape = Shape.PROXY if isinstance(error, aiohttp.ClientProxyConnectionError) else None
    whom = "the proxy" if shape else "the endpoint"
    reason = os.strerror(code).lower() if isinstance(code, int) and code > 0 else "unreachable"
    return FailedCall(_C.ENDPOINT_DOWN, f"no connection to {whom}: {reason}", shape=shape)


def _tls() -> FailedCall:
    return FailedCall(
        _C.CONFIG_ERROR,
        "TLS failed: check http or https and the server's certificate, or give ca_file",
        shape=Shape.TLS,
    )


def _cut_off(error: BaseException, moment: Moment) -> FailedCall:
    if moment.answered:
        return FailedCall(_C.TRANSIENT, "the answer broke off")
    if moment.reused and moment.elapsed_s < STALE_WITHIN_S and not _partly_answered(error):
        return FailedCall(_C.STALE_CONNECTION, "the server had closed the idle connection")
    return FailedCall(_C.TRANSIENT, "the server closed the connection without an answer")


def _partly_answered(error: BaseException) -> bool:
    """Whether some of the response's headers had come."""
    return isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)
