"""`gristmilld doctor` finds what was planted: a real store, real endpoints, real files, a real limit."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import environment
from tests.support.standin import StandinProcess
from tests.support.store import StoreProcess

from gristmill.queue.store import connect

SECRETS = ("the-right-key", "a-wrong-key", "hunter2")


def doctor(*words: object, open_files: int = 0) -> subprocess.CompletedProcess[str]:
    """``gristmilld doctor WORDS``, with at most so many open files."""

    def limit() -> None:
        if open_files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

    argv = [sys.executable, "-m", "gristmilld", "doctor", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, env=environment(), preexec_fn=limit, timeout=60)


@pytest.fixture(scope="module")
def standin() -> Iterator[StandinProcess]:
    with StandinProcess() as process:
        process.control(key="the-right-key")
        yield process


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory, standin: StandinProcess) -> dict[str, Any]:
    """What the doctor says of a world in which nearly everything is wrong."""
    folder = tmp_path_factory.mktemp("sick")
    key = folder / "key"
    key.write_text("a-wrong-key")
    key.chmod(0o644)
    store = StoreProcess("--maxmemory", "300mb", "--maxmemory-policy", "allkeys-lru", "--appendonly", "no").start()
    with socket.socket() as taken, socket.socket() as closed:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        closed.bind(("127.0.0.1", 0))  # bound, but not listening: connections are refused
        config = folder / "gristmill.toml"
        config.write_text(
            f"""
            redis = "{store.url}"
            concurrency = 5000
            metrics_port = {taken.getsockname()[1]}
            state_dir = "{folder}"
            allowed_roots = ["/no/such/folder"]
            [endpoints.gone]
            url = "http://127.0.0.1:{closed.getsockname()[1]}"
            [endpoints.keyed]
            url = "{standin.url}"
            key_file = "{key}"
            [endpoints.keyless]
            url = "http://h:1"
            key_env = "NOT_SET"
            """
        )
        folder.chmod(0o755)
        done = doctor("--config", config, "--json", open_files=600)
    store.close()
    assert done.returncode == 2, done.stderr
    said = done.stdout + done.stderr
    assert not any(secret in said for secret in SECRETS)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("level", "check", "words"),
    [
        ("fail", "store eviction", "allkeys-lru"),
        ("warn", "store persistence", "append-only log is off"),
        ("warn", "store memory", "less than one job may take"),
        ("fail", "endpoint gone", "refused the connection"),
        ("fail", "endpoint keyed", "refused the key (401)"),
        ("fail", "settings", "the environment has no NOT_SET"),
        ("fail", "settings", "allowed root /no/such/folder"),
        ("fail", "open files", "a concurrency of 5000"),
        ("fail", "metrics", "is in use"),
        ("warn", "key of keyed", "can be read by everybody"),
        ("warn", "state folder", "others may look into"),
    ],
)
def test_each_planted_fault_is_found_with_its_fix(sick: dict[str, Any], level: str, check: str, words: str):
    """One run finds all of them; each line says what to do."""
    (found,) = [c for c in sick["checks"] if c["check"] == check and words in c["text"]]
    assert found["level"] == level
    assert found["fix"]
    assert sick["worst"] == "fail"


async def test_a_wrong_password_is_found(own_store: StoreProcess, tmp_path: Path, standin: StandinProcess):
    """It is told from a store that is away, and is not repeated."""
    async with connect(own_store.url) as redis:
        await redis.config_set("requirepass", "the-right-one")
    url = own_store.url.replace("unix://", "unix://:hunter2@")
    done = doctor("--redis", url, "-e", standin.url, "--state-dir", tmp_path / "s", "--no-metrics")
    assert done.returncode == 2
    assert "refuses this user" in done.stdout
    assert "fix: give user and password in the URL" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr


def test_a_store_that_is_away_is_found(tmp_path: Path, standin: StandinProcess):
    """Without a traceback, and the other checks are made all the same."""
    done = doctor("--redis", f"unix://{tmp_path}/none", "-e", standin.url, "--state-dir", tmp_path / "s")
    assert done.returncode == 2
    assert "cannot be reached" in done.stdout
    assert "endpoint" in done.stdout
    assert done.stderr == ""


def test_a_healthy_world_is_well(tmp_path: Path, own_store: StoreProcess, standin: StandinProcess):
    """Exit code 0 and no warning; the models that an endpoint serves, and its metrics, are named."""
    key = tmp_path / "key"
    key.write_text("the-right-key")
    key.chmod(0o600)
    config = tmp_path / "g.toml"
    config.write_text(f'[endpoints.near]\nurl = "{standin.url}"\nkey_file = "{key}"\n')
    words = ["--config", config, "--redis", own_store.url, "--state-dir", tmp_path / "s", "--metrics-port", 0]
    done = doctor(*words)
    assert done.returncode == 0, done.stdout
    assert "serves standin; metrics (vllm) at http://" in done.stdout
    assert "all is well" in done.stdout
    assert "\x1b" not in done.stdout
    key.chmod(0o640)
    warned = doctor(*words)
    assert warned.returncode == 1
    assert f"fix: chmod 600 {key}" in warned.stdout


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, own_store: StoreProcess):
    """A broken configuration is told, and nothing is guessed about the endpoints that it may hold."""
    config = tmp_path / "g.toml"
    config.write_text("workers = ")
    done = doctor("--config", config, "--redis", own_store.url, "--state-dir", tmp_path / "s", "--json")
    assert done.returncode == 2
    settings = [c["text"] for c in json.loads(done.stdout)["checks"] if c["check"] == "settings"]
    assert len(settings) == 1
    assert f"{config} is wrong" in settings[0]
