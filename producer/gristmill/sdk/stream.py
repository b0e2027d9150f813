"""An iterable as the feeder's input: pulled with back-pressure, encoded ahead within bounds, replayable for a while.

::

    caller's iterable -> pull thread (or the caller's loop, for an async one) -> Hopper -> StreamEntries -> feeder

The hopper holds a bounded number of requests and bytes; whoever fills it waits. The feeder empties it only as the store
takes more. So however long the iterable is, a few hundred requests of it are in memory at a time.

An iterable can't be read twice. So that a store which lost its latest second (its server was killed) finds what it has
lost, entries are kept for a few seconds after they were given to the feeder, up to a number of bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from gristmill.contract.failure import FailureClass
from gristmill.intake.draft import Draft, Refused
from gristmill.intake.encode import Entry, picture_entry, refused_entry, text_entry
from gristmill.intake.errors import FeedError
from gristmill.intake.normalise import Normaliser
from gristmill.intake.options import EncodeOptions
from gristmill.intake.pipeline import Start
from gristmill.intake.readers import Line
from gristmill.sdk.errors import FeedingError
from gristmill.sdk.pictures import GivenPicture, GivenPictures
from gristmill.sdk.shape import GIVEN, Shaped

_CORES = os.cpu_count() or 1
HOPPER_REQUESTS = 512
HOPPER_BYTES = 64 << 20
BATCH = 256
AHEAD_BYTES = max(96 << 20, _CORES * (16 << 20))
"""So much of pictures is being encoded, or waits for one that was given before; two large ones a core."""
AHEAD_PICTURED = max(64, _CORES * 4)
REPLAY_S = 5.0
REPLAY_BYTES = 32 << 20
_ENTRY_BYTES = 200
_FULL_S = 0.005


class Hopper:
    """Between one thread that puts requests in and the engine's loop that takes them out.

    Anyone may call `close`: then `put` says False, and what pulls ends.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._room = threading.Condition()
        self._held: deque[Shaped] = deque()
        self._bytes = 0
        self._ended = self._closed = False
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    # -- by whoever fills it

    def try_put(self, item: Shaped) -> bool:
        """Put it in; False when it is full. What is put in after `close` is dropped."""
        with self._room:
            if not self._closed and self._full():
                return False
            self._add(item)
        return True

    def put(self, item: Shaped) -> bool:
        """Put it in, waiting for room; False once the hopper is closed."""
        with self._room:
            self._room.wait_for(lambda: self._closed or not self._full())
            self._add(item)
            return not self._closed

    async def put_when_room(self, item: Shaped) -> None:
        """Put it in, for a caller on any loop; nothing happens between the last look for room and the return."""
        while not self.try_put(item):  # noqa: ASYNC110  the other end is on another loop, or is this loop's own task
            await asyncio.sleep(_FULL_S)

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more will come; `error` is why, where the iterable raised."""
        with self._room:
            self._ended, self._error = True, error
            self._tell()

    def _full(self) -> bool:
        return len(self._held) >= HOPPER_REQUESTS or self._bytes >= HOPPER_BYTES

    def _add(self, item: Shaped) -> None:
        if self._closed:
            return
        self._held.append(item)
        self._bytes += item.weight
        if len(self._held) == 1:
            self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody takes any more
            self._loop.call_soon_threadsafe(self._news.set)

    # -- by the engine's loop

    async def take(self, most: int, timeout_s: float | None) -> list[Shaped]:
        """The next requests, at least one unless it has ended or the time is up.

        Raises:
            What the iterable raised, once all that came before has been taken.
        """
        self._news.clear()
        if not self._held and not self._ended:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            except TimeoutError:
                return []
        with self._room:
            taken = [self._held.popleft() for _ in range(min(most, len(self._held)))]
            self._bytes -= sum(item.weight for item in taken)
            self._room.notify_all()
            if not taken and self._error is not None:
                raise self._error
        return taken

    @property
    def drained(self) -> bool:
        """Everything has been taken, and nothing more will come."""
        return self._ended and not self._held and self._error is None

    @property
    def waits(self) -> bool:
        """Something is there to be taken."""
        return bool(self._held) or self._ended

    def close(self) -> None:
        """Whoever puts in is let go."""
        with self._room:
            self._closed = True
            self._held.clear()
            self._room.notify_all()


def pull(requests: Iterable[Any], hopper: Hopper, make: Callable[[Any], Shaped]) -> None:
    """Fill the hopper from an iterable in a thread of its own, which never keeps the interpreter alive."""

    def run() -> None:
        try:
            for request in requests:
                if not hopper.put(make(request)):
                    return
        except Exception as error:  # noqa: BLE001  it is raised again where the results are read
            hopper.end(error)
        except BaseException as error:  # noqa: BLE001  raised there, these would end or cancel something else
            hopper.end(FeedingError(f"the iterable of requests ended with {type(error).__name__}"))
        else:
            hopper.end()

    threading.Thread(target=run, name="gm-pull", daemon=True).start()


class StreamEntries:
    """The requests of a hopper as the feeder's entries, from the first on; see the module's head.

    `open` gives the entries from a place on; the ones before it are opened no more.
    """

    def __init__(self, hopper: Hopper, options: EncodeOptions, pictures: GivenPictures) -> None:
        self._hopper = hopper
        self._options = options
        self._pictures = pictures
        self._normalise = Normaliser(options)
        self._next_place = 0
        self._taken: deque[Shaped] = deque()
        self._ahead: deque[tuple[Entry | asyncio.Task[Entry], int]] = deque()
        self._ahead_bytes = self._ahead_pictured = 0
        self._kept: deque[tuple[float, int, Entry]] = deque()
        self._kept_bytes = 0
        self._again: deque[Entry] = deque()

    def open(self, start: Start) -> StreamEntries:
        """Stand at `start`.

        Raises:
            FeedError: it lies further back than what is kept.
        """
        given = self._next_place - len(self._ahead)
        if start.place > given:
            raise FeedError(f"the store stands at request {start.place}, and only {given} have been given to it")
        self._again = deque(entry for _, _, entry in self._kept if entry.place >= start.place)
        if len(self._again) != given - start.place:
            raise FeedError(
                f"the store lost what it had from request {start.place + 1} on, and an iterable can't be read again: "
                "submit a file where the store may be lost"
            )
        return self

    @property
    def ended(self) -> bool:
        """See `feeder.Entries`."""
        return not self._again and not self._taken and not self._ahead and self._hopper.drained

    async def ready(self, timeout_s: float | None = None) -> list[Entry]:
        """See `feeder.Entries`."""
        if self._again:
            return [self._again.popleft() for _ in range(min(BATCH, len(self._again)))]
        await self._fill(timeout_s)
        head = self._ahead[0][0] if self._ahead else None
        if isinstance(head, asyncio.Task) and not head.done():
            await asyncio.wait((head,), timeout=timeout_s)
        return self._pop()

    async def close(self) -> None:
        """Nothing is dropped: a rewind goes on with what is ahead. `abandon` ends it."""

    async def abandon(self) -> None:
        """Drop what is ahead, and let go whoever fills the hopper."""
        self._hopper.close()
        tasks = [entry for entry, _ in self._ahead if isinstance(entry, asyncio.Task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._ahead.clear()
        self._taken.clear()

    async def _fill(self, timeout_s: float | None) -> None:
        """Admit as far as the bounds allow; waits only while nothing is ahead."""
        self._admit_taken()
        while not self._taken and (not self._ahead or (self._hopper.waits and self._has_room())):
            taken = await self._hopper.take(BATCH, timeout_s)
            if not taken:
                return
            self._taken.extend(taken)
            self._admit_taken()

    def _has_room(self) -> bool:
        few = len(self._ahead) < BATCH and self._ahead_pictured < AHEAD_PICTURED
        return few and self._ahead_bytes < AHEAD_BYTES and not self._hopper.drained

    def _admit_taken(self) -> None:
        while self._taken and (not self._ahead or self._ahead_bytes + self._taken[0].weight <= AHEAD_BYTES):
            if len(self._ahead) >= 2 * BATCH or self._ahead_pictured >= AHEAD_PICTURED:
                return
            self._admit(self._taken.popleft())

    def _admit(self, item: Shaped) -> None:
        place = self._next_place
        self._next_place += 1
        line = Line(place + 1, 0, item.data)
        draft = self._draft(item)
        if isinstance(draft, Refused):
            self._ahead.append((refused_entry(line, place, draft), 0))
        elif not draft.pictures:
            self._ahead.append((text_entry(line, place, draft), 0))
        else:
            weight = item.weight + self._pictures.size_of_files(draft.pictures)
            self._ahead_bytes += weight
            self._ahead_pictured += 1
            self._ahead.append((asyncio.create_task(self._pictured(line, place, draft)), weight))

    def _draft(self, item: Shaped) -> Draft | Refused:
        if item.refused is not None:
            return Refused(None, FailureClass.BAD_INPUT, item.refused)
        draft = self._normalise(item.data)
        if isinstance(draft, Draft) and item.given:
            for at, ref in enumerate(draft.pictures):
                if ref.url.startswith(GIVEN):
                    source = item.given[int(ref.url[len(GIVEN) :])]
                    draft.pictures[at] = GivenPicture(ref.holder, ref.key, ref.url, ref.place, source)
        return draft

    async def _pictured(self, line: Line, place: int, draft: Draft) -> Entry:
        return await picture_entry(line, place, draft, self._pictures, self._options.image, None)

    def _pop(self) -> list[Entry]:
        found: list[Entry] = []
        while self._ahead and len(found) < BATCH:
            entry, weight = self._ahead[0]
            if isinstance(entry, asyncio.Task):
                if not entry.done():
                    break
                entry = entry.result()
                self._ahead_pictured -= 1
                self._ahead_bytes -= weight
            self._ahead.popleft()
            if entry.refused is not None:
                entry.label = f"request {entry.place}"  # there are no lines; this is the index of its result
            found.append(entry)
        self._keep(found)
        return found

    def _keep(self, entries: list[Entry]) -> None:
        now_s = time.monotonic()
        for entry in entries:
            size = _ENTRY_BYTES + sum(map(len, entry.pieces)) + sum(map(len, entry.blobs.values()))
            self._kept.append((now_s, size, entry))
            self._kept_bytes += size
        while self._kept and (self._kept_bytes > REPLAY_BYTES or now_s - self._kept[0][0] > REPLAY_S):
            self._kept_bytes -= self._kept.popleft()[1]
