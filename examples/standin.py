"""The stand-in endpoint for as long as a `with` block lasts."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

START_S = 15
# Straight to the loopback, whatever proxy the environment names.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url: str) -> Any:
    with _direct.open(url, timeout=5) as answer:
        return json.load(answer)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def standin(latency_s: float) -> Iterator[str]:
    """Start `gristmilld standin` on a free port, give its base URL, and end it.

    Raises:
        RuntimeError: it did not answer in time.
    """
    port = _free_port()
    argv = [sys.executable, "-m", "gristmilld", "standin", "--port", str(port), "--latency", str(latency_s)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(f"{url}/v1/models", process)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            get(url)
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"the stand-in endpoint did not answer within {START_S} s: try `gristmilld standin --port 0`")
