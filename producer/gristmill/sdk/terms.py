"""The arguments of the drop-in class, as values: where the server is, what goes into each request, and on what terms.

Scripts give them in many ways: numbers as strings or as numpy's, None for "whatever", a port beside a URL that has a
path. What can mean one thing only is taken for it; what a call can't be told is refused with a sentence, so that a
key never becomes a part of a request's body.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gristmill.contract.manifest import Timeouts
from gristmill.sdk.errors import SetupError
from gristmill.sdk.options import JobOptions

Timeout = float | None | Sequence[float | None]
"""Seconds: one for both clocks, or to connect and to wait for the next byte; None is a day."""

_DAY_S = 86_400.0
_LEAST_BACKOFF_S = 0.001
_OF_THE_CONSTRUCTOR = frozenset(
    {"key", "api_base", "port", "logger", "max_connections", "num_workers", "worker_concurrency"}
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What one call works with: the constructor's values, and the call's over them.

    Attributes:
        payload: keys that go into the body of every request.
        options: of its job.
        fail_msg: stands in the place of an answer that is not there.
        return_dict: an answer is a dict.
        patience_s: so long without a server that answers, then the rest has failed.
    """

    payload: dict[str, Any]
    options: JobOptions
    fail_msg: Any
    return_dict: bool
    patience_s: float


def settings(defaults: Mapping[str, Any], told: Mapping[str, Any]) -> Settings:
    """The settings of one call.

    Raises:
        TypeError: the call is told what only the constructor takes.
    """
    alien = sorted(_OF_THE_CONSTRUCTOR & told.keys())
    if alien:
        raise TypeError(f"{alien[0]} belongs to the constructor, not to a call: it would become a part of the request")
    values = {**defaults, **told}
    connect_s, read_s = _clocks(values.pop("timeout"))
    retry, wait_s = max(1, int(values.pop("retry") or 1)), float(values.pop("wait") or 0)
    options = JobOptions(
        max_attempts=retry,
        max_backoff_s=max(wait_s, _LEAST_BACKOFF_S),
        timeouts=Timeouts(connect_s=connect_s, first_byte_s=read_s, idle_s=read_s, total_s=connect_s + 2 * read_s),
        max_in_flight=max(1, int(values.pop("thread_num"))),
        first_alone=1,  # tells a wrong model from a bad first message; four bad ones must not take the others with them
    )
    fail_msg, return_dict, thinking = values.pop("fail_msg"), values.pop("return_dict"), values.pop("enable_thinking")
    if thinking is not None:
        template = values.get("chat_template_kwargs") or {}
        values["chat_template_kwargs"] = {"enable_thinking": bool(thinking), **template}
    return Settings(
        payload={name: value for name, value in values.items() if value is not None},
        options=options,
        fail_msg=fail_msg,
        return_dict=bool(return_dict),
        patience_s=retry * (connect_s + wait_s),
    )


def _clocks(timeout: Timeout) -> tuple[float, float]:
    if timeout is None or not isinstance(timeout, Sequence):
        timeout = (timeout, timeout)
    connect_s, read_s = (_DAY_S if value is None else float(value) for value in timeout)
    return connect_s, read_s


def server_url(api_base: str | None, port: int | str | None) -> str | None:
    """The server's URL; None leaves it to the environment, or to the error that says it is missing.

    Raises:
        SetupError: `api_base` has a port, and it is another one.
    """
    if not api_base and port is None:
        return None
    base = (api_base or "http://127.0.0.1").rstrip("/")
    if "://" not in base:
        base = f"http://{base}"
    return base if port is None else _with_port(base, str(port))


def _with_port(base: str, port: str) -> str:
    parts = urlsplit(base)
    host, colon, own = parts.netloc.rpartition(":")
    if not (colon and own.isdigit()):
        host = parts.netloc
    elif own != port:
        raise SetupError(f"api_base names port {own}, and port is {port}: give one of them")
    path = parts.path.removesuffix("/chat/completions").removesuffix("/v1")
    return f"{parts.scheme}://{host}:{port}{path}/v1/chat/completions"


def listed(messages: Iterable[Any]) -> Sequence[Any]:
    """The messages as a sequence.

    Raises:
        ValueError: it is one message or conversation, which would be taken for as many as it has parts, or no list.
    """
    if isinstance(messages, str | bytes | Mapping) or not hasattr(messages, "__iter__"):
        raise ValueError(
            "messages is a list with one item per answer: put a single message into a list"
            f" (what was given is a {type(messages).__name__})"
        )
    items = messages if isinstance(messages, Sequence) else list(messages)
    first = items[0] if items else None
    if isinstance(first, Mapping) and ("role" in first or ("type" in first and "value" in first)):
        raise ValueError("messages is one conversation, and a list of them is expected: write [messages]")
    return items
