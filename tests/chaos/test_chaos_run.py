"""The short chaos run: real processes, killed all the time; nothing is lost, doubled or mixed up."""

from __future__ import annotations

import pytest
from tests.chaos.harness import PROFILES, run

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("profile", "requests"), [("short", 16_000), ("poison", 5_000)])
async def test_nothing_is_lost_or_doubled(profile: str, requests: int):
    """Every index is in OUT once, with its own answer, whatever was killed; the store's invariants hold throughout."""
    report = await run(PROFILES[profile], requests=requests, seconds=200, seed=7)
    assert report.clean, report
    assert report.requests == requests
