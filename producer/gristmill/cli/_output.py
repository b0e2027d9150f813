"""Where result lines go: a file that grows in the order of INPUT, an old one that is replaced at the end, or stdout."""

from __future__ import annotations

import os
from pathlib import Path

from gristmill import stdio
from gristmill.cli._errors import BadUsageError
from gristmill.cli._options import StoreOptions
from gristmill.embedded import default_state_dir
from gristmill.outlet.assemble import Assembled, Grower, Outcome, finish
from gristmill.outlet.errors import DiskError
from gristmill.outlet.reading import LineStream
from gristmill.outlet.workdir import Work

STDOUT = "-"
NAME_BYTES = 230
"""Most systems allow 255; ``OUT.failed.jsonl`` and the like have to fit in."""


def open_work(out: str, store: StoreOptions, stream_name: str, *, overwrite: bool = False) -> Work:
    """The locked work folder of `out`; for standard output one in the state folder, named `stream_name`.

    Raises:
        BadUsageError: its folder does not exist.
        OutletError: see `Work.open`.
    """
    if out != STDOUT:
        folder = Path(out).absolute().parent
        if not folder.is_dir():
            raise BadUsageError(f"the folder of OUT does not exist: make {folder} first")
        return Work.open(Path(out), overwrite=overwrite)
    folder = (store.state_dir or default_state_dir()).absolute() / "out" / stream_name
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Work.open(None, folder=folder, overwrite=overwrite)


def spare_input(out: str, source: str | Path) -> None:
    """Return when `out` is not the input at `source`, under whatever name; `--overwrite` would destroy that.

    Raises:
        BadUsageError: it is, or its name is so long that those of the files beside it would be too long.
    """
    if out != STDOUT and len(os.fsencode(Path(out).name)) > NAME_BYTES:
        raise BadUsageError(f"the name of OUT is too long: give it {NAME_BYTES} bytes at most")
    if out == STDOUT or not Path(out).exists() or not Path(source).exists():
        return
    if Path(out).samefile(source):
        raise BadUsageError(f"{out} is INPUT itself: name another file for the results")


class Output:
    """What is done with lines as they become durable; make it after `Work.begin` or `Work.resume`.

    `grow` may be called from a thread, one call at a time.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._closed = False
        self._made = work.out is not None and not work.out.exists()
        self._stream = LineStream(work) if work.out is None else None
        self._grower = Grower(work) if work.out is not None and not work.base else None

    def grow(self) -> None:
        """Give out what follows without a gap; nothing where an old file is to be replaced."""
        if self._stream is not None:
            self._write(gaps=False)
        elif self._grower is not None:
            self._grower.step()

    def finish(self, *, fed: bool, complete: bool) -> Assembled:
        """Give out the rest and make it durable; see `assemble.finish`.

        Raises:
            DiskError: the file cannot be written; nothing is lost.
        """
        if self._stream is None:
            return finish(self._work, fed=fed, complete=complete, grower=self._grower)
        if self._closed:
            return Assembled(Outcome.KEPT)
        self._write(gaps=True)
        return Assembled(Outcome.GROWN)

    def _write(self, *, gaps: bool) -> None:
        """Write to standard output what is ready.

        Raises:
            BrokenPipeError: nobody reads it any more; nothing further is written, not even by Python's own exit.
            DiskError: it can't be written; the same holds.
        """
        assert self._stream is not None
        try:
            for chunk in self._stream.ready(gaps=gaps):
                stdio.put(chunk)
        except BrokenPipeError:
            self._closed = True
            raise
        except stdio.StdoutError as error:
            self._closed = True
            raise DiskError(Path("standard output"), error) from error

    def discard(self) -> None:
        """Close, and take OUT away again where it was made here and has no line."""
        self.close()
        out = self._work.out
        if self._made and out is not None and out.exists() and not out.stat().st_size:
            out.unlink()

    def close(self) -> None:
        """Close the files; may be called twice."""
        if self._stream is not None:
            self._stream.close()
        if self._grower is not None:
            self._grower.close()
