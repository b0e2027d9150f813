"""INPUT as lines: compression, byte order marks, caps, offsets, and files that are something else."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard

from gristmill.intake.errors import InputError
from gristmill.intake.readers import Line, open_lines

TEXT = b'{"a":1}\n\n  \t\n{"b":2}\r\n{"c":3}'


def packed(how: str, data: bytes) -> bytes:
    if how == "gzip":
        return gzip.compress(data[:9]) + gzip.compress(data[9:])
    if how == "zstd":
        packer = zstandard.ZstdCompressor()
        return packer.compress(data[:9]) + packer.compress(data[9:])
    return data


@pytest.fixture(params=["plain", "gzip", "zstd"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_lines_are_numbered_as_an_editor_shows_them(tmp_path: Path, how: str) -> None:
    """Blank lines count but are not handed out; the last line needs no end; several frames are one stream."""
    path = tmp_path / "input.jsonl"
    path.write_bytes(packed(how, TEXT))
    lines = list(open_lines(path))
    assert [line.number for line in lines] == [1, 4, 5]
    assert [line.data.strip() for line in lines] == [b'{"a":1}', b'{"b":2}', b'{"c":3}']
    assert lines[-1].offset_after == len(TEXT)


def test_reading_goes_on_after_any_line(tmp_path: Path, how: str) -> None:
    """Whoever stops after a line gets exactly the rest from its offset and number."""
    path = tmp_path / "input"
    path.write_bytes(packed(how, b"\xef\xbb\xbf" + TEXT))
    whole = list(open_lines(path))
    assert whole[0].data == b'{"a":1}\n'
    for at, line in enumerate(whole):
        assert list(open_lines(path, line.offset_after, number=line.number)) == whole[at + 1 :]


def test_a_problem_names_options_that_exist(tmp_path: Path) -> None:
    """The most that a line may have is fixed: nobody is sent looking for an option."""
    path = tmp_path / "input"
    for text, arrays in ((b'"' + b"x" * 99 + b'"\n', False), (b'[{"a":"' + b"x" * 99 + b'"}]', True)):
        path.write_bytes(text)
        (line,) = open_lines(path, max_line_bytes=50, arrays=arrays)
        assert line.problem is not None
        assert "longer than 50 bytes" in line.problem
        assert "--" not in line.problem


def test_too_long_line_is_a_problem_and_the_rest_is_read(tmp_path: Path) -> None:
    """A line over the cap is skipped in bounded memory; numbers and offsets after it stay right."""
    path = tmp_path / "input"
    path.write_bytes(b"1\n" + b"x" * 200_000 + b"\n" + b"3\n")
    lines = list(open_lines(path, max_line_bytes=1000))
    assert [line.number for line in lines] == [1, 2, 3]
    assert lines[1].problem is not None
    assert "1,000 bytes" in lines[1].problem
    assert lines[2] == Line(3, 200_005, b"3\n")


def test_line_of_exactly_the_cap_is_fine(tmp_path: Path) -> None:
    """The cap itself is allowed, its line end beside it or not."""
    path = tmp_path / "input"
    path.write_bytes(b"x" * 9 + b"\n" + b"y" * 10)
    assert [line.problem for line in open_lines(path, max_line_bytes=10)] == [None, None]


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_named(tmp_path: Path, coding: str) -> None:
    """UTF-16 text is one clear error with the cure, not a million bad lines."""
    path = tmp_path / "input"
    path.write_bytes('{"prompt": "x"}\n'.encode(coding))
    with pytest.raises(InputError, match=r"UTF-16.*iconv"):
        list(open_lines(path))


@pytest.mark.parametrize(
    ("head", "name"), [(b"PAR1abcd", "Parquet"), (b"PK\x03\x04abcd", "zip"), (b"BZh9abcd", "bzip2")]
)
def test_other_file_types_are_named(tmp_path: Path, head: bytes, name: str) -> None:
    """A file that is no JSON lines at all says what it is."""
    path = tmp_path / "input"
    path.write_bytes(head)
    with pytest.raises(InputError, match=name):
        list(open_lines(path))


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_cut_compressed_input_is_an_input_error(tmp_path: Path, kind: str) -> None:
    """An archive that ends early is an error and never a shorter input."""
    path = tmp_path / "input"
    body = b"".join(b'{"prompt":"%d"}\n' % i for i in range(5000))
    data = packed(kind, body)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match="damaged or cut"):
        list(open_lines(path))


def test_missing_file_is_an_input_error(tmp_path: Path) -> None:
    """The message names the path and the cause."""
    with pytest.raises(InputError, match=r"nowhere.*No such file"):
        list(open_lines(tmp_path / "nowhere"))


def test_offset_beyond_the_end_is_refused(tmp_path: Path) -> None:
    """A compressed input that has become shorter does not look like a finished one."""
    path = tmp_path / "input"
    path.write_bytes(gzip.compress(b"1\n"))
    with pytest.raises(InputError, match="replaced"):
        list(open_lines(path, 100))
