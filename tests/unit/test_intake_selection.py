"""Which lines are meant, whether ids repeat, and whether the input is still the same file."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from gristmill.intake.duplicates import require_unique
from gristmill.intake.errors import InputError
from gristmill.intake.options import EncodeOptions, ImageOptions
from gristmill.intake.selection import select
from gristmill.intake.source import identify, input_digest, require_unchanged, spool_stdin

CAP = 1 << 20


def chosen(path: Path, limit: int | None, sample: int | None, total: int) -> list[int]:
    selection = select(path, limit, sample, max_line_bytes=CAP)
    return [p for p in range(total) if (selection.end is None or p < selection.end) and p in selection]


def test_sample_is_the_same_each_time_and_stable_as_the_input_grows(tmp_path: Path) -> None:
    """N lines, spread out, the same for the same input; most of them stay when lines are added."""
    path = tmp_path / "input"
    path.write_text("x\n\n" * 1000)
    first = chosen(path, None, 50, 1000)
    assert len(first) == 50
    assert chosen(path, None, 50, 1000) == first
    assert 300 < sum(first) / 50 < 700
    path.write_text("x\n" * 1200)
    assert len(set(first) & set(chosen(path, None, 50, 1200))) >= 30
    assert max(chosen(path, 100, 10, 1000)) < 100
    assert chosen(path, None, 5000, 1200) == list(range(1200))
    assert chosen(path, 7, None, 1000) == list(range(7))
    path.write_text("")
    assert chosen(path, None, 5, 10) == []


@pytest.mark.parametrize("sample", [None, 40])
def test_ordinals_count_the_lines_that_were_kept(tmp_path: Path, sample: int | None) -> None:
    """Of the lines meant, those at the places that were left out have no ordinal."""
    path = tmp_path / "input"
    path.write_text("x\n" * 100)
    meant = chosen(path, 90, sample, 100)
    gone = meant[3:20:4]
    kept = [place for place in meant if place not in gone]
    selection = select(path, 90, sample, max_line_bytes=CAP).only([0, 5, 6, 30], gone)
    assert [place for place in range(100) if place in selection] == [kept[i] for i in (0, 5, 6, 30)]
    assert selection.end == kept[30] + 1
    assert [p for p in range(100) if p in select(path, 90, sample, max_line_bytes=CAP).only([])] == []


def test_strict_names_both_lines(tmp_path: Path) -> None:
    """The first pair is named; ids are compared as they will be used, so 7 and "7" are the same."""
    path = tmp_path / "input"
    path.write_text('{"custom_id":"a"}\n\n{"id":7}\nbad\n{"custom_id":"7","id":"a"}\n')
    with pytest.raises(InputError, match="lines 3 and 5"):
        require_unique(path, max_line_bytes=CAP)
    require_unique(path, max_line_bytes=CAP, limit=3)


def test_changed_input_is_refused(tmp_path: Path) -> None:
    """Size, time and head are compared; an untouched file passes."""
    path = tmp_path / "input"
    path.write_text("one\n")
    source = identify(path)
    require_unchanged(source)
    path.write_text("two\n")
    os.utime(path, ns=(source.mtime_ns, source.mtime_ns))
    with pytest.raises(InputError, match="changed"):
        require_unchanged(source)
    path.write_text("one\n")
    os.utime(path, ns=(source.mtime_ns, source.mtime_ns + 1))
    with pytest.raises(InputError, match="written to"):
        require_unchanged(source)
    path.unlink()
    with pytest.raises(InputError, match="No such file"):
        require_unchanged(source)


def test_folders_and_pipes_are_no_input(tmp_path: Path) -> None:
    """Both are told how to do it."""
    with pytest.raises(InputError, match="folder"):
        identify(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="give - as INPUT"):
        identify(tmp_path / "pipe")


def test_stdin_is_spooled_whole_and_private(tmp_path: Path) -> None:
    """All bytes, readable by the owner only; a failure leaves nothing behind."""
    data = os.urandom(3 << 20)
    path = spool_stdin(tmp_path / "spool", io.BytesIO(data))
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o600

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spool_stdin(tmp_path / "spool", Broken())
    assert list((tmp_path / "spool").iterdir()) == [path]


def test_digest_follows_what_shapes_bodies(tmp_path: Path) -> None:
    """Path and shaping options count; encoders, inline and spool do not."""
    path = tmp_path / "input"
    wanted = input_digest(path, EncodeOptions(model="m"))
    assert input_digest(str(path), EncodeOptions(model="m", encoders=3, inline=False)) == wanted
    others = [
        input_digest(path, EncodeOptions(model="n")),
        input_digest(path, EncodeOptions(model="m", set={"a": 1})),
        input_digest(path, EncodeOptions(model="m", image=ImageOptions(max_pixels=1))),
        input_digest(path, EncodeOptions(model="m"), limit=1),
        input_digest(tmp_path / "other", EncodeOptions(model="m")),
    ]
    assert len({wanted, *others}) == 6
