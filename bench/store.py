"""A store for the measurements, beside the clients, so that its CPU is counted apart."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from gristmill.embedded import find_server


class Store:
    """The same server with the same durability as the embedded store, on a unix socket."""

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="gm-bench-"))
        self.url = f"unix://{self._home}/s.sock"
        self._redis = Redis.from_url(self.url)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        argv = [str(find_server()), "--port", "0", "--unixsocket", f"{self._home}/s.sock", "--dir", str(self._home)]
        argv += ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction"]
        self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while True:
            try:
                self._redis.ping()
            except RedisConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        self._redis.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def cpu_s(self) -> float:
        """User and system seconds that the server has used so far, without its children."""
        info = self._redis.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def empty(self) -> None:
        self._redis.flushall()
