"""URLs of stores that parse, but cannot be meant."""

from __future__ import annotations

import pytest

from gristmill.contract.storeurl import parse_store_url
from gristmill.queue.errors import StoreError
from gristmill.queue.store import connect


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_a_number_that_is_none_is_refused(scheme: str):
    """The client library would take number 0, so the jobs of a typo would lie somewhere else."""
    with pytest.raises(ValueError, match="something else than a number: write redis://HOST:PORT/DB"):
        parse_store_url(f"{scheme}://host:1/jobs")


@pytest.mark.parametrize(
    "url", ["redis://h", "rediss://h/2", "unix:///tmp/s", "redis+sentinel://h/mill", "redis+cluster://h"]
)
def test_an_option_that_nobody_knows_is_refused_at_once(url: str):
    """For each kind of store, before anything connects; known options do."""
    with pytest.raises(StoreError, match=r"has an option \(after \?\) that is not known") as caught:
        connect(f"{url}?hunter2=1")
    assert "hunter2" not in str(caught.value)
    connect(f"{url}?socket_timeout=3")
