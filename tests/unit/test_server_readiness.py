"""Why a daemon is not ready, from values alone."""

from __future__ import annotations

import pytest

from gristmilld.metricsdir import Supervision
from gristmilld.server.look import StoreView
from gristmilld.server.readiness import reasons_against

WELL = StoreView(up=True, daemons=["d1"])
RUNNING = Supervision("running", ["control", "worker-0"])


def test_a_daemon_with_a_worker_and_a_fit_store_is_ready():
    """Nothing stands against it."""
    assert reasons_against(WELL, RUNNING, "d1") == []


@pytest.mark.parametrize(
    ("view", "supervision", "reason"),
    [
        (WELL, Supervision("running", ["control"]), "no worker is up"),
        (WELL, Supervision("draining", ["worker-0"]), "the daemon is stopping (draining)"),
        (None, RUNNING, "the store has not been looked at yet"),
        (StoreView(up=False, trouble="the store is away"), RUNNING, "the store is away"),
        (StoreView(up=True, trouble="the store evicts keys", daemons=["d1"]), RUNNING, "the store evicts keys"),
        (StoreView(up=True, daemons=["d2"]), RUNNING, "this daemon is not registered in the store yet"),
    ],
)
def test_each_obstacle_is_named(view, supervision, reason):
    """One obstacle, one sentence."""
    assert reasons_against(view, supervision, "d1") == [reason]
