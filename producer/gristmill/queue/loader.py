"""The Lua scripts, read from the package once and called by their digest.

A line ``--@include NAME`` is replaced by the file NAME.lua, so that a rule shared by several scripts is written once.
A store that does not know a script (restarted, failed over, flushed) gets it and is asked again; more than once, since
it may be restarted just between the two. In a cluster that is the node that owns the job's slot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from gristmill.queue.cluster import at

Arg = str | bytes | int | float
_INCLUDE = "--@include "
LOADS = 4
"""So often a script is loaded for one call; a store that forgets it more often than that is ill."""


class Script(msgspec.Struct, frozen=True):
    """A script's full text, and the hex digest by which the store knows it."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> Script:
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def expand(name: str) -> str:
    """The text of script `name`, its includes in place."""
    source = (files("gristmill.queue") / "scripts" / f"{name}.lua").read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    return "".join(expand(x[len(_INCLUDE) :].strip()) if x.startswith(_INCLUDE) else x for x in lines)


@cache
def scripts() -> dict[str, Script]:
    """Every script by name. Tests put mutants into this table."""
    names = sorted(p.name.removesuffix(".lua") for p in (files("gristmill.queue") / "scripts").iterdir())
    return {name: Script.of(expand(name)) for name in names if not name.startswith("_")}


async def call(redis: Redis, name: str, keys: Sequence[str], args: Sequence[Arg]) -> list[Any]:
    """Run one script: `keys` and `args` as its head says; gives its reply.

    Raises:
        redis.exceptions.RedisError: the store refused, or could not be reached; the script may have run.
    """
    script = scripts()[name]
    words = ("EVALSHA", script.sha, len(keys), *keys, *args)
    for _ in range(LOADS):
        try:
            return await _execute(redis, *words)
        except NoScriptError:
            await at(redis, keys[0]).script_load(script.text)
    return await _execute(redis, *words)


async def _execute(redis: Redis, *words: Arg) -> list[Any]:
    reply: list[Any] = await redis.execute_command(*words)  # type: ignore[no-untyped-call]  # untyped in redis-py
    return reply


async def call_each(redis: Redis, name: str, calls: Sequence[tuple[Sequence[str], Sequence[Arg]]]) -> list[list[Any]]:
    """Run one script many times in one pipeline, on the keys of one job; as `call`, replies in order.

    Raises:
        redis.exceptions.RedisError: the first call that failed; the others may have run.
    """
    script = scripts()[name]
    replies = await _pipe(redis, script, calls)
    for _ in range(LOADS):
        unknown = [i for i, r in enumerate(replies) if isinstance(r, NoScriptError)]
        if not unknown:
            break
        await at(redis, calls[0][0][0]).script_load(script.text)
        again = await _pipe(redis, script, [calls[i] for i in unknown])
        for i, reply in zip(unknown, again, strict=True):
            replies[i] = reply
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


async def _pipe(redis: Redis, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[Arg]]]) -> list[Any]:
    async with redis.pipeline(transaction=False) as pipe:
        for keys, args in calls:
            pipe.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)
        replies: list[Any] = await pipe.execute(raise_on_error=False)
    return replies
