"""One run in the making, and the cursor."""

from __future__ import annotations

from gristmill.contract.frame import Image
from gristmill.intake import runs
from gristmill.intake.encode import Entry
from gristmill.intake.runs import Cursor, RunBuilder


def entry(digest: str, size: int) -> Entry:
    image = Image(digest, size)
    return Entry(1, 0, 1, None, b"f" * 16, "/p", [b"a", b"b"], [image], {digest: bytes(size)})


def test_each_picture_counts_once() -> None:
    """Bytes are those of the fields and their overhead, whoever shares a picture."""
    run = RunBuilder(1, 7, begun_at_s=0)
    for digest in ("a", "b", "a"):
        run.add(entry(digest, 1000), 0)
    assert sorted(run.fields) == [b"7", b"8", b"9", b"i:a", b"i:b"]
    assert run.bytes == sum(map(len, run.fields.values())) + 5 * runs.FIELD_OVERHEAD_BYTES


def test_run_is_full_by_count_or_bytes_and_the_first_one_early() -> None:
    """16 requests in the first run, 256 in others, 4 MB in any."""
    for number, wanted in ((0, 16), (3, 256)):
        run = RunBuilder(number, 0, begun_at_s=0)
        while not run.full:
            run.add(entry("a", 10), 0)
        assert run.count == wanted
    run = RunBuilder(0, 0, begun_at_s=0)
    run.add(entry("a", 5 << 20), 0)
    assert run.full


def test_cursor_survives_its_wire_form() -> None:
    """An empty one is the beginning of the input."""
    cursor = Cursor(line=1, offset=2, place=3, ordinal=4, index=5, carried=6)
    assert Cursor.decode(cursor.encode()) == cursor
    assert Cursor.decode(b"") == Cursor()
