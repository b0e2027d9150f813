"""A private store that is killed under a command: started again, whatever the command is doing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.support.wait import wait_until

from gristmill.cli import _mending
from gristmill.cli._options import StoreOptions
from gristmill.cli._session import open_store
from gristmill.contract.manifest import Manifest
from gristmill.embedded import EmbeddedStoreError, server_lives
from gristmill.queue.leasequeue import LeaseQueue


async def test_a_call_survives_the_death_of_the_private_store(tmp_path: Path):
    """Whoever is in the middle of something gets an answer of the new server, and finds what the old one had."""
    async with open_store(StoreOptions(redis=None, state_dir=tmp_path)) as store:
        queue = await LeaseQueue.create(store.redis, Manifest(job="j", epoch="e", name="test", created_at_ms=1))
        for _ in range(3):
            pid = (await store.redis.info("server"))["process_id"]
            os.kill(pid, signal.SIGKILL)
            assert (await queue.snapshot()).state == "running"
            assert (await store.redis.info("server"))["process_id"] != pid
        await queue.remove()
    assert not server_lives(store.embedded.folder)


async def test_a_private_store_that_does_not_start_again_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Its own words, not at every look; the command goes on waiting, and once it starts all is well."""
    monkeypatch.setattr(_mending, "TRY_PERIOD_S", 0.3)
    async with open_store(StoreOptions(redis=None, state_dir=tmp_path)) as store:
        revive, tries = store.embedded.revive, []

        def fail_twice() -> None:
            tries.append(1)
            if len(tries) < 3:
                raise EmbeddedStoreError("the store did not start: it has no wish to")
            revive()

        monkeypatch.setattr(store.embedded, "revive", fail_twice)
        os.kill((await store.redis.info("server"))["process_id"], signal.SIGKILL)
        await wait_until(lambda: len(tries) == 3, description="it was tried again")
        assert await store.redis.ping()
    assert capsys.readouterr().err.count("it has no wish to") == 2
