"""What a client and a job can be told, as values; the environment fills what is left open."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from gristmill.contract.manifest import Timeouts
from gristmill.contract.url import normalise_base_url
from gristmill.intake.options import EncodeOptions, ImageOptions, InputFormat
from gristmill.sdk.errors import SetupError

BASE_URL_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
KEY_VARIABLE = "OPENAI_API_KEY"
STORE_VARIABLE = "GRISTMILL_REDIS_URL"


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a client was told; see `gristmill.Client` for each."""

    endpoints: list[str] = []
    key: str | None = None
    model: str | None = None
    redis: str | None = None
    state_dir: Path | None = None
    pool: str = "default"
    workers: int | None = None
    concurrency: int | None = None
    wait_for_endpoint_s: float = 0.0
    preflight: bool = True

    @property
    def private(self) -> bool:
        """Whether the client starts a store and a daemon of its own."""
        return self.redis is None and self.state_dir is None

    def __repr__(self) -> str:
        return f"ClientOptions(endpoints={self.endpoints}, model={self.model!r})"


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the requests of a job are treated.

    Attributes:
        max_attempts: attempts that a request may have; waiting for a busy or absent server costs none.
        max_backoff_s: longest wait between two of them, unless the server asks for a longer one; 0 is the daemon's, 60.
        timeouts: the four clocks of one attempt, seconds.
        request_deadline_s: fail a request that has no answer so long after it was first started; 0 is never.
        max_in_flight: most requests of the job in flight, over all workers; 0 is no limit.
        first_alone: so many go out before the others; when they fail alike, the job pauses. 0 sends all at once.
        max_failures: pause the job after so many failed requests; 0 is off.
        on_truncated: an answer that was cut at its token limit is kept (with the flag ``truncated``) or fails.
        image: how pictures are made fit to send.
    """

    max_attempts: int = 5
    max_backoff_s: float = 0.0
    timeouts: Timeouts = Timeouts()
    request_deadline_s: float = 0.0
    max_in_flight: int = 0
    first_alone: int = 4
    max_failures: int = 0
    on_truncated: Literal["keep", "fail"] = "keep"
    image: ImageOptions = ImageOptions()


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """What one call of `submit` was told.

    Attributes:
        body: keys put into the body of every request, over its own.
    """

    name: str
    model: str | None = None
    system: str | None = None
    media_root: str | None = None
    format: InputFormat = "requests"
    body: dict[str, Any] = {}
    options: JobOptions = JobOptions()

    def encode_options(self, *, default_model: str | None, inline: bool) -> EncodeOptions:
        """How the requests become bodies."""
        return EncodeOptions(
            model=self.model,
            default_model=default_model,
            set=self.body,
            system=self.system,
            media_root=self.media_root,
            format=self.format,
            inline=inline,
            image=self.options.image,
        )


def base_urls(given: str | Sequence[str] | None) -> list[str]:
    """The endpoints to use, normalised, each once: those given, else the environment's, else none.

    Raises:
        SetupError: one is malformed.
    """
    texts = [given] if isinstance(given, str) else list(given or ())
    texts = texts or [os.environ[v] for v in BASE_URL_VARIABLES if os.environ.get(v)][:1]
    try:
        return list(dict.fromkeys(normalise_base_url(text) for text in texts))
    except ValueError as error:
        raise SetupError(str(error)) from error


def api_key(given: str | None) -> str | None:
    """The key that was given, else the environment's, None where there is none.

    Raises:
        SetupError: it holds characters that no HTTP header takes; the message does not show it.
    """
    key = (given if given is not None else os.environ.get(KEY_VARIABLE, "")).strip()
    if not all("!" <= c <= "~" for c in key):
        raise SetupError(f"the key (or {KEY_VARIABLE}) holds blanks or characters that no key has: give it again")
    return key or None
