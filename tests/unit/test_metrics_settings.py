"""Where metrics are served, from the file and the flags."""

from __future__ import annotations

from gristmilld.settings import Flags, load

ENDPOINT = '[endpoints.x]\nurl = "http://h:8000"\n'


def test_the_flags_go_before_the_file(tmp_path):
    """Port, host and off, each for itself."""
    path = tmp_path / "g.toml"
    path.write_text('metrics_port = 1000\nmetrics_host = "0.0.0.0"\n' + ENDPOINT)
    config = load(Flags(config=path), {})
    assert (config.metrics, config.metrics_port, config.metrics_host) == (True, 1000, "0.0.0.0")
    config = load(Flags(config=path, metrics_port=0, metrics_host="::1"), {})
    assert (config.metrics, config.metrics_port, config.metrics_host) == (True, 0, "::1")
    assert not load(Flags(config=path, no_metrics=True), {}).metrics


def test_the_file_can_turn_them_off(tmp_path):
    """And no flag is needed for it; without a word nothing is decided."""
    path = tmp_path / "g.toml"
    path.write_text("metrics = false\n" + ENDPOINT)
    assert not load(Flags(config=path), {}).metrics
    config = load(Flags(endpoints=["http://h:8000"]), {})
    assert (config.metrics, config.metrics_port, config.metrics_host) == (True, None, "127.0.0.1")
