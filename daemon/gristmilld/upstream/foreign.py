"""aiohttp's exceptions, led to what they mean (`exceptions`); apart, so that only whoever needs aiohttp loads it."""

from __future__ import annotations

import ssl

import aiohttp
import msgspec

from gristmill.contract.failure import FailureClass
from gristmill.contract.manifest import Timeouts
from gristmilld.upstream.exceptions import (
    AnswerStalledError,
    HeadTimeoutError,
    Moment,
    UploadStalledError,
    cut_off,
    no_connection,
    no_name,
    not_http,
    ran_out,
    tls_failed,
    upload_stalled,
)
from gristmilld.upstream.outcome import Clock, FailedCall, Shape

CAUGHT = (aiohttp.ClientError, OSError, TimeoutError)
"""What a call through aiohttp may raise when the network or the server fails; anything else is a fault of ours."""


def failure_of(error: BaseException, moment: Moment, timeouts: Timeouts) -> FailedCall:
    """What `error`, one of `CAUGHT`, means."""
    if isinstance(error, TimeoutError):
        return _which_clock(error, timeouts)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return _proxy_refused(error.status)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return no_connection(error.certificate_error)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return no_name()
    if isinstance(error, aiohttp.ClientConnectorError):
        return no_connection(error.os_error, to_proxy=isinstance(error, aiohttp.ClientProxyConnectionError))
    if isinstance(error, ssl.SSLError | aiohttp.ServerFingerprintMismatch):
        return tls_failed()
    if isinstance(error, aiohttp.ClientResponseError):
        return not_http()
    return cut_off(msgspec.structs.replace(moment, begun=moment.begun or _partly_answered(error)))


def _which_clock(error: TimeoutError, timeouts: Timeouts) -> FailedCall:
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return ran_out(Clock.CONNECT, timeouts)
    if isinstance(error, UploadStalledError):
        return upload_stalled(timeouts)
    if isinstance(error, HeadTimeoutError):
        return ran_out(Clock.FIRST_BYTE, timeouts)
    return ran_out(Clock.IDLE if isinstance(error, AnswerStalledError) else Clock.TOTAL, timeouts)


def _proxy_refused(status: int) -> FailedCall:
    cls = FailureClass.ENDPOINT_DOWN if status >= 500 else FailureClass.CONFIG_ERROR
    return FailedCall(cls, f"the proxy refused to connect to the endpoint ({status})", shape=Shape.PROXY)


def _partly_answered(error: BaseException) -> bool:
    """Whether some of the response's headers had come."""
    return isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)
