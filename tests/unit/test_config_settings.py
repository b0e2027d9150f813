"""Settings: file, flags and environment become one checked configuration, or one clear sentence."""

from __future__ import annotations

import pickle
from pathlib import Path

import msgspec
import pytest

from gristmilld.config import DaemonConfig, EndpointConfig, Secret
from gristmilld.settings import Flags, SettingsError, load

URL = "http://h:8000"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "gristmill.toml"
    path.write_text(text)
    return path


def test_an_endpoint_is_all_that_is_needed():
    """Everything else has a default; an empty store URL asks for the embedded one."""
    config = load(Flags(endpoints=[URL]), {})
    assert config.endpoints == [EndpointConfig(name="h:8000", url="http://h:8000/v1")]
    assert (config.redis, config.pool, config.concurrency) == ("", "default", 256)
    assert 1 <= config.workers <= 8


def test_the_file_is_read_whole(tmp_path):
    """Every field arrives, and the key by the environment's name for it."""
    path = written(
        tmp_path,
        f"""
        redis = "redis://store:6379/0"
        pool = "night"
        workers = 3
        concurrency = 7
        drain_s = 5
        hang_s = 90.5
        lease_ttl_s = 20
        in_flight_bytes = 2000000
        allowed_roots = ["{tmp_path}"]
        metrics_port = 9464
        log_format = "json"
        log_level = "debug"
        [endpoints.near]
        url = "http://near:8000"
        key_env = "NEAR_KEY"
        max_in_flight = 9
        [endpoints.far]
        url = "https://far/v1/"
        insecure = true
        proxy = "http://proxy:3128"
        """,
    )
    config = load(Flags(config=path), {"NEAR_KEY": "k1", "OPENAI_API_KEY": "other"})
    assert config.endpoints == [
        EndpointConfig(name="near", url="http://near:8000/v1", key=Secret("k1"), max_in_flight=9),
        EndpointConfig(name="far", url="https://far/v1", insecure=True, proxy="http://proxy:3128"),
    ]
    assert (config.redis, config.pool, config.workers, config.concurrency) == ("redis://store:6379/0", "night", 3, 7)
    assert (config.drain_s, config.hang_s, config.lease_ttl_s) == (5, 90.5, 20)
    assert (config.metrics_port, config.log_format, config.log_level) == (9464, "json", "debug")
    assert config.allowed_roots == [str(tmp_path)]


def test_flags_go_before_the_environment_and_that_before_the_file(tmp_path):
    """The nearer to the person, the stronger."""
    path = written(tmp_path, f'redis = "redis://file"\nworkers = 3\n[endpoints.x]\nurl = "{URL}"')
    env = {"GRISTMILL_REDIS_URL": "redis://env"}
    assert load(Flags(config=path), {}).redis == "redis://file"
    assert load(Flags(config=path), env).redis == "redis://env"
    assert load(Flags(config=path, redis="redis://flag", workers=5), env).redis == "redis://flag"
    assert load(Flags(config=path, workers=5), {}).workers == 5


