"""What the runbook and the guide tell a person to do can be done."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from gristmill.cli import group as producer
from gristmill.queue.waiting import Reason
from gristmilld.cli import main as gristmilld

ROOT = Path(__file__).resolve().parents[2]
RUNBOOK = (ROOT / "ops/runbook.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (Gristmill\w+)\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
COMPOSE_VERBS = {"build", "down", "exec", "logs", "ps", "restart", "stop", "up"}
COMMANDS = {"producer": producer, "gristmilld": gristmilld}


def commands() -> list[list[str]]:
    """Each line of the code blocks of both documents, as words."""
    blocks = re.findall(r"^```\n(.*?)^```", RUNBOOK + "\n" + GUIDE, re.MULTILINE | re.DOTALL)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines() if line.strip()]


def test_each_alert_has_a_section() -> None:
    """As many sections as alerts, of the same names; each says what it means, how to look, what to do."""
    rules = yaml.safe_load((ROOT / "ops/prometheus/rules/gristmill.yml").read_text("utf-8"))
    assert set(SECTIONS) == {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    for name, text in SECTIONS.items():
        assert re.findall(r"^\*\*(\w+)\*\*", text, re.MULTILINE) == ["Means", "Look", "Do"], name


def test_links_within_the_runbook_lead_somewhere() -> None:
    """A section that is pointed at is there."""
    assert set(re.findall(r"\]\(#(\w+)\)", RUNBOOK)) <= {name.lower() for name in SECTIONS}
    files = re.findall(r"\]\((?!https?:|#)([^)]+)\)", RUNBOOK)
    assert files
    assert all((ROOT / "ops" / file).exists() for file in files)


def test_each_reason_of_a_stalled_job_is_explained() -> None:
    """Whatever the metric can name has a line in the section of its alert; a paused job has another alert."""
    explained = set(re.findall(r"`([a-z_]+)`", SECTIONS["GristmillNoProgress"]))
    assert {reason.value for reason in Reason} - explained == {Reason.PERSON.value}


OURS = [words[at:] for words in commands() for at, word in enumerate(words[:-1]) if word in COMMANDS]


@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_our_commands_are_as_written(words: list[str]) -> None:
    """The verb exists and knows each option."""
    group = COMMANDS[words[0]]
    assert isinstance(group, click.Group)
    verb = group.get_command(click.Context(group), words[1])
    assert verb is not None
    known = {option for param in verb.params for option in param.opts}
    assert {word for word in words[2:] if word.startswith("-")} <= known


@pytest.mark.parametrize("words", [w for w in commands() if w[:2] == ["docker", "compose"]], ids=" ".join)
def test_compose_commands_name_what_there_is(words: list[str]) -> None:
    """A verb of compose that we mean, and services of the file."""
    rest = [word for at, word in enumerate(words[2:], 2) if words[at - 1] not in {"--profile", "--since", "--tail"}]
    verb, *names = [word for word in rest if not word.startswith("-")]
    assert verb in COMPOSE_VERBS
    named = names[:1] if verb == "exec" else [name for name in names if "=" not in name]
    assert set(named) <= set(SERVICES)


def test_files_that_are_named_are_there() -> None:
    """Paths of this checkout in the guide."""
    named = set(re.findall(r"\b((?:ops|examples|docs)/[\w./-]*\w)", GUIDE + RUNBOOK))
    assert named
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_ports_are_those_of_the_compose_file() -> None:
    """Each port of the loopback that the documents name is one that is published by default."""
    text = (ROOT / "docker-compose.yml").read_text("utf-8")
    published = set(re.findall(r"127\.0\.0\.1:\$\{\w+:-(\d+)\}", text))
    assert set(re.findall(r"(?:http://|@|redis://)127\.0\.0\.1:(\d+)", GUIDE + RUNBOOK)) <= published | {"9464"}
