"""The bytes of every format version stay readable: golden files written once, never changed.

A changed format gets a new version and new files beside these. ``GRISTMILL_WRITE_GOLDEN=1`` writes missing files.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from gristmill.contract import frame, manifest, record
from gristmill.contract.failure import FailureClass
from gristmill.contract.frame import FormatError

GOLDEN = Path(__file__).parent / "golden"

REQUEST = frame.Request(
    ordinal=1_000_000,
    custom_id="row-7 ü",
    fingerprint=bytes(range(16)),
    path="/chat/completions",
    pieces=[b'{"a":"', b'","b":"', b'"}'],
    images=[
        frame.Image(digest="0" * 32, size=5),
        frame.Image(
            digest="ab" * 16,
            size=7,
            path="/pictures/ä.jpg",
            mtime_ns=1_700_000_000_123_456_789,
            ctime_ns=1_700_000_001_000_000_000,
            inode=77,
        ),
    ],
    wants_json=True,
    line=1_000_001,
)
REFUSAL = frame.Refusal(
    ordinal=3,
    custom_id=None,
    fingerprint=b"\xff" * 16,
    cls=FailureClass.BAD_INPUT,
    message="line 4 is not a JSON object: write one object a line",
    line=4,
)
OK = record.Record(
    cls=None,
    attempts=2,
    prompt_tokens=300,
    completion_tokens=70_000,
    detail=record.Detail(
        ordinal=5,
        custom_id="c",
        fingerprint=bytes(16),
        status_code=200,
        request_id="req-1",
        body=b'{"choices":[]}',
        flags=["truncated"],
        latency_ms=1234,
        endpoint="main",
    ),
)
FAILED = record.Record(
    cls=FailureClass.CONTEXT_LENGTH,
    attempts=1,
    prompt_tokens=0,
    completion_tokens=0,
    detail=record.Detail(
        ordinal=6, custom_id=None, fingerprint=b"\x01" * 16, status_code=400, body=b"{}", message="too long"
    ),
)
MANIFEST = manifest.Manifest(
    job="job-1",
    epoch="0123456789abcdef",
    name="nightly",
    created_at_ms=1_700_000_000_000,
    pool="p",
    endpoints=["main", "http://127.0.0.1:8000/v1"],
    model="m",
    source=manifest.Source(path="/in.jsonl", size=10, mtime_ns=11, head_sha256="cd" * 32),
    input_digest="ef" * 16,
    priority=2,
    weight=3,
    max_attempts=7,
    first_alone=0,
    timeouts=manifest.Timeouts(connect_s=1.0, first_byte_s=2.0, idle_s=3.0, total_s=4.5),
    on_truncated="fail",
    max_failures=8,
    max_failures_percent=2.5,
    max_in_flight=9,
    payload_mark_bytes=1000,
    results_mark_bytes=2000,
    block_size=64,
    deadline_ms=1_800_000_000_000,
    request_deadline_ms=60_000,
    keep_ms=86_400_000,
    max_backoff_s=3.0,
    recipe={"limit": 5, "options": {"system": "Be brief."}},
    parent="job-0",
    wishes=manifest.Wishes(detached=True, output="/out.jsonl", notify="https://h/x"),
)

CASES = {
    "request.v2.frame": (REQUEST, frame.encode, frame.decode),
    "refusal.v2.frame": (REFUSAL, frame.encode, frame.decode),
    "ok.v1.record": (OK, record.encode, record.decode),
    "failed.v1.record": (FAILED, record.encode, record.decode),
    "manifest.v2.json": (MANIFEST, manifest.encode, manifest.decode),
}


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_of_the_golden_file(name: str):
    """Encoding gives the same bytes as ever, and the old bytes give the same value."""
    value, encode, decode = CASES[name]
    path = GOLDEN / name
    if not path.exists() and os.environ.get("GRISTMILL_WRITE_GOLDEN"):
        path.write_bytes(encode(value))
    golden = path.read_bytes()
    assert encode(value) == golden
    assert decode(golden) == value


@pytest.mark.parametrize("name", [n for n in CASES if not n.endswith(".json")])
def test_another_version_is_refused_by_number(name: str):
    """The first byte is the version; one that is not ours is named, not guessed at."""
    _, _, decode = CASES[name]
    golden = (GOLDEN / name).read_bytes()
    with pytest.raises(FormatError, match=f"version 09, this program reads {golden[0]}"):
        decode(bytes([9]) + golden[1:])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cut", [0, 1, 5, -1])
def test_damaged_bytes_are_a_format_error(name: str, cut: int):
    """Cut bytes never come back as a value, nor as a foreign exception."""
    _, _, decode = CASES[name]
    with pytest.raises(FormatError):
        decode((GOLDEN / name).read_bytes()[:cut])


def test_a_manifest_of_another_format_is_refused():
    """A job made by a later version is refused with a sentence."""
    data = manifest.encode(msgspec.structs.replace(MANIFEST, format=3))
    with pytest.raises(FormatError, match="manifest format 3, this program reads 2"):
        manifest.decode(data)


def test_the_header_is_what_the_script_reads():
    """The commit script reads status, class, attempts and tokens at these places of a record."""
    data = record.encode(FAILED)
    assert data[:4] == bytes([1, ord("F"), 8, 0])
    data = record.encode(OK)
    assert data[:16] == bytes([1, ord("K"), 0, 0, 0, 0, 0, 2, 0, 0, 1, 44, 0, 1, 17, 112])


def test_header_numbers_stop_at_their_width():
    """A count beyond 32 bits is stored as the largest, not wrapped."""
    huge = msgspec.structs.replace(OK, prompt_tokens=1 << 40)
    assert record.decode(record.encode(huge)).prompt_tokens == (1 << 32) - 1
