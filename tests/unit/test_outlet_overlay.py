"""Laying a retry's answers over OUT: each in its place, all or nothing, and twice is once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.contract.failure import FailureClass
from gristmill.contract.record import Detail, Record
from gristmill.outlet.errors import OutRefusedError, ProofError
from gristmill.outlet.failures import failures
from gristmill.outlet.lines import encode_line, parse_line, take_place
from gristmill.outlet.overlay import overlay
from gristmill.queue.retrying import ones


def line(ordinal: int, *, job: str = "j-1", cls: FailureClass | None = None, mark: int = 0, said: str = "x") -> bytes:
    body = b'{"choices":[{"message":{"content":"%b"}}]}' % said.encode()
    detail = Detail(ordinal, f"c{ordinal}", bytes([mark] * 16), 200, body=body, message="no" if cls else None)
    return encode_line(job, Record(cls, 1, 2, 3, detail))


def make_out(folder: Path, n: int = 6, failed: tuple[int, ...] = (1, 4)) -> Path:
    out = folder / "out.jsonl"
    out.write_bytes(b"".join(line(i, cls=FailureClass.TRUNCATED if i in failed else None) for i in range(n)))
    return out


def test_an_answer_takes_the_place_of_its_failure(tmp_path: Path):
    """Index and fingerprint stay those of the line that is replaced; all other lines stay byte for byte."""
    out = make_out(tmp_path)
    before = out.read_bytes().splitlines()
    answer = line(0, job="j-1.rabc", mark=7, said=',\\"gristmill\\":{\\"index\\":9')
    audit = overlay(out, [(4, answer)], tmp_path / "new", 6)
    after = out.read_bytes().splitlines()
    assert [i for i in range(6) if after[i] != before[i]] == [4]
    new = parse_line(after[4])
    assert (new.id, new.gristmill.index, new.gristmill.fingerprint, new.ok) == ("j-1.rabc-0", 4, "00" * 16, True)
    assert (audit.ok, audit.failed) == (5, 1)
    assert failures(out) == {1: "truncated"}


def test_twice_is_once(tmp_path: Path):
    """A command that was killed after the rename does the same again."""
    out, answers = make_out(tmp_path), [(1, line(0, job="j-1.r1")), (4, line(1, job="j-1.r1"))]
    overlay(out, answers, tmp_path / "new", 6)
    once = out.read_bytes()
    overlay(out, answers, tmp_path / "new", 6)
    assert out.read_bytes() == once


def test_an_answer_without_a_failure_in_out_is_put_in_order(tmp_path: Path):
    """OUT of a job that ended early may lack the line; the answer comes where it belongs."""
    out = tmp_path / "out.jsonl"
    out.write_bytes(line(0) + line(3))
    overlay(out, [(2, line(0, job="j-1.r1")), (5, line(1, job="j-1.r1"))], tmp_path / "new", 6)
    assert [parse_line(x).gristmill.index for x in out.read_bytes().splitlines()] == [0, 2, 3, 5]


def test_a_file_that_would_be_spoilt_is_left_alone(tmp_path: Path):
    """An answer out of order, or an OUT with a foreign line, changes nothing."""
    out = make_out(tmp_path)
    before = out.read_bytes()
    with pytest.raises(ProofError):
        overlay(out, [(4, line(0)), (1, line(1))], tmp_path / "new", 6)
    assert out.read_bytes() == before
    out.write_bytes(before + b'{"a":1}\n')
    with pytest.raises((OutRefusedError, ProofError)):
        overlay(out, [(4, line(0))], tmp_path / "new", 6)
    assert out.read_bytes() == before + b'{"a":1}\n'


def test_take_place_touches_only_what_gristmill_says(tmp_path: Path):
    """A body that quotes its own fingerprint keeps it."""
    quoted = '\\"fingerprint\\":\\"' + "07" * 16 + '\\"'
    fresh = line(0, mark=7, said=quoted)
    old = parse_line(line(3)).gristmill
    new = take_place(fresh, old)
    assert quoted.encode() in new
    assert parse_line(new).gristmill.fingerprint == "00" * 16


@given(st.sets(st.integers(0, 300)))
def test_bits_are_counted_as_the_store_counts_them(ordinals: set[int]):
    """`ones` gives back what SETBIT was told."""
    bits = bytearray(40)
    for o in ordinals:
        bits[o >> 3] |= 0x80 >> (o & 7)
    assert list(ones(bytes(bits))) == sorted(ordinals)
