"""The upstream's tests run on both loops that a worker may have, and by both ways to an endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

import pytest
import uvloop

from gristmilld.upstream.client import UpstreamClient

LoopFactories = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> LoopFactories:
    """Loops by name; the name is not shown where there is one."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if item.path.name.startswith("test_upstream_"):
        loops["uvloop"] = uvloop.new_event_loop
    return loops


@pytest.fixture(params=["lean", "ordinary"])
def open_client(request: pytest.FixtureRequest) -> Callable[..., UpstreamClient]:
    """`UpstreamClient`, for each way to an endpoint."""
    return partial(UpstreamClient, lean=request.param == "lean")
