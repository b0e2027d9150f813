"""The stand-in endpoint for tests: in the test's own loop, or as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from types import TracebackType
from typing import Any, Self

import msgspec

from gristmilld.engine.standin.server import StandIn
from gristmilld.engine.standin.settings import Control

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_RUN = "from gristmilld.engine.standin import standin_command; standin_command()"


class Standin:
    """A stand-in in this loop on a free port: ``async with Standin(latency=0.1) as standin``.

    The arguments are those of `control`.
    """

    def __init__(self, **settings: Any) -> None:
        self._server = StandIn(seed=1)
        self.control(**settings)

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._server.close()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    @property
    def url(self) -> str:
        """The base URL."""
        return self.root + "/v1"

    @property
    def stats(self) -> dict[str, Any]:
        return json.loads(self._server.stats.encode())

    def control(self, **settings: Any) -> None:
        """Change it as ``POST /control`` does: latency, concurrency, key, strict_model, faults (a list of dicts)."""
        self._server.apply(msgspec.convert(settings, Control))

    def reset_stats(self) -> None:
        self._server.stats.reset()


class StandinProcess:
    """`gristmilld standin` in a process of its own: ``with StandinProcess("--latency", "0.1") as standin``."""

    def __init__(self, *options: str) -> None:
        self.options = options
        self.url = ""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        argv = [sys.executable, "-c", _RUN, "--port", "0", *self.options]
        self._process = process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said.startswith("listening on "):
            self.close()
            raise RuntimeError(f"the stand-in did not start: {said!r}")
        self.url = said.removeprefix("listening on ").strip()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def close(self) -> int:
        """End it as Ctrl-C would; its exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(timeout=10)
        if self._process.stdout:
            self._process.stdout.close()
        return code

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def stats(self) -> dict[str, Any]:
        with _direct.open(f"{self.root}/stats", timeout=5) as answer:
            return json.load(answer)

    def control(self, **settings: Any) -> None:
        """``POST /control``."""
        self._post("/control", json.dumps(settings).encode())

    def reset_stats(self) -> None:
        self._post("/stats/reset", b"{}")

    def _post(self, path: str, body: bytes) -> None:
        request = urllib.request.Request(self.root + path, data=body, method="POST")
        with _direct.open(request, timeout=5):
            pass
