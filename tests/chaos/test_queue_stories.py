"""The property machine of the lease queue with hypothesis' profile "chaos": many more and longer stories."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.support.queue_machine import QueueMachine
from tests.support.store import StoreProcess

settings.register_profile(
    "chaos",
    max_examples=250,
    stateful_step_count=200,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_no_long_story_breaks_the_queue(shared_store: StoreProcess):
    """As the short test, long enough for faults to fall upon faults."""
    chaos = settings(settings.get_profile("chaos"))
    run_state_machine_as_test(QueueMachine.for_store(shared_store.url), settings=chaos)