@pytest.mark.parametrize("name", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_the_environment_gives_a_default_endpoint_with_its_key(name):
    """As other tools have it; only when nothing else names an endpoint."""
    env = {name: URL, "OPENAI_API_KEY": "sk-1"}
    (endpoint,) = load(Flags(), env).endpoints
    assert (endpoint.url, endpoint.key) == ("http://h:8000/v1", Secret("sk-1"))
    (endpoint,) = load(Flags(endpoints=["http://other"]), env).endpoints
    assert endpoint.url == "http://other/v1"


def test_the_environments_key_never_goes_to_a_configured_endpoint(tmp_path):
    """Not even when -e names it, by name or URL: the file decides which key goes there."""
    path = written(tmp_path, f'[endpoints.x]\nurl = "{URL}"')
    env = {"OPENAI_API_KEY": "sk-1", "OPENAI_BASE_URL": "http://env"}
    for flags in (Flags(config=path), Flags(config=path, endpoints=["x"]), Flags(config=path, endpoints=[URL + "/v1"])):
        assert load(flags, env).endpoints == [EndpointConfig(name="x", url="http://h:8000/v1")]


def test_chosen_endpoints_replace_the_files(tmp_path):
    """-e picks by name or adds a new one; the rest of the file's are left out; twice the same is once."""
    path = written(tmp_path, f'[endpoints.x]\nurl = "{URL}"\n[endpoints.y]\nurl = "http://y"')
    config = load(Flags(config=path, endpoints=["y", "http://new:1", "http://new:1/v1"]), {})
    assert [(e.name, e.url) for e in config.endpoints] == [("y", "http://y/v1"), ("new:1", "http://new:1/v1")]


def test_endpoints_have_distinct_names():
    """Records and metrics tell them apart."""
    config = load(Flags(endpoints=["http://h", "https://h"]), {})
    assert [e.name for e in config.endpoints] == ["h", "https://h/v1"]


def test_two_keys_for_one_server_are_two_endpoints(tmp_path):
    """A configured endpoint is never merged with another for its URL."""
    path = written(tmp_path, f'[endpoints.a]\nurl = "{URL}"\n[endpoints.b]\nurl = "{URL}"')
    assert [e.name for e in load(Flags(config=path), {}).endpoints] == ["a", "b"]


def test_a_key_file_is_read_without_its_line_end(tmp_path):
    """As editors and secret stores write it."""
    (tmp_path / "key").write_text("sk-2\n")
    path = written(tmp_path, f'[endpoints.x]\nurl = "{URL}"\nkey_file = "{tmp_path}/key"')
    assert load(Flags(config=path), {}).endpoints[0].key == Secret("sk-2")


ENDPOINT = f'[endpoints.x]\nurl = "{URL}"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("workers = ", "gristmill.toml is wrong"),
        ('colour = "red"', "unknown field `colour`"),
        ('workers = "many"', r"Expected `int.*workers"),
        ("[endpoints.x]", "missing required field `url`"),
        ('[endpoints.x]\nurl = "localhost:8000"', "endpoint 'x': .* starts with http://"),
        ('[endpoints.x]\nurl = "http://me:hunter2@h"', "endpoint 'x': .*user or password"),
        (ENDPOINT + 'key_env = "NO_SUCH"', "the environment has no NO_SUCH: export it"),
        (ENDPOINT + 'key_file = "/no/such"', "the key file /no/such cannot be read"),
        (ENDPOINT + 'key_file = "/dev/null"', "the key file /dev/null is empty"),
        (ENDPOINT + 'key_env = "A"\nkey_file = "/b"', "not both"),
        (ENDPOINT + 'ca_file = "/no/such"', "no certificate file /no/such"),
        (ENDPOINT + "max_in_flight = -1", "max_in_flight is 0"),
        ("workers = 0\n" + ENDPOINT, "workers is from 1 to 1024, not 0"),
        ("concurrency = 0\n" + ENDPOINT, "concurrency is from 1"),
        ("drain_s = -1\n" + ENDPOINT, "drain_s is from 0"),
        ("hang_s = 1\n" + ENDPOINT, "hang_s is from 5"),
        ("metrics_port = 70000\n" + ENDPOINT, "metrics_port is a port"),
        ('pool = "a b"\n' + ENDPOINT, "a pool's name has letters"),
        ('redis = "localhost"\n' + ENDPOINT, "the store's URL cannot be used: write redis://"),
        ('allowed_roots = ["/no/such"]\n' + ENDPOINT, "/no/such: there is no such folder"),
        ("", "no endpoint is given"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(tmp_path, text, says):
    """Where, what, and how to mend it; and no password in it."""
    with pytest.raises(SettingsError, match=says) as caught:
        load(Flags(config=written(tmp_path, text)), {})
    assert "hunter2" not in str(caught.value)


def test_a_missing_file_and_an_unknown_name_are_said(tmp_path):
    """The path, and the names that there are."""
    with pytest.raises(SettingsError, match=r"no\.toml: No such file"):
        load(Flags(config=tmp_path / "no.toml"), {})
    with pytest.raises(SettingsError, match=r"-e z: no endpoint of this name is configured \(there is x\)"):
        load(Flags(config=written(tmp_path, ENDPOINT), endpoints=["z"]), {})


def test_a_key_shows_nowhere():
    """Not in a repr, not in JSON, not in a pickle."""
    config = load(Flags(endpoints=[URL], redis="redis://:hunter2@h"), {"OPENAI_API_KEY": "sk-sentinel"})
    shown = f"{config!r} {config} {config.endpoints!r} {config.endpoints[0].key!r} {config.endpoints[0].key}"
    assert "sk-sentinel" not in shown
    assert "hunter2" not in shown
    for spill in (msgspec.json.encode, msgspec.msgpack.encode, pickle.dumps):
        with pytest.raises(TypeError):
            spill(config.endpoints)


def test_secrets_compare_by_their_text():
    """Two equal keys are one key."""
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1
    assert isinstance(load(Flags(endpoints=[URL]), {}), DaemonConfig)
