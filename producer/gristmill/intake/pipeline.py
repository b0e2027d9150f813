"""Lines in, entries out, in order: read and parsed in a thread, pictures encoded ahead.

A line whose pictures need nothing is an entry when the thread hands it over, like a line without any; those of the
others are opened and encoded by tasks. What lies ahead is bounded by count and by bytes (of the pictures' sources).
Lines enter strictly in input order, so the first one always gets room and the rest can't starve it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gristmill.contract.failure import FailureClass
from gristmill.intake import picture_source
from gristmill.intake.draft import Draft, Refused
from gristmill.intake.encode import Entry, Take, entry_at_once, picture_entry, refused_entry, text_entry
from gristmill.intake.errors import PictureError
from gristmill.intake.normalise import Normaliser
from gristmill.intake.options import EncodeOptions
from gristmill.intake.pictures import PictureStore
from gristmill.intake.readers import Line, open_lines
from gristmill.intake.selection import Selection

BATCH_LINES = 1024
"""Lines read and parsed by one trip into a thread; the trip costs as much as a dozen lines."""

BATCH_BYTES = 4 << 20
"""Of the lines; and of the pictures that were read with them, where these travel in the store."""

BATCH_REFERENCE_BYTES = 16 << 20
"""Of the pictures that were read with the lines and stay where they are: some milliseconds."""

READY_LINES = 256
AHEAD_BYTES = 96 << 20
AHEAD_PICTURED = 128


class Start(msgspec.Struct, frozen=True):
    """Where to begin: so many bytes, lines and places (lines that are not blank) lie before."""

    offset: int = 0
    line: int = 0
    place: int = 0


class _Pictured(msgspec.Struct):
    """A parsed line whose pictures are not begun; `weight` is a guess at the bytes they take, from file sizes."""

    line: Line
    place: int
    draft: Draft
    weight: int


class _Ready(msgspec.Struct):
    """Lines that are entries already: they stay together, so that passing them on costs nothing for each.

    `weight` is what was read of pictures that they hold.
    """

    entries: list[Entry] = []
    weight: int = 0


_Parsed = _Ready | _Pictured


class Pipeline:
    """One pass over the input from `start`.

    `ready` is for one caller. `close` drops what is ahead; the picture store stays open, it belongs to the caller.
    """

    def __init__(
        self,
        path: str | Path,
        options: EncodeOptions,
        store: PictureStore,
        *,
        start: Start = Start(),
        selection: Selection | None = None,
        take: Take | None = None,
    ) -> None:
        self._options = options
        self._store = store
        self._take = take
        self._selection = selection or Selection()
        self._normalise = Normaliser(options)
        self._at_once = store.at_once()
        self._root = options.media_root or str(Path(path).absolute().parent)
        self._place = start.place
        self._lines: Iterator[Line] = open_lines(
            path, start.offset, number=start.line, max_line_bytes=options.max_line_bytes, arrays=options.arrays
        )
        self._parsed: deque[_Parsed] = deque()
        self._ahead: deque[tuple[list[Entry] | asyncio.Task[Entry], int]] = deque()
        self._ahead_bytes = self._ahead_lines = 0
        self._reading: asyncio.Task[list[_Parsed]] | None = None
        self._read_all = False

    @property
    def ended(self) -> bool:
        """Nothing will come any more."""
        return self._read_all and not self._parsed and not self._ahead

    async def ready(self, timeout_s: float | None = None) -> list[Entry]:
        """The next entries, in order: at least one unless the input has ended or the time is up.

        Raises:
            InputError: the input can't be read on.
            FeedError: see `picture_entry`.
        """
        await self._fill(timeout_s)
        if not self._ahead:
            return []
        head = self._ahead[0][0]
        if isinstance(head, asyncio.Task) and not head.done():
            await asyncio.wait((head,), timeout=timeout_s)
        return self._pop_ready()

    async def close(self) -> None:
        tasks = [entry for entry, _ in self._ahead if isinstance(entry, asyncio.Task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *([self._reading] if self._reading else []), return_exceptions=True)
        self._ahead.clear()
        self._parsed.clear()
        self._read_all, self._reading = True, None

    def _pop_ready(self) -> list[Entry]:
        found: list[Entry] = []
        while self._ahead and len(found) < READY_LINES:
            entries, weight = self._ahead[0]
            if isinstance(entries, asyncio.Task):
                if not entries.done():
                    break
                entries = [entries.result()]
            self._ahead.popleft()
            self._ahead_bytes -= weight
            self._ahead_lines -= len(entries)
            found += entries
        return found

    async def _fill(self, timeout_s: float | None) -> None:
        """Admit parsed lines; read on when few are left. Waits only while nothing at all is ahead."""
        self._admit()
        while not self._parsed and not self._read_all:
            if self._reading is None:
                self._reading = asyncio.create_task(asyncio.to_thread(self._read_batch))
            if not self._reading.done():
                if self._ahead:
                    return
                await asyncio.wait((self._reading,), timeout=timeout_s)
                if not self._reading.done():
                    return
            batch = self._reading.result()
            self._reading = None
            self._read_all = not batch
            self._parsed.extend(batch)
            self._admit()

    def _admit(self) -> None:
        pictured = sum(1 for entry, _ in self._ahead if isinstance(entry, asyncio.Task))
        while self._parsed:
            item = self._parsed[0]
            ready = isinstance(item, _Ready)
            full = self._ahead_lines >= READY_LINES * 2 if ready else pictured >= AHEAD_PICTURED
            if self._ahead and (full or self._ahead_bytes + item.weight > AHEAD_BYTES):
                return
            self._parsed.popleft()
            self._ahead_bytes += item.weight
            if isinstance(item, _Ready):
                self._taken(item.entries)
                self._ahead_lines += len(item.entries)
                self._ahead.append((item.entries, item.weight))
            else:
                pictured += 1
                self._ahead_lines += 1
                self._ahead.append((asyncio.create_task(self._pictured(item)), item.weight))

    def _taken(self, entries: list[Entry]) -> None:
        if self._take is None:
            return
        for entry in entries:
            if entry.refused is None:
                entry.carried = self._take(entry.custom_id, entry.fingerprint)
                if entry.carried is not None:
                    entry.blobs = {}

    async def _pictured(self, item: _Pictured) -> Entry:
        return await picture_entry(item.line, item.place, item.draft, self._store, self._options.image, self._take)

    def _read_batch(self) -> list[_Parsed]:
        """The next lines, parsed; runs in a thread. Empty at the end."""
        batch: list[_Parsed] = []
        together: _Ready | None = None
        count = size = 0
        at_once, before = self._at_once, self._at_once.read_bytes
        most_read = BATCH_BYTES if self._options.inline else BATCH_REFERENCE_BYTES
        while count < BATCH_LINES and size < BATCH_BYTES and at_once.read_bytes - before < most_read:
            found = self._next_line()
            if found is None:
                break
            line, place = found
            count += 1
            size += len(line.data)
            item = self._parse(line, place)
            if isinstance(item, _Pictured):
                batch.append(item)
                together = None
                continue
            if together is None:
                together = _Ready()
                batch.append(together)
            together.entries.append(item)
        self._weigh(batch, at_once.read_bytes - before)
        return batch

    def _weigh(self, batch: list[_Parsed], read_bytes: int) -> None:
        """Put what was read for a batch on the first of its entries, where they hold it."""
        ready = [item for item in batch if isinstance(item, _Ready)]
        if ready and self._options.inline:
            ready[0].weight = read_bytes

    def _next_line(self) -> tuple[Line, int] | None:
        """The next line that is meant, and its place; None at the end."""
        end = self._selection.end
        while end is None or self._place < end:
            line = next(self._lines, None)
            if line is None:
                return None
            place = self._place
            self._place += 1
            if place in self._selection:
                return line, place
        return None

    def _parse(self, line: Line, place: int) -> Entry | _Pictured:
        if line.problem is not None:
            return refused_entry(line, place, Refused(None, FailureClass.BAD_INPUT, line.problem))
        draft = self._normalise(line.data)
        if isinstance(draft, Refused):
            return refused_entry(line, place, draft)
        if not draft.pictures:
            return text_entry(line, place, draft)
        opened = self._at_once(draft.pictures)
        if opened is not None:
            return entry_at_once(line, place, draft, opened, self._options.image)
        return _Pictured(line, place, draft, self._weight(draft))

    def _weight(self, draft: Draft) -> int:
        total = 0
        for ref in draft.pictures:
            if picture_source.is_data_url(ref):
                total += len(ref.url)
                continue
            try:
                total += Path(picture_source.resolve(ref, self._root)).stat().st_size
            except (OSError, PictureError):
                continue  # its turn to be refused comes when it is opened
        return total
