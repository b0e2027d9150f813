"""Whatever order results come in, wherever a power cut tears the files, however often the work is opened again:
each line of INPUT stands in OUT exactly once, in order, with the answer that was made durable first."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.outlet import append, contents, entry, ordinals, plan_and_begin, record, snapshot

from gristmill.outlet.assemble import Grower, finish
from gristmill.outlet.proof import prove
from gristmill.outlet.workdir import Work

LINES = 12


class PowerCutError(Exception):
    """Stands for the moment at which nothing more reaches the disk."""


class TornDisk:
    """Lets `allowed` bytes through to the segment files, then cuts the power."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed

    def write_all(self, fd: int, data: bytes) -> None:
        part = data[: self._allowed]
        self._allowed -= len(part)
        os.write(fd, part)
        if len(part) < len(data):
            raise PowerCutError


def deliver(work: Work, some: list[int], attempt: int, cut_at: int | None) -> bool:
    """Append answers to `some`, marked with the attempt; False when the power was cut meanwhile."""
    records = [record(o, text=f"request {o}", endpoint=f"try{attempt}") for o in some]
    if cut_at is None:
        append(work, records)
        return True
    with mock.patch("gristmill.outlet.segments.write_all", TornDisk(cut_at).write_all):
        try:
            append(work, records)
        except PowerCutError:
            return False
    return True


STEP = st.tuples(
    st.lists(st.integers(0, LINES - 1), max_size=LINES),
    st.one_of(st.none(), st.integers(0, 6000)),
    st.booleans(),
    st.one_of(st.none(), st.integers(0, 4000)),
)
"""Ordinals that come in; where the power is cut; whether the work is opened again; where OUT is torn meanwhile."""


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEP, max_size=6))
def test_each_line_stands_once_in_order_over_any_crashes(steps: list[Any]):
    """One job, many sessions of its collector; OUT grows beside it."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out"
        work = Work.open(out)
        work.begin("j")
        grower = Grower(work)
        durable: dict[int, str] = {}
        for attempt, (some, cut_at, reopen, tear_at) in enumerate([*steps, (range(LINES), None, False, None)]):
            powered = deliver(work, list(some), attempt, cut_at)
            if powered:
                durable = dict.fromkeys(some, f"try{attempt}") | durable
                grower.step()
            if reopen or not powered:
                grower.close()
                work.close()
                if tear_at is not None:
                    os.truncate(out, min(tear_at, out.stat().st_size))
                work = Work.open(out)
                work.resume()
                grower = Grower(work)
                survivors = {o for o in range(LINES) if o in work.ledger}
                assert durable.keys() <= survivors <= durable.keys() | set(some)
                durable = dict.fromkeys(survivors, f"try{attempt}") | durable
        finish(work, fed=True, grower=grower)
        prove(work, snapshot(n=LINES, done=LINES))
        grower.close()
        work.remove()
        assert out.read_bytes() == b"".join(
            entry("j", record(o, text=f"request {o}", endpoint=durable[o])).line for o in range(LINES)
        )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    runs=st.lists(
        st.tuples(st.lists(st.sampled_from("abcd"), max_size=6), st.integers(0, 6), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
def test_reruns_over_a_changing_input_never_pay_twice_and_never_lose_an_answer(runs: list[Any]):
    """Each run has another INPUT and may stop after some answers; a last one asks for everything."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out"
        paid: dict[str, int] = {}
        for number, (wanted, answers, ends) in enumerate([*runs, (sorted("abcd" * 3), 99, True)]):
            work, missing = plan_and_begin(out, f"j{number}", wanted)
            for text in set(wanted):  # as many are asked for as there are more requests than answers
                asked = sum(wanted[o] == text for o in missing)
                assert asked == max(0, wanted.count(text) - paid.get(text, 0))
            sent = missing[:answers]
            append(work, [record(o, text=wanted[o]) for o in reversed(sent)])
            for o in sent:
                paid[wanted[o]] = paid.get(wanted[o], 0) + 1
            if ends and len(sent) == len(missing):
                finish(work, fed=True)
                prove(work, snapshot(f"j{number}", n=len(missing), done=len(missing)))
                work.remove()
                assert contents(out) == wanted
                assert ordinals(out) == list(range(len(wanted)))
            work.close()
        assert contents(out) == sorted("abcd" * 3)
