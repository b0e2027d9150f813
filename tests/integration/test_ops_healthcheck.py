"""The container's health check against a real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

SCRIPT = Path(__file__).resolve().parents[2] / "ops/healthcheck.py"


@pytest.fixture
async def url():
    """A server that is well at /well and not at /ill."""
    app = web.Application()

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.path == "/well" else 503, text="not ready: no worker is up\n")

    app.router.add_get("/{name}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def check(*args: str) -> tuple[int, str]:
    import asyncio

    process = await asyncio.create_subprocess_exec(sys.executable, str(SCRIPT), *args, stdout=subprocess.PIPE)
    out, _ = await process.communicate()
    return process.returncode, out.decode()


async def test_well(url):
    """200 is healthy, and nothing is said."""
    assert await check(f"{url}/well") == (0, "")


async def test_not_well(url):
    """Another status is unhealthy, with the server's own reason."""
    assert await check(f"{url}/ill") == (1, f"{url}/ill answers 503: not ready: no worker is up\n")


async def test_away():
    """Nobody listens: unhealthy, and one line says so."""
    code, said = await check("http://127.0.0.1:1/well")
    assert code == 1
    assert said.startswith("http://127.0.0.1:1/well does not answer: ")
    assert said.count("\n") == 1


async def test_another_command_has_nothing_to_ask():
    """Where the first process is not `gristmilld up`, as it is not here, an image's check is satisfied unasked."""
    assert await check("http://127.0.0.1:1/well", "--only-for", "up") == (0, "")
