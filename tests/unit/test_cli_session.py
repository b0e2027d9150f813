"""What is settled before a command works: endpoints, key, model, and what may not be shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from tests.support.cli import use_bare_environment

from gristmill.cli import _children, _ending, _making, _session
from gristmill.cli._errors import BadUsageError, NeedsPersonError
from gristmill.cli._options import JobOptions
from gristmill.cli._units import Deadline
from gristmill.intake.options import EncodeOptions
from gristmill.preflight import Unusable, Usable


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    use_bare_environment(monkeypatch)


def test_endpoints_are_normalised_and_named_once():
    """Several spellings of one endpoint are one endpoint."""
    assert _session.base_urls(("http://h:8000", "http://h:8000/v1/", "http://g/v1")) == [
        "http://h:8000/v1",
        "http://g/v1",
    ]


def test_option_wins_over_environment(monkeypatch: pytest.MonkeyPatch):
    """-e is what counts; else OPENAI_BASE_URL, else the older OPENAI_API_BASE."""
    monkeypatch.setenv("OPENAI_API_BASE", "http://old")
    assert _session.base_urls(()) == ["http://old/v1"]
    monkeypatch.setenv("OPENAI_BASE_URL", "http://new")
    assert _session.base_urls(()) == ["http://new/v1"]
    assert _session.base_urls(("http://given",)) == ["http://given/v1"]


def test_malformed_endpoint_is_a_usage_error():
    """A URL with a password is refused without showing it."""
    with pytest.raises(BadUsageError) as caught:
        _session.base_urls(("http://u:secret@h/v1",))
    assert "secret" not in caught.value.message


def test_key_comes_from_the_environment_alone(monkeypatch: pytest.MonkeyPatch):
    """Blanks around it are cut; a key that no header takes is refused unseen."""
    assert _session.api_key() is None
    monkeypatch.setenv("OPENAI_API_KEY", " sk-1 \n")
    assert _session.api_key() == "sk-1"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\nsk-other")
    with pytest.raises(BadUsageError) as caught:
        _session.api_key()
    assert "secret" not in caught.value.message


def test_store_shows_no_password():
    """Neither its identity, which is kept on disk, nor its repr."""
    store = _session.Store(url="redis://user:secret@h:6379/0", redis=None)
    assert store.identity == "redis://h:6379/0"
    assert "secret" not in repr(store)


def test_command_to_repeat_masks_passwords(monkeypatch: pytest.MonkeyPatch):
    """The command that resumes is shown as typed, but for the password of a URL."""
    monkeypatch.setattr(sys, "argv", ["producer", "run", "my file", "--redis", "redis://u:secret@h"])
    assert _ending.same_command() == "producer run 'my file' --redis 'redis://u:***@h'"


def test_missing_daemon_is_the_pip_line(monkeypatch: pytest.MonkeyPatch):
    """Without the daemon's libraries `run` says what to install."""
    monkeypatch.setattr(_children.importlib.util, "find_spec", lambda name: None if name == "aiohttp" else object())
    with pytest.raises(BadUsageError, match=r"pip install 'gristmill\[daemon\]'"):
        _children.require_daemon()


NAMELESS, NAMED = '{"prompt":"x"}\n', '{"prompt":"x","model":"m1"}\n'
ONE, TWO, NONE = Usable("u", ["a"]), Usable("u", ["a", "b"]), Usable("u", None)


@pytest.mark.parametrize(
    ("text", "verdicts", "default"),
    [
        (NAMELESS, [ONE], "a"),
        (NAMELESS, [ONE, Unusable("v", "down", "wait")], "a"),
        (NAMED, [ONE], "a"),
        (NAMED, [TWO], None),
        (NAMED, [NONE], None),
        ("nonsense\n" + NAMED, [TWO], None),
        ("", [NONE], None),
    ],
)
def test_model_of_lines_that_name_none(tmp_path: Path, text: str, verdicts: list[Any], default: str | None):
    """The single served model; none is needed where the lines have their own."""
    path = tmp_path / "in.jsonl"
    path.write_text(text)
    assert _making.with_model(EncodeOptions(), path, verdicts).default_model == default


@pytest.mark.parametrize(
    ("verdicts", "error", "expected"),
    [
        ([TWO], BadUsageError, "-m MODEL: a, b"),
        ([NONE], NeedsPersonError, "check the base URL; .* -m MODEL"),
        ([Usable("u", [])], BadUsageError, "the endpoint lists none: give it with -m MODEL"),
        ([], BadUsageError, "give it with -m MODEL, or a server to ask with -e URL"),
    ],
)
def test_no_single_model_is_an_error(tmp_path: Path, verdicts: list[Any], error: type[Exception], expected: str):
    """The sentence lists the models, where the endpoint does; where it has no list the URL may be wrong."""
    path = tmp_path / "in.jsonl"
    path.write_text(NAMELESS)
    with pytest.raises(error, match=expected):
        _making.with_model(EncodeOptions(), path, verdicts)
    for options in (EncodeOptions(model="m"), EncodeOptions(set={"model": "m"})):
        assert _making.with_model(options, path, verdicts) == options


def test_options_reach_manifest_and_encoding(tmp_path: Path):
    """What is typed is what the job gets."""
    from gristmill.cli._options import job_options

    seen: list[JobOptions] = []

    @click.command()
    @job_options
    def probe(job: JobOptions) -> None:
        seen.append(job)

    path = tmp_path / "in.jsonl"
    path.write_text(NAMED)
    argv = [str(path), "-m", "m", "--set", "temperature=0", "--set", "stop=x", "--system", "s", "--max-failures", "5%"]
    argv += ["--payload-mark", "64MB", "--timeout-total", "10m", "--max-attempts", "7", "--max-pixels", "1000"]
    argv += ["--deadline", "90s", "--request-deadline", "1.5m", "--max-in-flight", "9"]
    argv += ["--priority", "-2", "--weight", "3"]
    probe.main(argv, standalone_mode=False)
    (job,) = seen
    options = _making.encode_options(job, inline=True)
    assert (options.model, options.set, options.system) == ("m", {"temperature": 0, "stop": "x"}, "s")
    assert options.image.max_pixels == 1000
    source = _making.open_input(job.input, tmp_path).source
    manifest = _making.make_manifest(job, options, source, digest="d", endpoints=[], pool=None, now_ms=1_000)
    assert manifest.pool == manifest.job
    assert manifest.name == "in.jsonl"
    assert (manifest.max_failures, manifest.max_failures_percent, manifest.max_attempts) == (0, 5.0, 7)
    assert (manifest.payload_mark_bytes, manifest.timeouts.total_s) == (64_000_000, 600)
    assert (manifest.deadline_ms, manifest.request_deadline_ms, manifest.max_in_flight) == (91_000, 90_000, 9)
    assert (manifest.priority, manifest.weight, manifest.keep_ms) == (-2, 3, 7 * 86_400_000)
    past = msgspec.structs.replace(job, deadline=Deadline(None, 999))
    with pytest.raises(BadUsageError, match="--deadline lies in the past"):
        _making.make_manifest(past, options, source, digest="d", endpoints=[], pool=None, now_ms=1_000)
