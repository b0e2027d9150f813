"""Whatever order of calls and faults: the lease queue answers as its model says, and its invariants hold.

``HYPOTHESIS_PROFILE=chaos`` (as `make chaos` sets it) runs many more and longer stories.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.support.queue_machine import QueueMachine
from tests.support.store import StoreProcess

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
PROFILES = {
    "default": settings(max_examples=30, stateful_step_count=100, deadline=None, suppress_health_check=QUIET),
    "chaos": settings(max_examples=250, stateful_step_count=200, deadline=None, suppress_health_check=QUIET),
}
PROFILE = PROFILES.get(os.environ.get("HYPOTHESIS_PROFILE", "default"), PROFILES["default"])


def test_no_order_of_calls_and_faults_breaks_the_queue(shared_store: StoreProcess):
    """Random stories of feeder, workers, collectors, faults and lost suffixes agree with the model at every step."""
    machine = QueueMachine.for_store(shared_store.url)
    run_state_machine_as_test(machine, settings=settings(PROFILE, phases=[Phase.generate, Phase.shrink], database=None))
