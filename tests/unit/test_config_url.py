"""Base URLs: every spelling that people paste means the same endpoint."""

from __future__ import annotations

import pytest

from gristmill.contract.url import normalise_base_url


@pytest.mark.parametrize(
    "text",
    [
        "http://h:8000",
        "http://h:8000/",
        "http://h:8000/v1",
        "http://h:8000/v1/",
        "http://h:8000/v1/chat/completions",
        "http://h:8000/v1/completions/",
        "http://h:8000/v1/models",
        "HTTP://H:8000/v1",
        "  http://h:8000/v1\n",
    ],
)
def test_all_spellings_of_one_server_are_one_base(text):
    """Root, /v1 and the full path of a call name the same base URL."""
    assert normalise_base_url(text) == "http://h:8000/v1"


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("https://api.example.com", "https://api.example.com/v1"),
        ("https://api.example.com:443/v1", "https://api.example.com/v1"),
        ("http://h:80/", "http://h/v1"),
        ("https://h/api/v1/", "https://h/api/v1"),
        ("https://h/v1beta/openai/chat/completions", "https://h/v1beta/openai"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_other_paths_and_ports_are_kept(text, base):
    """Only an empty path becomes /v1; default ports are dropped; and the base of a base is itself."""
    assert normalise_base_url(text) == base
    assert normalise_base_url(base) == base


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("localhost:8000", "starts with http:// or https://"),
        ("h", "starts with http:// or https://"),
        ("ftp://h/v1", "starts with http:// or https://"),
        ("http://", "names a host"),
        ("http://h:port/v1", "malformed"),
        ("http://h:99999/v1", "malformed"),
        ("http://[::1/v1", "malformed"),
        ("http://h h/v1", "space"),
        ("http://h/v1?api-version=1", "query or fragment"),
    ],
)
def test_what_is_no_base_url_is_refused_with_a_sentence(text, says):
    """A wrong URL is named as wrong before anything is sent."""
    with pytest.raises(ValueError, match=says):
        normalise_base_url(text)


def test_a_password_in_a_url_is_refused_and_never_repeated():
    """Keys don't travel in URLs: they would show in ps, logs and records."""
    with pytest.raises(ValueError, match="user or password") as caught:
        normalise_base_url("http://me:hunter2@h/v1")
    assert "hunter2" not in str(caught.value)


def test_a_key_pasted_in_place_of_a_url_is_not_repeated():
    """What is no URL may be a key."""
    with pytest.raises(ValueError, match="starts with") as caught:
        normalise_base_url("sk-sentinel-99")
    assert "sentinel" not in str(caught.value)
