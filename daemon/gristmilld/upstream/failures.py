"""PURE: from a response to a failure, in one place.

The status says most; the server's words refine it where servers use one status for several things (see `wordings`).
No word of the server reaches a message (see `sanitise`). Exceptions of the HTTP client are translated next door, in
`exceptions`; answers that came with 200 are read in `shapes`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gristmill.contract.failure import Failure, FailureClass
from gristmilld.upstream import wordings
from gristmilld.upstream.errorbody import ErrorBody, read, retry_after_s
from gristmilld.upstream.outcome import FailedCall, Shape
from gristmilld.upstream.wordings import says, says_unknown_model

_C = FailureClass

RETRIED_4XX = frozenset({408, 409, 425, 499})
OVERLOADED = frozenset({503, 529})


def error_in_ok(failure: FailedCall, status: int, headers: Mapping[str, str], body: bytes) -> FailedCall:
    """Refine a failure that was found in a 2xx: an error that names its own status means that status."""
    if failure.cls is not _C.TRANSIENT:
        return msgspec.structs.replace(failure, status_code=status)
    error = read(body)
    if failure.shape is not None or not error.is_json:
        return _of(_C.TRANSIENT, failure.message, status, error, failure.shape, retry_after_s(headers, error))
    inner = error.status
    if inner is None and not says(error.text, wordings.CONTEXT + wordings.NO_BALANCE):
        return _of(_C.TRANSIENT, failure.message, status, error, None, retry_after_s(headers, error))
    cls, message, shape = _of_status(inner or 400, error)
    return _of(
        cls, f"an error came with status {status}: {message}", status, error, shape, retry_after_s(headers, error)
    )


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> FailedCall:
    """What a response of any other status than 2xx means."""
    error = read(body)
    cls, message, shape = _of_status(status, error)
    return _of(cls, message, status, error, shape, retry_after_s(headers, error))


def _of(
    cls: FailureClass, message: str, status: int, error: ErrorBody, shape: Shape | None, wait_s: float | None
) -> FailedCall:
    if error.code and f"({error.code})" not in message:
        message = f"{message} ({error.code})"
    return FailedCall(cls, message, status_code=status, retry_after_s=wait_s, shape=shape)


_Verdict = tuple[FailureClass, str, Shape | None]


def _of_status(status: int, error: ErrorBody) -> _Verdict:
    if status < 400:
        return (
            _C.CONFIG_ERROR,
            f"the server redirects ({status}): give the URL it redirects to, none is followed",
            Shape.REDIRECT,
        )
    if status in {401, 402, 403, 407}:
        return _not_allowed(status, error)
    if status == 429:
        return _too_many(error)
    if status in OVERLOADED:
        return _C.OVERLOADED, f"the server is overloaded or still starting ({status})", None
    if status in RETRIED_4XX:
        return _C.TRANSIENT, f"the server answered {status}", None
    if status >= 500:
        return _server_error(status, error)
    return _bad_request(status, error)


def _not_allowed(status: int, error: ErrorBody) -> _Verdict:
    if status == 403 and says(error.text, wordings.CONTENT_FILTER):
        return _filtered(status)
    if status == 402 or says(error.text, wordings.NO_BALANCE):
        return _no_balance(status)
    if status == 407:
        return _C.CONFIG_ERROR, "the proxy asks for a user and password (407): put them into its URL", Shape.PROXY
    what = "the server does not accept the key" if status == 401 else "the server does not allow this"
    return _C.CONFIG_ERROR, f"{what} ({status}): check the endpoint's key and what it may use", Shape.AUTH


def _too_many(error: ErrorBody) -> _Verdict:
    if says(error.text, wordings.NO_BALANCE):
        return _no_balance(429)
    if says(error.text, wordings.TOO_LARGE_FOR_RATE):
        return _C.BAD_REQUEST, "the request alone is above the account's rate limit (429): make it smaller", None
    return _C.RATE_LIMITED, "the server limits the rate (429)", None


def _server_error(status: int, error: ErrorBody) -> _Verdict:
    if status == 500 and says(error.text, wordings.CONTEXT):
        return _context(status, error)
    return _C.TRANSIENT, f"the server failed ({status})", None


def _bad_request(status: int, error: ErrorBody) -> _Verdict:
    if says(error.text, wordings.CONTENT_FILTER):
        return _filtered(status)
    if says(error.text, wordings.CONTEXT):
        return _context(status, error)
    if says(error.text, wordings.NO_BALANCE):
        return _no_balance(status)
    if status == 413:
        return _too_big(error)
    if says(error.text, wordings.NO_IMAGES):
        return _C.BAD_REQUEST, f"the model takes no pictures ({status})", Shape.NO_IMAGES
    if says_unknown_model(error.text):
        return _C.BAD_REQUEST, f"the server has no such model ({status})", Shape.UNKNOWN_MODEL
    if status == 404:
        return _C.BAD_REQUEST, "the server has nothing at this URL (404)", Shape.WRONG_URL
    if status == 405:
        return _C.BAD_REQUEST, "the server does not take POST at this URL (405)", Shape.WRONG_METHOD
    return _C.BAD_REQUEST, f"the server refused the request ({status})", None


def _too_big(error: ErrorBody) -> _Verdict:
    """413 in other words than those of a model server: a proxy's limit on the body, unless the server speaks JSON."""
    if error.is_json:
        return _C.BAD_REQUEST, "the request is too large for the server (413)", None
    return (
        _C.CONTEXT_LENGTH,
        "the request is too large for a proxy before the server (413): send smaller pictures or raise its limit",
        Shape.CONTEXT,
    )


