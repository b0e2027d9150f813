"""What the faces share: the engine and the core behind them, their end, and how foreign errors look from outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gristmill.intake.options import InputFormat
from gristmill.outlet.errors import OutletError
from gristmill.queue.errors import JobNotFoundError, QueueError
from gristmill.sdk.asking import Asker
from gristmill.sdk.core import Core
from gristmill.sdk.engine import Engine
from gristmill.sdk.errors import GristmillError, SetupError
from gristmill.sdk.options import STORE_VARIABLE, ClientOptions, JobOptions, Submission, api_key, base_urls
from gristmill.sdk.shape import plain

T = TypeVar("T")

Endpoints = str | Sequence[str] | None
Request = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""One request: a prompt, a dict in one of the input forms, or a conversation."""

_CLOSE_S = 10.0


class Face:
    """An engine with a core on it. `close` is safe from any thread, any number of times, and at the interpreter's end,
    where it happens by itself; in a process that was forked from ours it does nothing."""

    def __init__(
        self,
        *,
        endpoints: Endpoints,
        model: str | None,
        key: str | None,
        redis: str | None,
        state_dir: str | os.PathLike[str] | None,
        pool: str,
        workers: int | None,
        concurrency: int | None,
        wait_for_endpoint_s: float = 0.0,
        preflight: bool = True,
        private: bool = False,
        ask_options: JobOptions = JobOptions(),
    ) -> None:
        if redis is None and state_dir is None and not private:
            redis = os.environ.get(STORE_VARIABLE) or None
        self.options = ClientOptions(
            endpoints=base_urls(endpoints),
            key=api_key(key),
            model=model,
            redis=redis,
            state_dir=None if state_dir is None else Path(state_dir),
            pool=pool,
            workers=workers,
            concurrency=concurrency,
            wait_for_endpoint_s=wait_for_endpoint_s,
            preflight=preflight,
        )
        self.engine = Engine("gristmill")
        self.core = Core(self.options)
        self.asker = Asker(self.core, ask_options)
        self._end = weakref.finalize(self, _end, self.engine, self.core, self.asker)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of `work` on the engine, for a caller on a loop."""
        return await self.engine.call(work)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of `work` on the engine, for a caller without one."""
        return self.engine.wait(work)

    @property
    def is_open(self) -> bool:
        """Whether it can be used: not closed, and not of the process that this one was forked from."""
        return self._end.alive and self.engine.is_ours

    def close(self) -> None:
        """Stop everything; blocks until it has ended."""
        self._end()


def _end(engine: Engine, core: Core, asker: Asker) -> None:
    if not engine.is_ours:
        return
    if engine.is_current:  # the garbage collector came by on the engine's own thread, which can't wait for itself
        threading.Thread(target=_end, args=(engine, core, asker), name="gm-end").start()
        return
    try:
        engine.wait(_close(core, asker))
    finally:
        engine.stop()
        core.shut()


async def _close(core: Core, asker: Asker) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_S):
            await asker.close()
            await core.close()


@contextlib.contextmanager
def foreign() -> Iterator[None]:
    """What queue and outlet raise, as the SDK's own; a job that is gone stays `JobNotFoundError`."""
    try:
        yield
    except JobNotFoundError:
        raise
    except (QueueError, OutletError) as error:
        raise GristmillError(str(error)) from error


def named(requests: object) -> Path | None:
    """The file that `requests` names; None for an iterable.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(requests, str | os.PathLike):
        return Path(os.fspath(requests))
    if isinstance(requests, bytes | Mapping) or not (hasattr(requests, "__iter__") or hasattr(requests, "__aiter__")):
        raise TypeError(
            f"requests are a file's path or an iterable of requests, not a {type(requests).__name__}: "
            "put a single one into a list, or ask() it"
        )
    return None


def submission(
    requests: object,
    model: str | None,
    system: str | None,
    name: str | None,
    media_root: str | os.PathLike[str] | None,
    input_format: InputFormat,
    options: JobOptions,
    body: dict[str, Any],
) -> Submission:
    """The values of one call of `submit`.

    Raises:
        SetupError: the body holds what JSON has no word for.
    """
    import msgspec

    try:
        body = msgspec.json.decode(msgspec.json.encode(body, enc_hook=plain))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise SetupError(f"the keys for every body can't be written as JSON: {error}") from error
    path = named(requests)
    return Submission(
        name=name or (path.name if path is not None else "program"),
        model=model,
        system=system,
        media_root=None if media_root is None else str(Path(media_root).absolute()),
        format=input_format,
        body=body,
        options=options,
    )
