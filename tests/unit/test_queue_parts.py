"""The parts of the queue that need no store: scripts as text, arguments of a commit, the watch on the version, URLs."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import pytest
from redis.asyncio.connection import UnixDomainSocketConnection
from redis.exceptions import DataError
from tests.support.queues import record_of

from gristmill.contract.keys import JobKeys
from gristmill.queue import StoreError, loader, working
from gristmill.queue.connection import PromptUnixConnection
from gristmill.queue.handle import Handle
from gristmill.queue.replies import Finished, Returned
from gristmill.queue.store import connect, shown

NAMES = ["ack", "claim", "close", "commit", "create", "ctl", "free", "lease", "look", "reap", "renew", "seal", "touch"]


def test_every_script_is_there_with_its_contract():
    """Each begins with its flags and says what it takes, gives and leaves; only `seal` may be refused for memory."""
    scripts = loader.scripts()
    assert sorted(scripts) == NAMES
    for name, script in scripts.items():
        flags = {"seal": "#!lua\n", "look": "#!lua flags=no-writes\n"}.get(name, "#!lua flags=allow-oom\n")
        assert script.text.startswith(flags + "--[[ ")
        head = script.text.partition("]]")[0]
        for word in ("KEYS", "gives") if name == "look" else ("KEYS", "ARGV", "gives", "crash"):
            assert re.search(rf"^{word}\b", head, re.MULTILINE), f"{name} does not say its {word}"
        assert script.sha == hashlib.sha1(script.text.encode()).hexdigest()
        assert "@include" not in script.text


def test_scripts_only_touch_keys_that_were_passed():
    """No key name is made inside a script: so a Cluster can route it, and an ACL can bound it."""
    for name, script in loader.scripts().items():
        assert "gm:" not in script.text.partition("]]")[2], name


def test_a_commit_names_each_block_and_run_once():
    """Records are grouped by block and run, whatever their order; every key is passed and found by its place."""
    keys = JobKeys("j")
    finished = [Finished(i, run, b"r%d" % i) for i, run in ((0, 0), (9, 1), (1, 0), (7, 1), (8, 1))]
    returned = [Returned(20, 77, 500, 2), Returned(21, 78, 0, False), Returned(22, 79, 0, 0, missing=True)]
    names, args = working.encode_commit(keys, 8, "tok", finished, returned)
    assert names[:8] == [
        keys.meta,
        keys.done,
        keys.held("tok"),
        keys.waiting,
        keys.suspects,
        keys.history,
        keys.unacked,
        keys.failures,
    ]
    assert names[8:] == [keys.block(0), keys.payload(0), keys.block(1), keys.payload(1)]
    assert args[:2] == ["tok", 3]
    assert args[2:10] == [0, 9, 10, 2, 0, b"r0", 1, b"r1"]
    assert args[10:18] == [1, 11, 12, 2, 9, b"r9", 8, b"r8"]
    assert args[18:24] == [0, 9, 12, 1, 7, b"r7"]
    assert args[24:] == [3, 20, 77, 500, 2, 21, 78, 0, 0, 22, 79, 0, "m"]


@pytest.mark.parametrize(("records", "returns"), [(0, 0), (1, 0), (0, 1), (900, 900), (901, 0), (2000, 1801)])
def test_batches_hold_everything_once_and_never_too_much(records: int, returns: int):
    """No call is larger than the script takes, and there is at least one."""
    finished = [Finished(i, 0, b"r") for i in range(records)]
    returned = [Returned(i, 1, 0, 0) for i in range(returns)]
    batches = list(working._batches(finished, returned))
    assert [f for some, _ in batches for f in some] == finished
    assert [r for _, back in batches for r in back] == returned
    assert all(len(some) <= 900 and len(back) <= 900 for some, back in batches)
    assert batches


def test_batches_are_bounded_in_bytes():
    """Large answers go in several calls, one that is larger than a batch in a call of its own."""
    sizes = [9, 9, 1, 30, 1, 1]
    finished = [Finished(i, 0, bytes(mb << 20)) for i, mb in enumerate(sizes)]
    batches = [[f.index for f in some] for some, _ in working._batches(finished, [])]
    assert batches == [[0], [1, 2], [3], [4, 5]]


def test_a_version_below_what_was_known_at_sending_is_a_lost_suffix():
    """And only that: replies of calls that overlapped may come in any order."""
    handle = Handle(None, JobKeys("j"), "e", 8)
    handle.see(0, 10)
    handle.see(5, 9)
    assert (handle.version, handle.rolled_back) == (10, False)
    handle.see(10, 9)
    assert (handle.version, handle.rolled_back) == (9, True)
    handle.rolled_back = False
    handle.see(9, 9)
    handle.see(9, 12)
    assert (handle.version, handle.rolled_back) == (12, False)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://user:pa%20ss@host:6379/3?password=x", "redis://host:6379/3"),
        ("rediss://host", "rediss://host"),
        ("unix:///run/s.sock?password=x", "unix:///run/s.sock"),
        ("secret", "(not a URL)"),
        ("redis://[::1:6379", "(not a URL)"),
        ("redis://host:port", "(not a URL)"),
    ],
)
def test_a_url_is_shown_without_secrets(url: str, expected: str):
    """User, password and query are never shown; what is no URL may be a password."""
    assert shown(url) == expected


@pytest.mark.parametrize("url", ["http://user:secret@host", "secret", "redis://host:port"])
def test_a_url_that_cannot_be_used_is_refused_without_showing_it(url: str):
    """One sentence with the three forms that work."""
    with pytest.raises(StoreError, match="write redis://HOST:PORT") as caught:
        connect(url)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_records_of_the_test_kit_are_real():
    """So that what the scripts count in these tests is what they count in life."""
    assert record_of(1)[:2] == b"\x01K"


def test_commands_are_packed_as_the_library_does():
    """Our quicker packing sends the same bytes, whatever the types and sizes, alone and in a pipeline."""
    ours, theirs = PromptUnixConnection(path="/none"), UnixDomainSocketConnection(path="/none")
    commands: list[tuple[Any, ...]] = [
        ("PING",),
        ("CONFIG GET", "maxmemory"),
        (b"HSET", "key", b"field", b"", "f\u00fc", "v\u00fc", 7, -1, b"x" * 100_000, memoryview(b"view"), 1.5),
    ]
    for command in commands:
        assert b"".join(ours.pack_command(*command)) == b"".join(theirs.pack_command(*command))
    assert b"".join(ours.pack_commands(commands)) == b"".join(theirs.pack_commands(commands))
    with pytest.raises(DataError):
        ours.pack_command("SET", "key", None)
