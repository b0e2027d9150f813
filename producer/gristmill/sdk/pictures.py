"""Pictures that are given as objects: bytes, and PIL images.

Bytes take the way of a file's bytes: passed through when they are fit to send, else encoded by expendable processes.

A PIL image is decoded already, so nothing of it can crash a decoder, and to hand its pixels to another process would
cost a third of what encoding them does. It is encoded by a pool of threads, one a core, each writing to a file in
memory: for a file, Pillow's encoder lets go of the interpreter's lock from the first byte to the last (for a buffer it
does not). The result is held by the frame alone; the image is let go of as soon as it is encoded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

from gristmill.contract.digest import digest_of
from gristmill.intake import picture_source
from gristmill.intake.draft import PictureRef
from gristmill.intake.errors import PictureError
from gristmill.intake.options import EncodeOptions, ImageOptions
from gristmill.intake.picture import Opened, Picture, in_the_run
from gristmill.intake.pictures import PictureStore
from gristmill.intake.structure import JPEG, Look

_LOADING = [threading.Lock() for _ in range(64)]


class GivenPicture(PictureRef):
    """A picture that is an object; `source` is None once it has been taken over."""

    source: Any = None


class GivenPictures(PictureStore):
    """A picture store that also knows given ones; `close` ends its threads, too."""

    def __init__(self, options: EncodeOptions, root: str) -> None:
        super().__init__(options, root)
        self._folder = options.media_root or root
        self._image_options = options.image
        cores = os.cpu_count() or 1
        self._files = _Files()
        self._encoders = ThreadPoolExecutor(options.encoders or cores, "gm-encoder")

    def size_of_files(self, refs: Sequence[PictureRef]) -> int:
        """Bytes that the files among `refs` will take when they are read; 0 for what is no file."""
        total = 0
        for ref in refs:
            if not isinstance(ref, GivenPicture) and not picture_source.is_data_url(ref):
                with contextlib.suppress(OSError, PictureError):  # its turn to be refused comes when it is opened
                    total += Path(picture_source.resolve(ref, self._folder)).stat().st_size
        return total

    async def open(self, ref: PictureRef) -> Opened:
        """See `PictureStore.open`."""
        if not isinstance(ref, GivenPicture):
            return await super().open(ref)
        source, ref.source = ref.source, None
        loop = asyncio.get_running_loop()
        if isinstance(source, bytes):
            got, seen = await loop.run_in_executor(self._encoders, self._looked_at_bytes, source)
            return Opened(got.digest, got.data, None, seen=seen)
        options, files = self._image_options, self._files
        try:
            digest, picture = await loop.run_in_executor(self._encoders, _encode, source, options, files)
        except PictureError as error:
            raise PictureError(f"the picture in {ref.place} can't be sent: {error.reason}") from None
        self.stats.pictures += 1
        self.stats.sent_bytes += picture.image.size
        return Opened(digest, b"", None, picture)

    def _looked_at_bytes(self, data: bytes) -> tuple[picture_source.Bytes, Look | PictureError]:
        return self._looked_at(picture_source.Bytes(data, digest_of(data), None))

    async def ready(self, ref: PictureRef, opened: Opened) -> Picture:
        """See `PictureStore.ready`."""
        try:
            return await super().ready(ref, opened)
        except PictureError as error:
            if not isinstance(ref, GivenPicture):
                raise
            _, _, reason = error.reason.partition(" can't be sent: ")
            raise PictureError(f"the picture in {ref.place} can't be sent: {reason or error.reason}") from None

    async def close(self) -> None:
        self._encoders.shutdown(wait=True, cancel_futures=True)
        self._files.close()
        await super().close()


def _encode(image: Any, options: ImageOptions, files: _Files) -> tuple[str, Picture]:
    """The hash and the JPEG of a PIL image; runs in a thread, and reads the caller's image without changing it.

    Raises:
        PictureError: it has no pixels, is closed, or is too large.
    """
    from gristmill.intake.images import prepare, within_bytes

    try:
        with _LOADING[id(image) % len(_LOADING)]:  # one that was opened lazily must not be read by two threads at once
            image.load()
        made = within_bytes(prepare(image, options), options, files.save)
    except PictureError:
        raise
    except Exception as error:  # noqa: BLE001  an image that was closed, or opened lazily and is damaged, raises anything
        raise PictureError(f"it can't be encoded ({type(error).__name__})") from None
    digest = digest_of(made.data)
    return digest, in_the_run(digest, made.data, JPEG, made.width, made.height)


class _Files:
    """Files without a name that the kernel holds in memory where it can, one for each thread that encodes.

    They are used again and again: to make one and to give its pages back costs a twentieth of an encoding.
    """

    def __init__(self) -> None:
        self._idle: list[IO[bytes]] = []

    def save(self, picture: Any, quality: int, subsampling: int) -> bytes:
        """The picture as a JPEG."""
        file = self._idle.pop() if self._idle else _new_file()
        try:
            file.seek(0)
            picture.save(file, "JPEG", quality=quality, subsampling=subsampling)
            # the encoder writes to the descriptor itself, so the file's own idea of its place counts for nothing
            return os.pread(file.fileno(), os.lseek(file.fileno(), 0, os.SEEK_CUR), 0)
        except BaseException:
            file.close()
            raise
        finally:
            if not file.closed:
                self._idle.append(file)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def _new_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return cast("IO[bytes]", os.fdopen(os.memfd_create("gristmill"), "w+b", buffering=0))
    return tempfile.TemporaryFile(buffering=0)
