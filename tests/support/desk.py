"""One user's desk for tests of `producer run`: INPUT, OUT and a private state folder, against a stand-in endpoint.

The fixtures are imported by the test modules that use them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from gristmill.embedded import server_lives
from tests.support.cli import Background, command, environment, producer
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until_sync


class Desk:
    """One user's folder: INPUT, OUT and a state folder of their own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.input = folder / "in.jsonl"
        self.out = folder / "out.jsonl"
        self.state = folder / "state"

    def argv(self, *more: object) -> list[object]:
        return ["run", self.input, "-o", self.out, "-e", self.url, "--state-dir", self.state, "--workers", 1, *more]

    def run(self, *more: object, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        return producer(*self.argv(*more), **kwargs)

    def start(self, *more: object) -> Background:
        return Background(command(*self.argv(*more)), environment())

    def server_pid(self) -> int:
        """The process of the private store."""
        socket_path = (self.state / "store" / "socket").read_text()
        with Redis.from_url(f"unix://{socket_path}") as client:
            return int(client.info("server")["process_id"])

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def assert_complete(self, n: int) -> None:
        """OUT has each line of INPUT once, ok, in order; the work folder and the store's data are gone."""
        assert [line["gristmill"]["index"] for line in self.lines] == list(range(n))
        assert [line["custom_id"] for line in self.lines] == [f"c{i}" for i in range(n)]
        assert {line["gristmill"]["status"] for line in self.lines} == {"ok"}
        assert all(line["response"]["body"]["choices"] and line["error"] is None for line in self.lines)
        assert not Path(f"{self.out}.gm").exists()


def half_done(desk: Desk) -> Callable[[], bool]:
    """Whether some, but not all, lines have come back."""
    return lambda: desk.out.exists() and desk.out.stat().st_size > 0


@pytest.fixture(scope="module")
def shared_standin() -> Iterator[StandinProcess]:
    with StandinProcess() as process:
        yield process


@pytest.fixture
def standin(shared_standin: StandinProcess) -> StandinProcess:
    """A stand-in that answers at once, its counts at zero."""
    shared_standin.control(latency="0", concurrency=0, faults=[])
    shared_standin.reset_stats()
    return shared_standin


@pytest.fixture
def desk(tmp_path: Path, standin: StandinProcess) -> Iterator[Desk]:
    """A desk whose private store is gone when the test ends."""
    made = Desk(tmp_path, standin.url)
    yield made
    store = made.state / "store"
    if store.is_dir():
        wait_until_sync(lambda: not server_lives(store), description="the private store has ended")
