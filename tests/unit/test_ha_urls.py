"""URLs of sentinels and clusters: what they mean, what is refused, and what people are shown of them."""

from __future__ import annotations

import pytest
from redis.crc import key_slot

from gristmill.contract import keys
from gristmill.contract.keys import JobKeys
from gristmill.contract.storeurl import Cluster, Plain, Sentinels, parse_store_url, shown
from gristmill.queue import StoreError
from gristmill.queue.cluster import ClusterRedis, slot_of
from gristmill.queue.connection import PROMPT
from gristmill.queue.primary import FOLLOWING
from gristmill.queue.store import connect


def test_sentinels_are_parsed_with_everything():
    """Hosts with and without a port, IPv6, the service, the number, both users, and options for the library."""
    url = (
        "rediss+sentinel://me:p%40ss@a,[::1]:7,b:8/my%2Bmill/3?sentinel_username=s&sentinel_password=q&ssl_ca_certs=/c"
    )
    found = parse_store_url(url)
    assert isinstance(found, Sentinels)
    assert found.hosts == (("a", 26379), ("::1", 7), ("b", 8))
    assert (found.service, found.username, found.password) == ("my+mill", "s", "q")
    assert found.url == "rediss://me:p%40ss@localhost/3?ssl_ca_certs=%2Fc"


def test_a_cluster_is_parsed():
    """Hosts, user and password; the number 0 may stand there."""
    found = parse_store_url("redis+cluster://:secret@a:1,b/0")
    assert found == Cluster((("a", 1), ("b", 6379)), "redis://:secret@localhost")


@pytest.mark.parametrize("url", ["redis://h", "rediss://u:p@h:1/2?x=y", "unix:///a/b"])
def test_a_plain_url_is_left_as_it_is(url: str):
    assert parse_store_url(url) == Plain(url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis+sentinel://:hunter2@h", r"names no service .*: write redis\+sentinel://"),
        ("redis+sentinel://:hunter2@h/mill/two", r"or no number: write redis\+sentinel://"),
        ("redis+sentinel://:hunter2@h:x/mill", r"host or port .*: write redis\+sentinel://"),
        ("redis+sentinel://:hunter2@h,,/mill", r"host or port .*: write redis\+sentinel://"),
        ("redis+cluster://:hunter2@h/1", r"a cluster has none: write redis\+cluster://"),
        ("redis+cluster://:hunter2@", r"host or port .*: write redis\+cluster://"),
        ("redis+other://:hunter2@h", r"cannot be used: write redis://.*redis\+sentinel://.*redis\+cluster://"),
        ("http+cluster://:hunter2@h", "cannot be used"),
        ("redis+cluster://:hunter2@[h", "cannot be read|cannot be used"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_form(url: str, says: str):
    """One sentence; the client says the same, and neither shows the password."""
    for parse in (parse_store_url, connect):
        with pytest.raises((ValueError, StoreError), match=says) as caught:
            parse(url)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis+sentinel://me:hunter2@a,b:7/mill/1?sentinel_password=hunter2", "redis+sentinel://a,b:7/mill/1"),
        ("rediss+cluster://:hunter2@a:1,[::1]:2", "rediss+cluster://a:1,[::1]:2"),
        ("redis://:hunt/er2@h", "(not a URL)"),
        ("redis+cluster://a,:hunter2", "(not a URL)"),
    ],
)
def test_no_secret_is_shown(url: str, text: str):
    """Not of the store, not of the sentinels, and nothing of a URL that was written wrongly."""
    assert shown(url) == text
    found = "" if "not" in text else repr(parse_store_url(url))
    assert "hunter2" not in found


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_our_own_connections_are_used_everywhere(scheme: str):
    """To the primary, to sentinels and to nodes: a cancelled call ends there, too; with TLS where the URL says so."""
    following = connect(f"{scheme}+sentinel://h/mill?socket_timeout=3")
    ours = list(FOLLOWING.values())[scheme == "rediss"]
    assert following.connection_pool.connection_class is ours
    for sentinel in following.connection_pool._primary._sentinel.sentinels:
        assert sentinel.connection_pool.connection_class is list(PROMPT.values())[scheme == "rediss"]
    clustered = connect(f"{scheme}+cluster://h")
    assert isinstance(clustered, ClusterRedis)
    assert clustered.connection_pool.connection_class is list(PROMPT.values())[scheme == "rediss"]


def test_commands_go_where_their_key_lies():
    """By the first key; scripts name theirs later; what has no key goes home."""
    job = JobKeys("j")
    slot = key_slot(job.meta.encode())
    some = (job.meta, job.spec, job.payload(3), job.held("w"), job.block(9))
    assert {slot_of(("GET", key)) for key in some} == {slot}
    assert slot_of(("EVALSHA", "sha", 2, job.meta, job.spec)) == slot
    assert slot_of(("SCAN", 0)) == slot_of(("SCRIPT LOAD", "x")) == key_slot(keys.JOBS.encode())
    assert slot_of(("TIME",), home=7) == 7


def test_a_cluster_has_no_transaction():
    with pytest.raises(ValueError, match="no transaction"):
        connect("redis+cluster://h").pipeline()
