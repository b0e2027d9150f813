"""Looks for planted secrets: in a store, in process lists, in files, in what commands say.

Text is looked for as it is and as base64 at each of its three places in a group, which is how pictures travel.
"""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from redis import Redis

KEY = "sk-SENTINEL-KEY-91c2e0"
PROMPT = "SENTINEL-PROMPT-7f3ad4"
PICTURE = "SENTINEL-PICTURE-55d0b8"
SECRETS = (KEY, PROMPT, PICTURE)

_READ: dict[bytes, Callable[[Redis, bytes], Any]] = {
    b"string": lambda redis, key: redis.get(key),
    b"hash": lambda redis, key: redis.hgetall(key),
    b"list": lambda redis, key: redis.lrange(key, 0, -1),
    b"set": lambda redis, key: redis.smembers(key),
    b"zset": lambda redis, key: redis.zrange(key, 0, -1, withscores=True),
    b"stream": lambda redis, key: redis.xrange(key),
}


def traces(secret: str) -> list[bytes]:
    """The bytes that give `secret` away."""
    found = [secret.encode()]
    for before in range(3):
        text = base64.b64encode(b"\0" * before + secret.encode())
        found.append(text[(0, 2, 3)[before] : -4])  # without the characters that its neighbours have a part in
    return found


def told_by(data: bytes | str) -> set[str]:
    """The secrets that `data` gives away."""
    raw = data.encode() if isinstance(data, str) else data
    return {secret for secret in SECRETS if any(trace in raw for trace in traces(secret))}


def told_by_store(url: str) -> dict[str, set[str]]:
    """For each secret in the store, in names or values, the kinds of keys that have it: ``p`` for ``gm:{J}:p:0``."""
    found: dict[str, set[str]] = {}
    with Redis.from_url(url) as redis:
        for key in redis.scan_iter(count=1000):
            value = _READ.get(redis.type(key), lambda *_: b"")(redis, key)
            for secret in told_by(repr((key, value))):
                found.setdefault(secret, set()).add(_kind(key.decode()))
    return found


def _kind(key: str) -> str:
    of_job = re.fullmatch(r"gm:\{[^}]*\}:([^:]+)(?::.*)?", key)
    return of_job[1] if of_job else key


def told_by_processes() -> set[str]:
    """The secrets in the arguments of any process of this machine."""
    return told_by(subprocess.run(["ps", "-eww", "-o", "args="], capture_output=True, check=True).stdout)


def files_that_tell(folders: Iterable[Path]) -> dict[str, set[str]]:
    """For each secret in a file beneath `folders`, the names of these files."""
    found: dict[str, set[str]] = {}
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        for secret in told_by(path.read_bytes()):
            found.setdefault(secret, set()).add(path.name)
    return found
