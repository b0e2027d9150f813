"""What the SDK raises.

::

    GristmillError
    ├── SetupError            nothing was sent: no endpoint, no daemon installed, a store that cannot be used
    ├── JobPausedError        the job waits for a person: a key, a model, a full disk; `resume` goes on
    ├── FeedingError          the input cannot be read or encoded to its end
    ├── DaemonError           the private daemon ended again and again
    ├── ClosedError           the client is closed
    └── RequestFailedError    one request has no answer (raised by `Result.require` alone)

An exception of the caller's own iterable comes out as it is. A failed request is a value (`Result.error`) and is raised
only when asked for.
"""

from __future__ import annotations


class GristmillError(Exception):
    """Base of all errors of the SDK."""


class SetupError(GristmillError):
    """Nothing was sent; the message says what is missing or wrong, and what to do."""


class JobPausedError(GristmillError):
    """The job is paused until a person acts; results that are there can still be had, and nothing is lost.

    Attributes:
        job: its id.
        reason: `config`, `budget` or `store`.
        detail: what was seen.
    """

    def __init__(self, job: str, reason: str, detail: str) -> None:
        super().__init__(f"job {job} is paused ({reason}): {detail}; mend it and call resume()")
        self.job = job
        self.reason = reason
        self.detail = detail


class FeedingError(GristmillError):
    """The input cannot be read or encoded to its end; what was fed before stays in the job."""


class DaemonError(GristmillError):
    """The private daemon ended again and again; the message has the end of its log."""


class ClosedError(GristmillError):
    """The client is closed: make a new one."""

    def __init__(self) -> None:
        super().__init__("this client is closed: make a new one")


class RequestFailedError(GristmillError):
    """One request has no answer.

    Attributes:
        code: the failure class, such as `bad_request`; docs/failures.md lists them.
    """

    def __init__(self, index: int, code: str, message: str) -> None:
        super().__init__(f"request {index} failed ({code}): {message}")
        self.index = index
        self.code = code
