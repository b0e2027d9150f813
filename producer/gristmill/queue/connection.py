"""How a client talks to the store: what is sent again after a connection error, and that a cancelled call ends.

Three faults below are mended here. In the client library, a command that has to connect again asks its `Retry` twice,
for itself and for the connection, so the tries would multiply. In Python 3.11, `asyncio.wait_for`, by which the library
bounds a write, swallows a cancellation that comes when the write has just ended: a cancelled task would never end. And
uvloop raises RuntimeError for a write to a connection that the other side has reset, which nobody takes for an outage.

A primary that has fewer replicas than it is told to have (``min-replicas-to-write``) refuses writes with NOREPLICAS,
for which the library has no name: `NoReplicasError`. Nor has it one for MISCONF, with which a store refuses writes
while it can't write its own files, mostly for want of room on its disk: `StoreDiskError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from redis._parsers import BaseParser
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.typing import EncodableT

from gristmill.queue.pieces import in_pieces

T = TypeVar("T")

READ_BYTES = 1 << 20
LARGE_BYTES = 1 << 14
"""From here on a word is sent from where it lies."""


class NoReplicasError(ResponseError):
    """The primary takes no writes, since too few replicas follow it."""


class StoreDiskError(ResponseError):
    """The store takes no writes, since it can't write its log or its snapshot."""

    def __str__(self) -> str:
        return f"MISCONF {super().__str__()}"


BaseParser.EXCEPTION_CLASSES.setdefault("NOREPLICAS", NoReplicasError)
BaseParser.EXCEPTION_CLASSES.setdefault("MISCONF", StoreDiskError)

_once: ContextVar[bool] = ContextVar("gristmill_sent_once", default=False)


@contextmanager
def sent_once() -> Iterator[None]:
    """Inside, a command is never repeated after a connection error: it may have run, and must not run twice unseen."""
    token = _once.set(True)
    try:
        yield
    finally:
        _once.reset(token)


def refusal(error: BaseException | None) -> AuthenticationError | None:
    """The store's refusal of our user or password, which comes as a connection error or as the cause of one."""
    while error is not None:
        if isinstance(error, AuthenticationError):
            return error
        error = error.__cause__
    return None


class PatientRetry(Retry):
    """Repeats after connection errors and time-outs, but neither what is `sent_once` nor what the store refuses."""

    async def call_with_retry(
        self, do: Callable[[], Awaitable[T]], fail: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> T:
        if _once.get():
            return await Retry(NoBackoff(), 0).call_with_retry(do, fail, *args, **kwargs)
        refusals: list[AuthenticationError] = []

        async def attempt() -> T | None:
            try:
                with sent_once():
                    return await do()
            except RedisConnectionError as error:
                refused = refusal(error)
                if refused is None:
                    raise
                refusals.append(refused)
                return None

        result = await super().call_with_retry(attempt, fail, *args, **kwargs)
        if refusals:
            raise refusals[0]
        return cast("T", result)


class _PromptMixin(AbstractConnection):
    """Bounds a write by `asyncio.timeout`, which keeps a cancellation; the library's own bound is switched off.

    And packs commands by one join, since the library joins anew for each argument, which was most of a feeder's cost;
    large words are not even copied once. And reads what is there, as it comes (see `pieces`).
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"socket_read_size": READ_BYTES, **options})

    async def _connect(self) -> None:
        await super()._connect()  # type: ignore[safe-super, no-untyped-call]  # untyped, and what this is mixed into has it
        assert self._reader is not None
        in_pieces(self._reader)

    def pack_command(self, *args: EncodableT) -> list[bytes]:
        """The command as it is sent; see `pack_commands`."""
        return self.pack_commands((args,))

    def pack_commands(self, commands: Iterable[Iterable[EncodableT]]) -> list[bytes]:
        """The commands of a pipeline as they are sent: in one piece, but for large words, which are not copied."""
        encode = cast("Callable[[Any], bytes]", self.encoder.encode)
        pieces: list[bytes] = []
        parts: list[bytes] = []
        for command in commands:
            name, *args = command
            # the name alone may be several words, such as "CONFIG GET"
            words = [*encode(name).split(), *args]
            parts.append(b"*%d\r\n" % len(words))
            for word in words:
                data = word if type(word) is bytes else b"%d" % word if type(word) is int else encode(word)
                if len(data) >= LARGE_BYTES:
                    pieces += (b"%b$%d\r\n" % (b"".join(parts), len(data)), data)
                    parts = [b"\r\n"]
                else:
                    parts += (b"$%d\r\n" % len(data), data, b"\r\n")
        pieces.append(b"".join(parts))
        return pieces

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        if not self.is_connected:
            await self.connect_check_health(check_health=False)
        if check_health:
            await self.check_health()  # type: ignore[no-untyped-call]  # untyped in redis-py
        timeout_s, self.socket_timeout = self.socket_timeout, None
        try:
            async with asyncio.timeout(timeout_s):
                await super().send_packed_command(command, check_health=False)
        except TimeoutError:
            raise RedisTimeoutError(f"the store took no command for {timeout_s} s") from None
        except RuntimeError as error:
            if "closed" not in str(error):
                raise
            raise RedisConnectionError("the store's side has reset the connection") from error
        finally:
            self.socket_timeout = timeout_s


class PromptConnection(_PromptMixin, Connection):
    """Over TCP."""


class PromptSSLConnection(_PromptMixin, SSLConnection):
    """Over TLS."""


class PromptUnixConnection(_PromptMixin, UnixDomainSocketConnection):
    """Over a unix socket."""


PROMPT: dict[type[AbstractConnection], type[AbstractConnection]] = {
    Connection: PromptConnection,
    SSLConnection: PromptSSLConnection,
    UnixDomainSocketConnection: PromptUnixConnection,
}
