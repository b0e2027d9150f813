"""The port of the metrics is taken at the start, or the reason is said."""

from __future__ import annotations

import pytest

from gristmilld.server.listen import ListenError, listen


def test_a_taken_port_is_a_sentence():
    """It names port, host and what to do."""
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ListenError, match=rf"port {port} of 127.0.0.1, for metrics, is in use.*--metrics-port"):
            listen("127.0.0.1", port)


def test_a_port_can_be_taken_again_at_once():
    """A restart does not wait for connections of the past."""
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
    listen("127.0.0.1", port).close()


def test_a_strange_host_is_a_sentence():
    """An address of another machine can't be listened on."""
    with pytest.raises(ListenError, match=r"metrics can't be served on 192\.0\.2\.1 port 0"):
        listen("192.0.2.1", 0)
