"""Pictures of a job: read, hashed, passed through or encoded, and remembered while they are hot.

Two steps, since a rerun needs only the first: `open` reads and hashes (the fingerprint is made of source bytes),
`ready` gives what will be sent. A picture that many lines share is encoded once while it is hot, and two lines that
need it at the same time wait for the same encoding. What needs no encoding and lies in the system's cache goes a
shorter way, see `gristmill.intake.at_once`.

By reference (`EncodeOptions.inline` False): a file that is fit stays where it is and the frame names it; what had to be
encoded anew goes to `spool_dir` under the hash of its bytes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gristmill.contract.digest import digest_of
from gristmill.intake import picture_source as source
from gristmill.intake import structure
from gristmill.intake.at_once import AtOnce
from gristmill.intake.draft import PictureRef
from gristmill.intake.encoder_pool import EncoderPool
from gristmill.intake.errors import PictureError
from gristmill.intake.hot import HotPictures
from gristmill.intake.options import EncodeOptions
from gristmill.intake.picture import Opened, Picture, by_reference, hot_key, in_the_run, is_fit
from gristmill.intake.picture_source import File
from gristmill.intake.spool import spool

_HOT_FOLDERS = 1_000

T = TypeVar("T")
_Looked = tuple[source.Bytes, structure.Look | PictureError]


class PictureStore:
    """Serves many tasks of one loop. `close` ends threads and encoders, and may be called twice."""

    def __init__(self, options: EncodeOptions, root: str, pool: EncoderPool | None = None) -> None:
        self._options = options
        self._root = options.media_root or root
        self._pool = pool or EncoderPool(options.encoders)
        self.stats = self._pool.stats
        self._threads = ThreadPoolExecutor(min(8, (os.cpu_count() or 1) + 2), "gm-picture")
        self._hot = HotPictures(options)
        self._reading: dict[File, asyncio.Future[_Looked]] = {}
        self._folders: dict[str, str] = {}
        self._running: dict[tuple[str, File | None], asyncio.Task[Picture]] = {}

    def at_once(self) -> AtOnce:
        """The shorter way, for one thread."""
        return AtOnce(self._options, self._root, self._hot)

    async def open(self, ref: PictureRef) -> Opened:
        """The source of `ref`.

        Raises:
            PictureError: missing, unreadable, broken base64; its text names the picture.
        """
        try:
            if source.is_data_url(ref):
                got, seen = await self._thread(lambda: self._looked_at(source.read_data_url(ref)))
            else:
                # on the loop: the reading thread has just looked at this file's size, so it is in the kernel's cache
                path = source.resolve(ref, self._root)
                if self._options.roots is not None:
                    path = source.confine(path, self._options.roots)
                file = source.look_up(path)
                hot = self._hot.known(file)
                if hot is not None:
                    return hot
                got, seen = await self._opened_once(file)
                self._hot.remember(file, got.digest)
        except PictureError as error:
            raise PictureError(f"{source.describe(ref)} {error.reason}") from None
        return Opened(got.digest, got.data, got.file, self._hot.get(got.digest, got.file), seen)

    async def _opened_once(self, file: File) -> _Looked:
        """Read and look at a file; those that want it at the same time share one reading."""
        reading = self._reading.get(file)
        if reading is None:
            reading = asyncio.ensure_future(self._thread(lambda: self._looked_at(source.read_file(file))))
            self._reading[file] = reading
            reading.add_done_callback(lambda _: self._reading.pop(file))
        return await asyncio.shield(reading)

    def _looked_at(self, got: source.Bytes) -> _Looked:
        """A source and what it is, in one go: each hop between threads costs as much as the look."""
        try:
            return got, structure.look(got.data, allow_truncated=self._options.image.allow_truncated)
        except PictureError as error:
            return got, error

    async def ready(self, ref: PictureRef, opened: Opened) -> Picture:
        """What will be sent of `opened`.

        Raises:
            PictureError: not fit to send; its text names the picture.
            FeedError: no encoder starts, or the spool can't be written.
        """
        if opened.picture is not None:
            return opened.picture
        key = hot_key(opened.digest, opened.file, self._options)
        try:
            picture = self._as_it_is(opened)
            if picture is not None:
                self._hot.put(opened.digest, opened.file, picture)
                return picture
            task = self._running.get(key)
            if task is None:
                task = asyncio.create_task(self._make(opened))
                self._running[key] = task
                task.add_done_callback(lambda done: self._finished(opened, done))
            return await asyncio.shield(task)
        except PictureError as error:
            raise PictureError(f"{source.describe(ref)} can't be sent: {error.reason}") from None

    async def close(self) -> None:
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        await self._pool.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _finished(self, opened: Opened, task: asyncio.Task[Picture]) -> None:
        del self._running[hot_key(opened.digest, opened.file, self._options)]
        if not task.cancelled() and task.exception() is None:
            self._hot.put(opened.digest, opened.file, task.result())

    def _as_it_is(self, opened: Opened) -> Picture | None:
        """The picture when its own bytes are fit and need no writing; None when there is more to do.

        Raises:
            PictureError: it is damaged, or too large.
        """
        seen, data, file = opened.seen, opened.data, opened.file
        if isinstance(seen, PictureError):
            raise seen
        if seen is None or not is_fit(seen, len(data), self._options.image):
            return None
        if self._options.inline:
            return in_the_run(opened.digest, data, seen.mime, seen.width, seen.height)
        if file is None:
            return None
        real = file._replace(path=self._real(file.path))
        if not _is_utf8(real.path):
            raise PictureError("the file it stands for has a name that is not UTF-8")
        return by_reference(opened.digest, real, seen.mime, seen.width, seen.height)

    def _real(self, path: str) -> str:
        """Where `path` really lies; folders are looked up once while they are hot."""
        folder, name = os.path.split(path)
        if Path(path).is_symlink() or name in {"", ".", ".."}:
            return os.path.realpath(path)
        real = self._folders.get(folder)
        if real is None:
            if len(self._folders) >= _HOT_FOLDERS:
                self._folders.clear()
            real = self._folders[folder] = os.path.realpath(folder)
        return os.path.join(real, name)  # noqa: PTH118 - a Path costs more than the lookup it saves

    async def _make(self, opened: Opened) -> Picture:
        options, data, seen = self._options.image, opened.data, opened.seen
        if isinstance(seen, structure.Look) and is_fit(seen, len(data), options):
            return await self._placed(data, opened.digest, seen.mime, seen.width, seen.height)
        done = await self._pool.encode(data, options)
        return await self._placed(done.data, digest_of(done.data), structure.JPEG, done.width, done.height)

    async def _placed(self, data: bytes, digest: str, mime: str, width: int, height: int) -> Picture:
        """Bytes that are not a file of the user's: in the run, or in the spool."""
        folder = self._options.spool_dir
        if self._options.inline or folder is None:
            return in_the_run(digest, data, mime, width, height)
        file = await self._thread(lambda: spool(folder, digest, mime, data))
        return by_reference(digest, file, mime, width, height)

    async def _thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
