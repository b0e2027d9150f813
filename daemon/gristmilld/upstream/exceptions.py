"""What it means when a call fails below HTTP, in one place (aiohttp's exceptions are led here by `foreign`).

What matters is when it happened: before there was a connection (the endpoint is down, or the setup is wrong), on a
connection that had been used before and may have been closed by the server meanwhile (stale: nothing is lost, send
again), or later (the server may have begun to work: that costs an attempt). The text of an exception is never used: it
may hold a URL with a password.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl

import msgspec

from gristmill.contract.failure import FailureClass
from gristmill.contract.manifest import Timeouts
from gristmilld.upstream.outcome import Clock, FailedCall, Shape

_C = FailureClass

NOT_CONNECTED = (OSError, ssl.CertificateError, UnicodeError)
"""What connecting may raise; `UnicodeError` for a host name that can't be one."""

STALE_WITHIN_S = 10.0
"""A server that closes a connection later than this had taken the request up, whoever used the connection before."""

_NO_MORE_FILES = frozenset({errno.EMFILE, errno.ENFILE})


class UploadStalledError(TimeoutError):
    """The server took nothing of the body for the time that the idle clock allows."""


class AnswerStalledError(TimeoutError):
    """Nothing of the response's body came for the time that the idle clock allows."""


class HeadTimeoutError(TimeoutError):
    """The response's head did not come within the time that the first-byte clock allows."""


class Moment(msgspec.Struct, frozen=True):
    """When a connection ended.

    Attributes:
        reused: it had carried another call before.
        answered: the response's head had come.
        begun: some of the response's head had come.
        elapsed_s: since the call began.
    """

    reused: bool
    answered: bool
    begun: bool
    elapsed_s: float


# -- what can be seen of a call ------------------------------------------------------------------------------------


def ran_out(clock: Clock, timeouts: Timeouts) -> FailedCall:
    """A clock of the call ran out."""
    match clock:
        case Clock.CONNECT:
            message = f"no connection within {timeouts.connect_s:g} s"
        case Clock.FIRST_BYTE:
            message = f"nothing of an answer came within {timeouts.first_byte_s:g} s"
        case Clock.IDLE:
            message = f"nothing more of the answer came for {timeouts.idle_s:g} s"
        case Clock.TOTAL:
            message = f"no whole answer within {timeouts.total_s:g} s"
    return _timeout(clock, message)


def upload_stalled(timeouts: Timeouts) -> FailedCall:
    """The idle clock ran out while the request was being sent."""
    return _timeout(Clock.IDLE, f"the server took nothing of the request for {timeouts.idle_s:g} s")


def _timeout(clock: Clock, message: str) -> FailedCall:
    return FailedCall(_C.TIMEOUT, f"{message} (clock: {clock})", clock=clock)


def cut_off(moment: Moment) -> FailedCall:
    """The connection ended before the response was whole."""
    if moment.answered:
        return broken_off()
    if moment.reused and moment.elapsed_s < STALE_WITHIN_S and not moment.begun:
        return FailedCall(_C.STALE_CONNECTION, "the server had closed the idle connection")
    return FailedCall(_C.TRANSIENT, "the server closed the connection without an answer")


def broken_off() -> FailedCall:
    """The response began and is not whole."""
    return FailedCall(_C.TRANSIENT, "the answer broke off")


def not_http() -> FailedCall:
    """What came is no HTTP response."""
    return FailedCall(_C.TRANSIENT, "what answers does not speak HTTP", shape=Shape.NOT_HTTP)


def too_large(status: int, cap_bytes: int) -> FailedCall:
    """The response is above the cap."""
    message = f"the answer is larger than {cap_bytes >> 20} MB: ask for less"
    return FailedCall(_C.BAD_REQUEST, message, status_code=status)


def no_connection(cause: BaseException, *, to_proxy: bool = False) -> FailedCall:
    """Connecting failed with `cause`, one of `NOT_CONNECTED`."""
    if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return FailedCall(_C.ENDPOINT_DOWN, "the server closed the connection while TLS was being set up")
    if isinstance(cause, ssl.SSLError | ssl.CertificateError):
        return tls_failed()
    if isinstance(cause, socket.gaierror | UnicodeError):
        return no_name()
    code = getattr(cause, "errno", None)
    if code in _NO_MORE_FILES:
        return FailedCall(
            _C.CONFIG_ERROR, "no more files can be opened: raise `ulimit -n` or lower --concurrency", shape=Shape.FILES
        )
    whom = "the proxy" if to_proxy else "the endpoint"
    reason = os.strerror(code).lower() if isinstance(code, int) and code > 0 else "unreachable"
    return FailedCall(_C.ENDPOINT_DOWN, f"no connection to {whom}: {reason}", shape=Shape.PROXY if to_proxy else None)


def no_name() -> FailedCall:
    """The endpoint's host has no address."""
    return FailedCall(_C.ENDPOINT_DOWN, "the endpoint's host name can't be resolved", shape=Shape.DNS)


def tls_failed() -> FailedCall:
    """The two sides did not agree on TLS."""
    return FailedCall(
        _C.CONFIG_ERROR,
        "TLS failed: check http or https and the server's certificate, or give ca_file",
        shape=Shape.TLS,
    )
