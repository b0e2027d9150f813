"""Log lines, for people and for machines."""

from __future__ import annotations

import json
import logging

import pytest

from gristmilld import logs
from gristmilld.supervisor.limits import SPARE_FILES, explain_misfit


@pytest.fixture
def log():
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield logging.getLogger("gristmilld.test")
    root.handlers[:], level = before
    root.setLevel(level)


def test_json_lines_hold_message_process_and_fields(log, capsys):
    """One object a line; fields stand beside the message."""
    logs.set_up("worker-3", log_format="json")
    log.info("done with %d", 5, extra=logs.fields(job="j1", rows=5))
    event = json.loads(capsys.readouterr().err)
    assert event["time"].endswith("Z")
    assert {k: event[k] for k in ("level", "process", "message", "job", "rows")} == {
        "level": "info", "process": "worker-3", "message": "done with 5", "job": "j1", "rows": 5,
    }  # fmt: skip


def test_text_lines_hold_the_same_on_one_line(log, capsys):
    """Whatever a message holds, it is one line: nobody can forge another."""
    logs.set_up("worker-3")
    log.info("first\nsecond", extra=logs.fields(job="j1"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("info worker-3 first\\nsecond job=j1")


def test_an_exception_is_its_type_and_text_and_a_traceback_only_at_debug(log, capsys):
    """Lines of a traceback show what was in hand."""

    def fail() -> None:
        try:
            raise ValueError("broken")
        except ValueError:
            log.exception("it failed")

    logs.set_up("control")
    fail()
    assert capsys.readouterr().err.endswith("error control it failed: ValueError: broken\n")
    logs.set_up("control", level="debug")
    fail()
    assert "Traceback" in capsys.readouterr().err


def test_levels_hold_for_us_and_libraries_only_warn(log, capsys):
    """Their chatter is not ours."""
    logs.set_up("control", level="debug")
    log.debug("ours")
    logging.getLogger("asyncio").info("theirs")
    assert capsys.readouterr().err.count("\n") == 1


def test_a_concurrency_that_cannot_fit_is_explained_with_the_number_that_can():
    """The limit is named, and what to do."""
    assert explain_misfit(100, 100 + SPARE_FILES) is None
    text = explain_misfit(2000, 1024)
    assert text is not None
    assert "open files" in text
    assert f"--concurrency {1024 - SPARE_FILES} or less" in text
