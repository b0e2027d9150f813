"""The feeder as a process: `python -m gristmill.intake.feed_main`.

The spec comes as one line of JSON on stdin (it holds the store's URL, which may hold a password, so it is never in
argv). stdin then stays open: its end means that the parent is gone, and so does the death signal on Linux. SIGTERM
stops cleanly and gives the lease back. SIGINT is the parent's business, who gets it from the same terminal.

Warnings go to stderr, one a line; the last line on stdout is a `FeedResult` as JSON, unless the feeder was stopped.
Exit codes: 0 fed, or stopped, or the job ended early (the result says so); 2 the input is at fault; 1 anything else.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import cast

import msgspec

from gristmill import loops
from gristmill.contract.manifest import Source
from gristmill.intake.errors import FeedError, InputError
from gristmill.intake.feed_spec import FeedSpec
from gristmill.intake.feeder import FeedResult, feed
from gristmill.intake.feeder_store import patiently
from gristmill.intake.lines_seen import Notice, Report
from gristmill.intake.plan import Plan
from gristmill.intake.source import identify
from gristmill.memory import keep_freed_blocks, look_rarely_for_cycles
from gristmill.queue.errors import QueueError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.store import connect

EXIT_OK, EXIT_OTHER, EXIT_INPUT = 0, 1, 2
_PR_SET_PDEATHSIG = 1
_MAX_SPEC_BYTES = 16 << 20


def main() -> int:
    look_rarely_for_cycles()
    keep_freed_blocks()
    line = _read_spec()
    if not line:  # whoever started us has nothing to feed
        return EXIT_OK
    try:
        spec = msgspec.json.decode(line, type=FeedSpec)
    except (msgspec.MsgspecError, ValueError) as error:
        return _fail(f"the feeder's spec on stdin is not usable: {error}", EXIT_OTHER)
    try:
        result = loops.run(_run(spec))
    except InputError as error:
        return _fail(str(error), EXIT_INPUT)
    except (FeedError, QueueError) as error:
        return _fail(str(error), EXIT_OTHER)
    if result is not None:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
        sys.stdout.flush()
    return EXIT_OK


def _fail(message: str, code: int) -> int:
    sys.stderr.write(message + "\n")
    return code


def _say(notice: Notice) -> None:
    sys.stderr.write(notice.text + "\n")
    sys.stderr.flush()


async def _run(spec: FeedSpec) -> FeedResult | None:
    """The result; None when stopped before the end."""
    task = asyncio.ensure_future(_feed(spec))
    _stop_on_signals(task)
    if spec.with_parent:
        _die_with_parent(task)
    try:
        return await task
    except asyncio.CancelledError:
        return None


async def _feed(spec: FeedSpec) -> FeedResult:
    redis = connect(spec.redis_url, name="gristmill-feeder")
    plan = _open_plan(spec)
    try:
        queue = await patiently(lambda: LeaseQueue.attach(redis, spec.job), _say)
        source = await _source(spec, queue)
        return await feed(
            queue,
            source,
            spec.options,
            plan,
            spec.token,
            spec.holder,
            _say,
            strict=spec.strict,
            limit=spec.limit,
            sample=spec.sample,
            only=await chosen_lines(queue, _say),
            skipped=spec.skipped,
        )
    finally:
        close = getattr(plan, "close", None)
        if close is not None:
            close()
        await redis.aclose()


async def chosen_lines(queue: LeaseQueue, report: Report) -> list[int] | None:
    """The lines that a retry sends; None for any other job.

    Raises:
        FeedError: whoever made the retry died before it could say which.
    """
    if not (await patiently(queue.manifest, report)).parent:
        return None
    found = await patiently(queue.chosen, report)
    if found is None:
        raise FeedError(
            f"job {queue.job} is a retry that was not prepared to the end: `producer rm --force {queue.job}`"
        )
    return found


async def _source(spec: FeedSpec, queue: LeaseQueue) -> Source:
    """What the manifest says the input is, or what stands at the path given."""
    source = (await patiently(queue.manifest, _say)).source
    if source is None:
        if spec.input is None:
            raise FeedError(f"job {spec.job} has no input to read from: give one")
        return identify(spec.input)
    return source


def _open_plan(spec: FeedSpec) -> Plan | None:
    """The outlet's index of finished lines, by name: intake and outlet do not import each other."""
    if spec.plan_dir is None:
        return None
    module, _, name = spec.plan_factory.partition(":")
    return cast("Plan", getattr(importlib.import_module(module), name)(spec.plan_dir))


def _read_spec() -> bytes:
    """The first line of stdin, read unbuffered: what follows is for the watch."""
    data = bytearray()
    while not data.endswith(b"\n"):
        piece = os.read(0, 1 << 16)
        if not piece or len(data) > _MAX_SPEC_BYTES:
            break
        data += piece
    return bytes(data)


def _stop_on_signals(task: asyncio.Future[FeedResult]) -> None:
    loop = asyncio.get_running_loop()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)


def _die_with_parent(task: asyncio.Future[FeedResult]) -> None:
    """End when stdin does or when the parent dies, whichever is seen first.

    The death signal also comes when only the parent's *thread* that started us ends; so it is no order but a hint to
    look at who our parent is.
    """
    loop, parent = asyncio.get_running_loop(), os.getppid()

    def look() -> None:
        if os.getppid() != parent:
            task.cancel()

    def watch() -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        with suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(task.cancel)

    loop.add_signal_handler(signal.SIGHUP, look)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
    threading.Thread(target=watch, name="gm-parent-watch", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