def _context(status: int, error: ErrorBody) -> _Verdict:
    limit = wordings.context_limit(error.text)
    tokens = f" of {limit} tokens" if limit else ""
    return _C.CONTEXT_LENGTH, f"the request does not fit into the model's context{tokens} ({status})", Shape.CONTEXT


def _filtered(status: int) -> _Verdict:
    return _C.CONTENT_FILTER, f"the server's content filter refused the request ({status})", None


def _no_balance(status: int) -> _Verdict:
    return _C.CONFIG_ERROR, f"the account has no balance or quota left ({status}): top it up", Shape.BALANCE


_ADVICE: dict[Shape, str] = {
    Shape.UNKNOWN_MODEL: "has no such model: check -m against its /v1/models",
    Shape.WRONG_URL: "has nothing at this URL: check that it is the base URL, such as http://host:8000/v1",
    Shape.WRONG_METHOD: "takes no POST at this URL: check that it is the base URL, such as http://host:8000/v1",
    Shape.AUTH: "does not accept the key: check the endpoint's key",
    Shape.BALANCE: "says that the account has no balance or quota left: top it up",
    Shape.TLS: "can't be trusted or speaks no TLS: check http or https, or give its certificates as ca_file",
    Shape.REDIRECT: "redirects: give the URL it redirects to, none is followed",
    Shape.NOT_HTTP: "does not answer in HTTP: check its port, and http or https",
    Shape.PROXY: "can't be reached through the proxy: check the proxy's URL, user and password",
    Shape.NO_IMAGES: "takes no pictures: choose a model that does, or start the server with pictures allowed",
    Shape.CONTEXT: "finds the requests too long: shorten them, or raise its context size",
    Shape.FILES: "can't be reached, as no more files can be opened: raise `ulimit -n` or lower --concurrency",
    Shape.DNS: "has a host name that can't be resolved: check the URL's spelling and the DNS",
    Shape.STREAM: "answers as a stream though none was asked for: check what stands between, and --set",
    Shape.NOT_AN_ANSWER: "does not answer as a model server does: check that it is the base URL of one",
}


def looks_like_configuration(failure: Failure) -> str | None:
    """A sentence that names what is wrong in the setup and how to mend it, or None when it need not be the setup.

    For the first requests of a job: when they all fail with such a shape, so would all the others.
    """
    shape = failure.shape if isinstance(failure, FailedCall) else None
    if shape is None:
        return failure.message if failure.cls is _C.CONFIG_ERROR else None
    name = failure.endpoint if isinstance(failure, FailedCall) and failure.endpoint else "of the job"
    return f"endpoint {name} {_ADVICE[shape]}"
