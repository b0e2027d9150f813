"""Gristmill: exactly one result per request, whatever dies on the way.

``import gristmill`` is cheap: no event loop, no Redis connection, no imaging library is loaded until used. What is
named here is loaded when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill._version import __version__

if TYPE_CHECKING:
    from gristmill import blocking
    from gristmill.blocking import generate
    from gristmill.client import Client, Job
    from gristmill.contract.manifest import Timeouts
    from gristmill.intake.options import ImageOptions
    from gristmill.mpopenai import MPOpenAIAPI, OpenAIAPI
    from gristmill.queue.errors import JobNotFoundError
    from gristmill.sdk.errors import (
        ClosedError,
        DaemonError,
        FeedingError,
        GristmillError,
        JobPausedError,
        RequestFailedError,
        SetupError,
    )
    from gristmill.sdk.face import Request
    from gristmill.sdk.jobs import JobStatus
    from gristmill.sdk.options import JobOptions
    from gristmill.sdk.result import Error, Result

__all__ = [
    "Client",
    "ClosedError",
    "DaemonError",
    "Error",
    "FeedingError",
    "GristmillError",
    "ImageOptions",
    "Job",
    "JobNotFoundError",
    "JobOptions",
    "JobPausedError",
    "JobStatus",
    "MPOpenAIAPI",
    "OpenAIAPI",
    "Request",
    "RequestFailedError",
    "Result",
    "SetupError",
    "Timeouts",
    "__version__",
    "blocking",
    "generate",
]

_HOMES = {
    "gristmill.blocking": ("generate",),
    "gristmill.client": ("Client", "Job"),
    "gristmill.contract.manifest": ("Timeouts",),
    "gristmill.intake.options": ("ImageOptions",),
    "gristmill.mpopenai": ("MPOpenAIAPI", "OpenAIAPI"),
    "gristmill.queue.errors": ("JobNotFoundError",),
    "gristmill.sdk.errors": (
        "ClosedError",
        "DaemonError",
        "FeedingError",
        "GristmillError",
        "JobPausedError",
        "RequestFailedError",
        "SetupError",
    ),
    "gristmill.sdk.face": ("Request",),
    "gristmill.sdk.jobs": ("JobStatus",),
    "gristmill.sdk.options": ("JobOptions",),
    "gristmill.sdk.result": ("Error", "Result"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # where it is seen, any name would be taken for one of ours

    def __getattr__(name: str) -> object:
        import importlib

        if name == "blocking":
            return importlib.import_module("gristmill.blocking")
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module 'gristmill' has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        globals()[name] = value  # asked for once
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
