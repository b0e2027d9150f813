"""Notices of dead workers survive the control child that they were sent to."""

from __future__ import annotations

import os

import msgspec
import pytest

from gristmilld.control.notices import Notice
from gristmilld.supervisor.outbox import Outbox


class Control:
    """The other ends of an outbox's pipes."""

    def __init__(self, outbox: Outbox) -> None:
        self.notices_fd, notices = os.pipe()
        acks, self.acks_fd = os.pipe()
        outbox.attach(notices, acks)
        os.set_blocking(self.notices_fd, False)

    def read(self) -> list[Notice]:
        data = b""
        while chunk := self._chunk():
            data += chunk
        return [msgspec.json.decode(line, type=Notice) for line in data.splitlines()]

    def _chunk(self) -> bytes:
        try:
            return os.read(self.notices_fd, 1 << 20)
        except BlockingIOError:
            return b""

    def ack(self, *numbers: int) -> None:
        os.write(self.acks_fd, b"".join(b"%d\n" % n for n in numbers))

    def die(self) -> None:
        os.close(self.notices_fd)
        os.close(self.acks_fd)


@pytest.fixture
def outbox():
    box = Outbox()
    yield box
    box.detach()


def test_a_notice_is_sent_at_once_and_kept_until_it_is_acknowledged(outbox):
    """Sending is not enough: only the acknowledgement closes it."""
    control = Control(outbox)
    outbox.add("d.0.0", crashed=True)
    assert control.read() == [Notice(1, "d.0.0", crashed=True)]
    assert len(outbox) == 1
    control.ack(1)
    assert outbox.hear()
    assert len(outbox) == 0
    control.die()


def test_the_next_control_child_gets_every_open_notice_and_no_closed_one(outbox):
    """What the dead child had acknowledged is done; the rest is sent again, with what came meanwhile."""
    first = Control(outbox)
    outbox.add("d.0.0", crashed=True)
    outbox.add("d.1.0", crashed=False)
    first.ack(1)
    assert outbox.hear()
    first.die()
    assert not outbox.hear()
    outbox.detach()
    outbox.add("d.2.0", crashed=True)
    second = Control(outbox)
    assert second.read() == [Notice(2, "d.1.0", crashed=False), Notice(3, "d.2.0", crashed=True)]
    second.die()


def test_a_dead_reader_costs_nothing(outbox):
    """A notice written to a child that is just dying waits for the next one."""
    control = Control(outbox)
    control.die()
    outbox.add("d.0.0", crashed=True)
    second = Control(outbox)
    assert len(second.read()) == 1
    second.die()


def test_a_full_pipe_delays_notices_and_loses_none(outbox):
    """A control child that waits for a store reads nothing for a while; the supervisor never blocks on it."""
    control = Control(outbox)
    for number in range(3000):
        outbox.add(f"d.{number}.0", crashed=True)
    outbox.finish()
    seen: list[Notice] = []
    while len(seen) < 3000:
        seen += _drain(outbox, control)
    assert [n.number for n in seen] == list(range(1, 3001))
    control.die()


def _drain(outbox: Outbox, control: Control) -> list[Notice]:
    data = b""
    while not data.endswith(b"\n") or not data:
        outbox.flush()
        data += control._chunk()
    return [msgspec.json.decode(line, type=Notice) for line in data.splitlines()]


def test_the_stream_ends_when_everything_has_been_sent(outbox):
    """End of file tells the control child that it may leave; notices before it arrive first."""
    control = Control(outbox)
    outbox.add("d.0.0", crashed=False)
    outbox.finish()
    assert len(control.read()) == 1
    assert os.read(control.notices_fd, 1) == b""
    control.die()


def test_a_child_that_starts_after_the_finish_gets_the_rest_and_the_end(outbox):
    """The last control child acts on open notices and leaves."""
    outbox.add("d.0.0", crashed=True)
    outbox.finish()
    control = Control(outbox)
    assert len(control.read()) == 1
    assert os.read(control.notices_fd, 1) == b""
    control.die()
