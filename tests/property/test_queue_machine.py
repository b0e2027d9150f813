"""Whatever order of calls and faults: the lease queue answers as its model says, and its invariants hold."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.support.queue_machine import QueueMachine
from tests.support.store import StoreProcess


def test_no_order_of_calls_and_faults_breaks_the_queue(shared_store: StoreProcess):
    """Random stories of feeder, workers, collectors, faults and lost suffixes agree with the model at every step."""
    quick = settings(
        max_examples=30,
        stateful_step_count=80,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(QueueMachine.for_store(shared_store.url), settings=quick)
