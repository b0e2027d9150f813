"""What the doctor concludes from numbers and from what a store says of itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gristmilld.config import DaemonConfig
from gristmilld.doctor import endpoints, finding, machine, store
from gristmilld.doctor.finding import Finding, Level, fail, ok, warn

HEALTHY: dict[str, Any] = {
    "valkey_version": "9.1.0",
    "redis_version": "7.2.4",
    "used_memory": 1 << 30,
    "maxmemory": 16 << 30,
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
    "aof_last_write_status": "ok",
}


def levels(**changes: Any) -> dict[str, Level]:
    fsync = changes.pop("fsync", "everysec")
    return {f.check: f.level for f in store.judge(HEALTHY | changes, "redis://:pw@h:1/0", fsync)}


def test_a_healthy_store_has_no_fault():
    """Everything is said to be ok, and the password is not said."""
    found = list(store.judge(HEALTHY, "redis://:pw@h:1/0", "everysec"))
    assert {f.level for f in found} == {Level.OK}
    assert "pw" not in "".join(f.text for f in found)


@pytest.mark.parametrize(
    ("changes", "check", "level"),
    [
        ({"redis_version": "6.2.1"}, "store version", Level.FAIL),
        ({"maxmemory_policy": "allkeys-lru"}, "store eviction", Level.FAIL),
        ({"role": "slave"}, "store role", Level.FAIL),
        ({"aof_last_write_status": "err"}, "store log", Level.FAIL),
        ({"cluster_enabled": 1}, "store cluster", Level.FAIL),
        ({"aof_enabled": 0}, "store persistence", Level.WARN),
        ({"fsync": "no"}, "store persistence", Level.WARN),
        ({"aof_last_bgrewrite_status": "err"}, "store persistence", Level.WARN),
        ({"used_memory": 15 << 30}, "store memory", Level.WARN),
        ({"used_memory": (16 << 30) - 1}, "store memory", Level.FAIL),
        ({"maxmemory": 0, "total_system_memory": 1 << 30}, "store memory", Level.FAIL),
    ],
)
def test_each_fault_of_a_store_has_its_line(changes: dict[str, Any], check: str, level: Level):
    """What the queue can't live with fails, what costs safety or room is warned of; each has its own name."""
    assert levels(**changes)[check] is level


def test_distance_and_clock_of_the_store_are_judged():
    """A far store and a clock that is off are warned of."""
    assert (store.latency(0.0005).level, store.latency(0.08).level) == (Level.OK, Level.WARN)
    assert store.skew(0.4).level is Level.OK
    assert "3.0 s behind" in store.skew(-3.0).text


def test_room_on_the_disk_is_judged():
    """Little is warned of; next to nothing fails, be it bytes or inodes."""
    assert machine.disk("/f", 100 << 30, None).level is Level.OK
    assert machine.disk("/f", 500 << 20, None).level is Level.WARN
    assert machine.disk("/f", 10 << 20, None).level is Level.FAIL
    assert "inodes" in machine.disk("/f", 100 << 30, 3).text


def test_a_full_disk_is_asked_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The state folder need not exist: the file system that it would lie on is asked."""
    real = os.statvfs(tmp_path)
    full = os.statvfs_result((*real[:3], 1, 1, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    config = DaemonConfig(redis="", endpoints=[], state_dir=str(tmp_path / "not" / "yet"))
    (found,) = machine.state_dir(config)
    assert (found.check, found.level) == ("disk", Level.FAIL)


def test_a_state_folder_that_others_see_is_warned_of(tmp_path: Path):
    """Prompts lie in it."""
    tmp_path.chmod(0o755)
    found = list(machine.state_dir(DaemonConfig(redis="", endpoints=[], state_dir=str(tmp_path))))
    assert [f.fix for f in found if f.level is Level.WARN] == [f"chmod 700 {tmp_path}"]


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch):
    """What the daemon needs fails with the pip line; what makes it faster is warned of."""
    real = machine._version
    monkeypatch.setattr(machine, "_version", lambda name: None if name in {"uvloop", "aiohttp"} else real(name))
    assert [(f.level, f.fix) for f in machine.versions()] == [
        (Level.FAIL, "pip install 'gristmill[daemon]'"),
        (Level.WARN, "pip install uvloop"),
    ]


def test_a_settings_file_with_a_password_is_secret(tmp_path: Path):
    """A file that holds the store's password must be its owner's alone; one without may be seen."""
    path, url = tmp_path / "g.toml", "redis://:pw@h:1/0"
    path.write_text(f'redis = "{url}"')
    path.chmod(0o644)
    (found,) = machine.config_file(path, url)
    assert (found.level, found.fix) == (Level.WARN, f"chmod 600 {path}")
    assert list(machine.config_file(path, "redis://h:1/0")) == []


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("http://127.0.0.1:8000/v1", False),
        ("http://[::1]:8000/v1", False),
        ("http://localhost:8000/v1", False),
        ("https://models.example.com/v1", False),
        ("http://models.example.com/v1", True),
        ("http://10.0.0.7:8000/v1", True),
    ],
)
def test_a_key_leaves_the_machine_only_with_tls(url: str, bare: bool):
    """Loopback and TLS are safe."""
    assert endpoints.travels_bare(url) is bare


def test_lines_and_conclusion():
    """Texts line up, a fix follows its finding, the worst level counts, and nothing at all is well."""
    found = [ok("a", "fine"), warn("longer", "hm", "do this"), fail("b", "no", "do that")]
    assert [line for _, line in finding.lines(found)] == [
        "ok    a       fine",
        "warn  longer  hm",
        "              fix: do this",
        "fail  b       no",
        "              fix: do that",
    ]
    assert finding.conclusion(found) == "1 failed, 1 warnings, 1 ok"
    assert finding.worst(found) is Level.FAIL
    assert finding.worst([]) is Level.OK
    assert finding.to_json([Finding(Level.OK, "a", "fine")]) == {
        "worst": "ok",
        "checks": [{"level": "ok", "check": "a", "text": "fine", "fix": ""}],
    }
