"""Pictures of a job: read, hashed, passed through or encoded, and remembered while they are hot.

Two steps, since a rerun needs only the first: `open` reads and hashes (the fingerprint is made of source bytes),
`ready` gives what will be sent. A picture that many lines share is encoded once while it is hot, and two lines that
need it at the same time wait for the same encoding.

By reference (`EncodeOptions.inline` False): a file that is fit stays where it is and the frame names it; what had to be
encoded anew goes to `spool_dir` under the hash of its bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from gristmill.contract.frame import Image
from gristmill.intake import picture_source as source
from gristmill.intake import structure
from gristmill.intake.draft import PictureRef
from gristmill.intake.encoder_pool import EncoderPool
from gristmill.intake.errors import FeedError, PictureError
from gristmill.intake.options import EncodeOptions
from gristmill.intake.structure import Verdict

HOT_BYTES = 64 << 20
_HOT_PICTURE_BYTES = 4 << 20
_REFERENCE_WEIGHT_BYTES = 512
_HOT_IDENTITIES = 20_000
_HOT_FOLDERS = 1_000
_SHA_CHARS = 32

T = TypeVar("T")
_Looked = tuple[source.Bytes, structure.Look | PictureError]


class Picture(msgspec.Struct, frozen=True):
    """One picture as it will be sent; `blob` is None when it goes by reference."""

    image: Image
    mime: str
    width: int
    height: int
    blob: bytes | None


class Opened(msgspec.Struct):
    """A picture whose source is known; `picture` when it was hot, else `data`, and what a look at it gave."""

    sha256: str
    data: bytes
    identity: source.Identity | None
    picture: Picture | None = None
    seen: structure.Look | PictureError | None = None


class PictureStore:
    """Serves many tasks of one loop. `close` ends threads and encoders, and may be called twice."""

    def __init__(self, options: EncodeOptions, root: str, pool: EncoderPool | None = None) -> None:
        self._options = options
        self._root = options.media_root or root
        self._pool = pool or EncoderPool(options.encoders)
        self.stats = self._pool.stats
        self._threads = ThreadPoolExecutor(min(8, (os.cpu_count() or 1) + 2), "gm-picture")
        self._hot = _Hot(HOT_BYTES)
        self._shas: OrderedDict[source.Identity, str] = OrderedDict()
        self._reading: dict[source.Identity, asyncio.Future[_Looked]] = {}
        self._folders: dict[str, str] = {}
        self._running: dict[tuple[str, str], asyncio.Task[Picture]] = {}

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
                identity = source.file_identity(path)
                hot = self._known(identity)
                if hot is not None:
                    return hot
                got, seen = await self._opened_once(identity)
                self._remember(identity, got.sha256)
        except PictureError as error:
            raise PictureError(f"{source.describe(ref)} {error.reason}") from None
        return Opened(got.sha256, got.data, got.identity, self._hot.get(self._key(got.sha256, got.identity)), seen)

    async def _opened_once(self, identity: source.Identity) -> _Looked:
        """Read and look at a file; those that want it at the same time share one reading."""
        reading = self._reading.get(identity)
        if reading is None:
            reading = asyncio.ensure_future(self._thread(lambda: self._looked_at(source.read_file(identity))))
            self._reading[identity] = reading
            reading.add_done_callback(lambda _: self._reading.pop(identity))
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
        key = self._key(opened.sha256, opened.identity)
        try:
            picture = self._as_it_is(opened)
            if picture is not None:
                self._hot.put(key, picture)
                return picture
            task = self._running.get(key)
            if task is None:
                task = asyncio.create_task(self._make(opened))
                self._running[key] = task
                task.add_done_callback(lambda done: self._finished(key, done))
            return await asyncio.shield(task)
        except PictureError as error:
            raise PictureError(f"{source.describe(ref)} can't be sent: {error.reason}") from None

    async def close(self) -> None:
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        await self._pool.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _key(self, sha256: str, identity: source.Identity | None) -> tuple[str, str]:
        """By reference, equal bytes in two files are two pictures: each is checked where it lies."""
        return sha256, "" if self._options.inline or identity is None else f"{identity[2]} {identity[0]}"

    def _known(self, identity: source.Identity) -> Opened | None:
        sha256 = self._shas.get(identity)
        if sha256 is None:
            return None
        self._shas.move_to_end(identity)
        picture = self._hot.get(self._key(sha256, identity))
        return None if picture is None else Opened(sha256, b"", identity, picture)

    def _remember(self, identity: source.Identity, sha256: str) -> None:
        self._shas[identity] = sha256
        if len(self._shas) > _HOT_IDENTITIES:
            self._shas.popitem(last=False)

    def _finished(self, key: tuple[str, str], task: asyncio.Task[Picture]) -> None:
        del self._running[key]
        if not task.cancelled() and task.exception() is None:
            self._hot.put(key, task.result())

    def _as_it_is(self, opened: Opened) -> Picture | None:
        """The picture when its own bytes are fit and need no writing; None when there is more to do.

        Raises:
            PictureError: it is damaged, or too large.
        """
        seen, data = opened.seen, opened.data
        if isinstance(seen, PictureError):
            raise seen
        if seen is None or seen.verdict is not Verdict.PLAIN or not self._within(seen, len(data)):
            return None
        sha = opened.sha256[:_SHA_CHARS]
        if self._options.inline:
            return Picture(Image(sha, len(data)), seen.mime, seen.width, seen.height, data)
        if opened.identity is None:
            return None
        path, size, mtime_ns = opened.identity
        return Picture(Image(sha, size, self._real(path), mtime_ns), seen.mime, seen.width, seen.height, None)

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
        options, data, seen = self._options, opened.data, opened.seen
        if isinstance(seen, structure.Look) and seen.verdict is Verdict.PLAIN and self._within(seen, len(data)):
            return await self._placed(data, opened.sha256, seen.mime, seen.width, seen.height)
        done = await self._pool.encode(data, options.image)
        sha256 = hashlib.sha256(done.data).hexdigest()
        return await self._placed(done.data, sha256, structure.JPEG, done.width, done.height)

    def _within(self, seen: structure.Look, size: int) -> bool:
        image = self._options.image
        pixels = seen.width * seen.height
        if pixels > image.bomb_pixels:
            raise PictureError(f"it claims {seen.width} x {seen.height} pixels, more than {image.bomb_pixels:,}")
        return (not image.max_pixels or pixels <= image.max_pixels) and (not image.max_bytes or size <= image.max_bytes)

    async def _placed(self, data: bytes, sha256: str, mime: str, width: int, height: int) -> Picture:
        """Bytes that are not a file of the user's: in the run, or in the spool."""
        sha, folder = sha256[:_SHA_CHARS], self._options.spool_dir
        if self._options.inline or folder is None:
            return Picture(Image(sha, len(data)), mime, width, height, data)
        path, mtime_ns = await self._thread(lambda: spool(folder, sha, mime, data))
        return Picture(Image(sha, len(data), path, mtime_ns), mime, width, height, None)

    async def _thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def spool(folder: str, sha: str, mime: str, data: bytes) -> tuple[str, int]:
    """Keep `data` under its hash; returns path and modification time. Durable before it has its name.

    Raises:
        FeedError: the folder can't be written, or the disk is full.
    """
    path = Path(folder).resolve() / sha[:2] / f"{sha}.{mime.rpartition('/')[2]}"
    try:
        if path.exists() and path.stat().st_size == len(data):
            return str(path), path.stat().st_mtime_ns
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = path.with_suffix(f".{secrets.token_hex(4)}.partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        return str(path), path.stat().st_mtime_ns
    except OSError as error:
        raise FeedError(f"pictures can't be spooled to {folder}: {error.strerror or error}") from error


class _Hot:
    """Least recently used pictures go first; bounded by bytes, large ones are not kept."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, str], Picture] = OrderedDict()

    def get(self, key: tuple[str, str]) -> Picture | None:
        picture = self._kept.get(key)
        if picture is not None:
            self._kept.move_to_end(key)
        return picture

    def put(self, key: tuple[str, str], picture: Picture) -> None:
        weight = _weight(picture)
        if key in self._kept or weight > _HOT_PICTURE_BYTES:
            return
        self._kept[key] = picture
        self._bytes += weight
        while self._bytes > self._limit:
            self._bytes -= _weight(self._kept.popitem(last=False)[1])


def _weight(picture: Picture) -> int:
    return _REFERENCE_WEIGHT_BYTES + (len(picture.blob) if picture.blob is not None else 0)
