"""What every command settles before it works: endpoints, key, store, and errors as sentences with exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill import loops
from gristmill.cli._errors import BadUsageError, CliError, NeedsPersonError
from gristmill.cli._options import StoreOptions
from gristmill.memory import look_rarely_for_cycles

if TYPE_CHECKING:
    from gristmill.embedded import EmbeddedStore

BASE_URL_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
KEY_VARIABLE = "OPENAI_API_KEY"


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """An open store; `url` may hold a password and is for the environment of children only."""

    url: str
    redis: Any
    embedded: Any = None

    @property
    def identity(self) -> str:
        """Which store it is, without a password: a job is looked for only where it was made."""
        if self.embedded is not None:
            return f"embedded:{self.embedded.folder}"
        from gristmill.queue.store import shown

        return shown(self.url)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What children must inherit so that an embedded store outlives this process with them."""
        return () if self.embedded is None else tuple(self.embedded.descriptors)

    def __repr__(self) -> str:
        return f"Store({self.identity!r})"


def base_urls(given: tuple[str, ...]) -> list[str]:
    """The endpoints to use, normalised, each once: those of ``-e``, else the environment's.

    Raises:
        CliError: (2) none is given, or one is malformed.
    """
    from gristmill.contract.url import normalise_base_url

    texts = list(given) or [os.environ[v] for v in BASE_URL_VARIABLES if os.environ.get(v)][:1]
    if not texts:
        raise BadUsageError("no endpoint is given: name one with -e URL, or set OPENAI_BASE_URL")
    try:
        return list(dict.fromkeys(normalise_base_url(t) for t in texts))
    except ValueError as error:
        raise BadUsageError(str(error)) from error


def api_key() -> str | None:
    """The key of the environment, None where none is set.

    Raises:
        CliError: (2) it holds characters that no HTTP header takes; the message does not show it.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not all("!" <= c <= "~" for c in key):
        raise BadUsageError(f"{KEY_VARIABLE} holds blanks or characters that no key has: set it again")
    return key or None


def run_async(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run `main` and return its exit code; what the queue, the store and the files raise becomes a sentence."""
    look_rarely_for_cycles()
    with sentences():
        return loops.run(main())


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """Errors of queue, intake, outlet and store as sentences with their exit codes."""
    try:
        yield
    except Exception as error:
        told = _sentence(error)
        if told is None:
            raise
        raise told from error


def _sentence(error: Exception) -> CliError | None:
    """What the user is told, with its exit code; None where the fault is ours, or it is a sentence already.

    Its imports are made when they are needed: a command begins its work before them.
    """
    from redis.exceptions import RedisError

    from gristmill.contract.frame import FormatError
    from gristmill.intake.errors import FeedError, InputError
    from gristmill.outlet.errors import DamagedError, DiskError, OutletError, ProofError
    from gristmill.queue.errors import QueueError

    match error:
        case DiskError() | DamagedError():
            return NeedsPersonError(str(error))
        case ProofError():
            return NeedsPersonError(f"{error}; all results are kept, and the same command makes OUT of them again")
        case FeedError():
            return CliError(str(error))
        case OutletError() | InputError() | QueueError() | FormatError():
            return BadUsageError(str(error))
        case RedisError():
            what = type(error).__name__
            return NeedsPersonError(f"the store failed ({what}): mend it and give the same command")
        case _:
            return None


@contextlib.asynccontextmanager
async def open_store(options: StoreOptions) -> AsyncIterator[Store]:
    """The store of `options`, checked; a private one is kept alive, and let go at the end.

    Raises:
        BadUsageError: a private one does not start.
        StoreError: it cannot be reached, or is unfit for a queue.
    """
    from gristmill.cli._mending import kept_alive
    from gristmill.queue.store import check_store, connect

    gc.freeze()  # what is imported by now stays
    embedded = None if options.redis else await _open_embedded(options)
    try:
        url = embedded.url if embedded else str(options.redis)
        async with kept_alive(embedded):
            redis = connect(url, name="gristmill-cli")
            try:
                await check_store(redis)
                yield Store(url=url, redis=redis, embedded=embedded)
            finally:
                await redis.aclose()
    finally:
        if embedded is not None:
            await asyncio.to_thread(embedded.close)


async def _open_embedded(options: StoreOptions) -> EmbeddedStore:
    from gristmill.embedded import EmbeddedStore, EmbeddedStoreError

    try:
        return await asyncio.to_thread(EmbeddedStore.open, options.state_dir)
    except EmbeddedStoreError as error:
        raise BadUsageError(str(error)) from error
