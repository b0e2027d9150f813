"""The three pages: ``/metrics`` for Prometheus, ``/healthz`` (this daemon is alive), ``/readyz`` (it can take work).

No page waits for the store: each is made from its last look and from files of this machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from gristmilld import metricsdir
from gristmilld.server import gauges
from gristmilld.server.look import StoreLook
from gristmilld.server.readiness import reasons_against


class DaemonCollector(Collector):
    """Everything that this daemon knows, anew for each scrape."""

    def __init__(self, folder: Path, look: StoreLook) -> None:
        self._folder = folder
        self._look = look

    def collect(self) -> Iterable[Family]:
        files = metricsdir.value_files(self._folder)
        yield from MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]  # it is not annotated
        yield from gauges.of_supervision(metricsdir.read_supervision(self._folder))
        yield from gauges.of_store(self._look.view)


class Pages:
    """See the module's head.

    Args:
        folder: of the value files.
        look: at the store.
        daemon_id: under which this daemon is registered.
    """

    def __init__(self, folder: Path, look: StoreLook, daemon_id: str) -> None:
        self._folder = folder
        self._look = look
        self._daemon_id = daemon_id
        self._registry = CollectorRegistry()
        self._registry.register(DaemonCollector(folder, look))

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/healthz", self.health)
        app.router.add_get("/readyz", self.readiness)
        return app

    async def metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        # with very many workers it takes a while, in which the other pages are answered
        body = await asyncio.to_thread(encode, self._registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def readiness(self, _: web.Request) -> web.Response:
        supervision = metricsdir.read_supervision(self._folder)
        against = reasons_against(self._look.view, supervision, self._daemon_id)
        if against:
            return web.Response(status=503, text="".join(f"not ready: {reason}\n" for reason in against))
        return web.Response(text="ready\n")
