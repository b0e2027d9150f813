"""Segments, order map and carried file: what is durable, and what a crash leaves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.support.outlet import entry, record

from gristmill.contract.failure import FailureClass
from gristmill.outlet import segments as segments_module
from gristmill.outlet.carried import CarriedReader, CarriedWriter
from gristmill.outlet.errors import DiskError
from gristmill.outlet.ledger import Ledger, Walk
from gristmill.outlet.order import Bitmap, OrderMap
from gristmill.outlet.rows import INDEX_BYTES, Place
from gristmill.outlet.segments import SegmentWriter, index_path, lines_path, read_index, recover


def write_segment(folder: Path, ordinals: list[int], number: int = 1) -> SegmentWriter:
    writer = SegmentWriter(folder, number)
    writer.append([entry("j", record(o)) for o in ordinals])
    return writer


def test_a_segment_that_was_closed_well_is_read_back_whole(tmp_path: Path):
    """Every appended line has its row, and the row says where the line lies."""
    writer = write_segment(tmp_path, [3, 1])
    writer.append([entry("j", record(2, cls=FailureClass.TIMEOUT))])
    writer.close()
    assert recover(tmp_path) == [1]
    rows = list(read_index(tmp_path, 1))
    assert [r.ordinal for r in rows] == [3, 1, 2]
    data = lines_path(tmp_path, 1).read_bytes()
    for row, r in zip(rows, [record(3), record(1), record(2, cls=FailureClass.TIMEOUT)], strict=True):
        expected = entry("j", r)
        assert data[row.offset : row.offset + row.length] == expected.line
        assert (row.key, row.number, row.code) == (expected.key, expected.number, expected.code)


def test_lines_without_rows_are_cut(tmp_path: Path):
    """Killed between the lines and the journal: they were never acked, so the store still has them."""
    write_segment(tmp_path, [0, 1]).close()
    whole = lines_path(tmp_path, 1).read_bytes()
    with lines_path(tmp_path, 1).open("ab") as file:
        file.write(entry("j", record(2)).line + b'{"id":"j-3","cus')
    assert recover(tmp_path) == [1]
    assert lines_path(tmp_path, 1).read_bytes() == whole


@pytest.mark.parametrize("torn", [1, INDEX_BYTES - 1, INDEX_BYTES + 7])
def test_half_a_row_and_its_line_are_cut(tmp_path: Path, torn: int):
    """A journal that ends inside a row counts up to the last whole one."""
    write_segment(tmp_path, [0, 1, 2]).close()
    os.truncate(index_path(tmp_path, 1), 3 * INDEX_BYTES - torn)
    kept = 3 - (torn + INDEX_BYTES - 1) // INDEX_BYTES
    recover(tmp_path)
    assert len(list(read_index(tmp_path, 1))) == kept
    assert lines_path(tmp_path, 1).read_bytes().count(b"\n") == kept


def test_a_damaged_row_ends_the_journal(tmp_path: Path):
    """Zeros of a block that never reached the disk must not be taken for a result."""
    write_segment(tmp_path, [0, 1, 2]).close()
    with index_path(tmp_path, 1).open("r+b") as file:
        file.seek(INDEX_BYTES)
        file.write(bytes(INDEX_BYTES))
    recover(tmp_path)
    assert [r.ordinal for r in read_index(tmp_path, 1)] == [0]
    assert index_path(tmp_path, 1).stat().st_size == INDEX_BYTES


def test_rows_whose_lines_are_missing_are_cut(tmp_path: Path):
    """A file that came back shorter after a power cut takes its rows along."""
    write_segment(tmp_path, [0, 1]).close()
    os.truncate(lines_path(tmp_path, 1), lines_path(tmp_path, 1).stat().st_size - 1)
    recover(tmp_path)
    assert [r.ordinal for r in read_index(tmp_path, 1)] == [0]


def test_a_segment_that_holds_nothing_durable_is_removed(tmp_path: Path):
    """Killed before the first row: the next session can write a segment of that number."""
    lines_path(tmp_path, 1).write_bytes(b"half a line")
    index_path(tmp_path, 1).touch()
    assert recover(tmp_path) == []
    write_segment(tmp_path, [0]).close()
    assert recover(tmp_path) == [1]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT])
def test_a_disk_error_names_the_file_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    """A full or broken disk is an error value with a path, not a traceback."""

    def refuse(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(segments_module, "sync_data", refuse)
    writer = SegmentWriter(tmp_path, 1)
    with pytest.raises(DiskError, match=f"seg-000001.jsonl: {os.strerror(number)}; .*nothing is lost") as caught:
        writer.append([entry("j", record(0))])
    assert caught.value.errno == number
    writer.close()
    assert recover(tmp_path) == []


def test_a_disk_that_fills_up_in_the_middle_of_a_write_leaves_nothing_half(tmp_path: Path):
    """A real limit of the kernel (file size) stands for a full disk: a part is written, then it refuses."""
    child = os.fork()
    if child == 0:  # the limit holds for a whole process, so it is set in one of its own
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        writer = write_segment(tmp_path, [0])
        resource.setrlimit(resource.RLIMIT_FSIZE, (lines_path(tmp_path, 1).stat().st_size + 10,) * 2)
        try:
            writer.append([entry("j", record(1))])
        except DiskError as error:
            os._exit(0 if error.errno == errno.EFBIG else 3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lines_path(tmp_path, 1).stat().st_size == len(entry("j", record(0)).line) + 10
    recover(tmp_path)
    assert lines_path(tmp_path, 1).read_bytes() == entry("j", record(0)).line


def test_a_ledger_is_built_anew_from_its_segments(tmp_path: Path):
    """Nothing but segments and carried rows is needed after a crash."""
    ledger = Ledger(tmp_path, 1, [])
    assert ledger.append([entry("j", record(o)) for o in (5, 0)]) == 2
    assert ledger.append([entry("j", record(1, cls=FailureClass.TIMEOUT))]) == 1
    ledger.close()
    (tmp_path / "order").write_bytes(b"nonsense")
    again = Ledger(tmp_path, 1, recover(tmp_path))
    assert (again.new, again.failed, again.end) == (3, {FailureClass.TIMEOUT: 1}, 6)
    assert [o in again for o in range(7)] == [True, True, False, False, False, True, False]
    assert again.line_bytes == lines_path(tmp_path, 1).stat().st_size
    again.close()
    again.close()


def test_the_first_line_of_an_ordinal_stays(tmp_path: Path):
    """A store that lost its latest changes makes a request run again: its second answer changes nothing."""
    ledger = Ledger(tmp_path, 1, [])
    assert ledger.append([entry("j", record(0)), entry("j", record(0, cls=FailureClass.TIMEOUT))]) == 1
    assert ledger.append([entry("j", record(0, cls=FailureClass.TIMEOUT))]) == 0
    assert (ledger.new, ledger.new_failed) == (1, 0)
    ledger.close()
    assert lines_path(tmp_path, 1).read_bytes() == entry("j", record(0)).line


def test_earlier_generations_are_not_part_of_a_ledger(tmp_path: Path):
    """Their ordinals speak of another INPUT."""
    write_segment(tmp_path, [0, 1]).close()
    ledger = Ledger(tmp_path, 2, [1])
    assert ledger.new == 0
    ledger.append([entry("k", record(0))])
    ledger.close()
    assert recover(tmp_path) == [1, 2]


def test_a_walk_stops_at_the_first_gap_and_goes_on_when_it_is_filled(tmp_path: Path):
    """A straggler holds back those behind it, and only the giving out."""
    ledger = Ledger(tmp_path, 1, [])
    ledger.append([entry("j", record(o)) for o in (0, 1, 3, 4)])
    walk = Walk(ledger)
    assert [p.ordinal for p in walk.take()] == [0, 1]
    assert walk.take() == []
    ledger.append([entry("j", record(2))])
    assert [p.ordinal for p in walk.take(2)] == [2, 3]
    assert [p.ordinal for p in walk.take()] == [4]
    ledger.close()


def test_a_walk_over_gaps_gives_everything_there_is(tmp_path: Path):
    """At the end of a cancelled job what never ran is passed over, however much of it there is."""
    ledger = Ledger(tmp_path, 1, [])
    ledger.append([entry("j", record(o)) for o in (2, 50_000)])
    walk, found = Walk(ledger), []
    while places := walk.take(1000, gaps=True):
        found += [p.ordinal for p in places]
    assert found == [2, 50_000]
    ledger.close()


def test_carried_and_own_lines_are_walked_together(tmp_path: Path):
    """The feeder's process appends rows while the collector's follows them."""
    writer = CarriedWriter(tmp_path / "carried-000001")
    ledger = Ledger(tmp_path, 1, [])
    ledger.append([entry("j", record(1))])
    walk = Walk(ledger)
    writer.add(Place(0, 7, 1, 10, 20, 0))
    assert walk.take() == []
    writer.flush()
    assert [(p.ordinal, p.written, p.source) for p in walk.take()] == [(0, 7, 0), (1, 1, 1)]
    writer.add(Place(2, 9, 2, 30, 20, 0))
    writer.close()
    assert [p.ordinal for p in walk.take()] == [2]
    assert ledger.end == 3
    ledger.close()


def test_many_carried_rows_are_followed_without_reading_them_all_at_once(tmp_path: Path):
    """More rows than fit one window, with own lines between them."""
    writer = CarriedWriter(tmp_path / "carried-000001")
    writer.rewind(0)
    for ordinal in range(10_000):
        if ordinal % 3:
            writer.add(Place(ordinal, ordinal, ordinal, 0, 1, 0))
    writer.flush()
    ledger = Ledger(tmp_path, 1, [])
    ledger.append([entry("j", record(o)) for o in range(0, 10_000, 3)])
    walk, found = Walk(ledger), []
    while places := walk.take(700):
        found += [p.ordinal for p in places]
    assert found == list(range(10_000))
    ledger.close()
    writer.close()


def test_carried_rows_are_cut_at_the_feeders_cursor(tmp_path: Path):
    """Rows behind the cursor are taken back, half ones too; rows that should be there and are not are an error."""
    path = tmp_path / "carried-000001"
    writer = CarriedWriter(path)
    for ordinal in range(3):
        writer.add(Place(ordinal, ordinal, ordinal, 0, 1, 0))
    writer.flush()
    writer.close()
    with path.open("ab") as file:
        file.write(b"torn")
    reader = CarriedReader(path)
    assert reader.count() == 3
    writer = CarriedWriter(path)
    writer.rewind(2)
    assert [p.ordinal for p in reader.rows(0)] == [0, 1]
    with pytest.raises(DiskError, match="should hold 5 rows"):
        writer.rewind(5)
    writer.close()
    reader.close()


def test_a_carried_file_that_is_not_there_yet_is_empty(tmp_path: Path):
    """The collector may start before the feeder."""
    reader = CarriedReader(tmp_path / "carried-000001")
    assert (reader.count(), reader.rows(0)) == (0, [])
    reader.close()


def test_the_order_map_takes_any_order_of_batches(tmp_path: Path):
    """Neighbours share a write; the rest is sparse."""
    order = OrderMap(tmp_path / "order")
    order.put([(4, 40, 4, 1), (5, 50, 5, 1), (9, 90, 9, 1)])
    order.put([(0, 1, 1, 2)])
    assert order.window(3, 3) == [(0, 0, 0), (40, 4, 1), (50, 5, 1)]
    assert order.window(8, 10) == [(0, 0, 0), (90, 9, 1)]
    assert order.window(100, 10) == []
    assert (order.end, order.present.count) == (10, 4)
    order.close()


def test_a_bitmap_knows_what_is_missing_and_what_others_have():
    """The proof rests on it, so its edges are tested: byte borders, numbers beyond, repeated ones."""
    some, other = Bitmap(), Bitmap()
    assert all(some.add(n) for n in (0, 7, 8, 40_000))
    assert not some.add(8)
    assert (some.count, 7 in some, 9 in some, 10**9 in some) == (4, True, False, False)
    assert some.missing(10, 3) == [1, 2, 3]
    assert some.missing(1, 3) == []
    other.add(7)
    assert some.only_here(other, 10) == [0, 8, 40_000]
    assert some.only_here(other, 1) == [0]
    copy = some.copy()
    copy.add(1)
    assert (1 in some, 1 in copy, copy.count) == (False, True, 5)
