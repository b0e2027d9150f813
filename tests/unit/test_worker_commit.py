"""The worker's commit buffer: what is in it goes back once, in order, and can be sent again."""

from __future__ import annotations

from tests.support.clock import ManualClock

from gristmill.queue.replies import Finished, Returned
from gristmilld.worker.commit import BATCH, FLUSH_AFTER_S, MAX_BATCH, MAX_BATCH_BYTES, CommitBuffer


def finished(index: int, size: int = 10) -> Finished:
    return Finished(index, 0, b"r" * size)


def test_a_result_waits_for_others_but_not_for_long() -> None:
    """A batch is due when it is full, or when its oldest result has waited its time."""
    clock = ManualClock()
    buffer = CommitBuffer(clock)
    assert not buffer.due()
    buffer.finish(finished(0))
    assert not buffer.due()
    clock.advance(FLUSH_AFTER_S)
    assert buffer.due()
    buffer.drop(buffer.peek())
    assert not buffer.due()
    for i in range(BATCH):
        buffer.finish(finished(i))
    assert buffer.due()


def test_an_unanswered_batch_is_sent_again_as_it_was() -> None:
    """`peek` gives the same batch until it is dropped, also when more has joined meanwhile behind it."""
    buffer = CommitBuffer(ManualClock())
    for i in range(MAX_BATCH):
        buffer.finish(finished(i))
    buffer.give_back(Returned(5000, 1, 0, charged=0))
    first = buffer.peek()
    buffer.finish(finished(9999))
    assert buffer.peek() == first
    buffer.drop(first)
    assert [f.index for f in buffer.peek().finished] == [9999]
    assert not buffer.peek().returned


def test_a_batch_is_bounded_in_bytes_but_never_empty() -> None:
    """One huge record still goes; a second huge one waits for the next batch."""
    buffer = CommitBuffer(ManualClock())
    buffer.finish(finished(0, MAX_BATCH_BYTES + 1))
    buffer.finish(finished(1, MAX_BATCH_BYTES + 1))
    assert [f.index for f in buffer.peek().finished] == [0]


def test_after_a_rollback_recent_records_go_again_before_newer_ones() -> None:
    """What the store had taken is sent once more, and only as much as the memory's bytes allow."""
    buffer = CommitBuffer(ManualClock(), recent_bytes=25)
    for i in range(4):
        buffer.finish(finished(i))
    buffer.drop(buffer.peek())
    buffer.finish(finished(7))
    buffer.replay()
    assert [f.index for f in buffer.peek().finished] == [2, 3, 7]


def test_a_replay_is_not_doubled_by_a_second_rollback() -> None:
    """A record is in the buffer or among the recent ones, never in both."""
    buffer = CommitBuffer(ManualClock())
    buffer.finish(finished(1))
    buffer.drop(buffer.peek())
    buffer.replay()
    buffer.replay()
    assert [f.index for f in buffer.peek().finished] == [1]
