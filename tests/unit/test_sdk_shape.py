"""What people write in Python means the same as a line of a file, and pictures stay outside of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from gristmill.sdk.shape import GIVEN, Shaped, shape

PICTURE = Image.new("RGB", (4, 3), "red")


def line(request: Any, **extra: Any) -> dict[str, Any]:
    shaped = shape(request, extra or None)
    assert shaped.refused is None
    return json.loads(shaped.data)


def user(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def url(value: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": value}}


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        ("hello", {"prompt": "hello"}),
        ([{"role": "user", "content": "a"}], {"messages": [{"role": "user", "content": "a"}]}),
        (({"role": "user", "content": "a"},), {"messages": [{"role": "user", "content": "a"}]}),
        ([{"type": "text", "value": "a"}], user({"type": "text", "text": "a"})),
        ([{"type": "image", "value": "p.jpg"}, {"type": "text", "value": "a"}],
         user(url("p.jpg"), {"type": "text", "text": "a"})),
        ({"type": "text", "value": "a"}, user({"type": "text", "text": "a"})),
        ({"role": "user", "content": "a"}, {"messages": [{"role": "user", "content": "a"}]}),
        ({"prompt": "a", "image": Path("p.jpg")}, {"prompt": "a", "image": "p.jpg"}),
        ({"prompt": "a", "images": [Path("p.jpg"), "q.jpg"]}, {"prompt": "a", "images": ["p.jpg", "q.jpg"]}),
        ([{"role": "user", "content": [{"type": "image", "image": Path("p.jpg")}]}], user(url("p.jpg"))),
        ([{"role": "user", "content": [url("http://h/p.jpg")]}], user(url("http://h/p.jpg"))),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": Path("p.jpg")}]}],
         user({"type": "image_url", "image_url": "p.jpg"})),
        ({"custom_id": "x", "url": "/v1/embeddings", "body": {"input": "a"}},
         {"custom_id": "x", "url": "/v1/embeddings", "body": {"input": "a"}}),
        ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
         user({"type": "input_audio", "input_audio": {}})),
        ({"prompt": "a", "seed": type("Scalar", (), {"item": lambda self: 7})()}, {"prompt": "a", "seed": 7}),
    ],
)  # fmt: skip
def test_every_form_becomes_a_line(request_, wanted):
    """A string, a conversation, parts, dicts: each is one of the forms of a file's lines."""
    assert line(request_) == wanted


def test_keys_of_the_call_go_over_those_of_the_request():
    """Into the body of a batch line, else beside the messages."""
    assert line({"prompt": "a", "seed": 1, "top_k": 5}, seed=2) == {"prompt": "a", "seed": 2, "top_k": 5}
    assert line({"body": {"messages": [], "seed": 1}}, seed=2) == {"body": {"messages": [], "seed": 2}}


def test_given_pictures_stay_outside_in_their_order():
    """PIL images and bytes are named in the line and kept beside it, and count with the bytes that they hold."""
    shaped = shape(
        [{"type": "image", "value": PICTURE}, {"type": "image", "value": b"abc"}, {"type": "text", "value": "t"}]
    )
    assert shaped.given == [PICTURE, b"abc"]
    found = json.loads(shaped.data)["messages"][0]["content"]
    assert [part["image_url"]["url"] for part in found[:2]] == [f"{GIVEN}0", f"{GIVEN}1"]
    assert shaped.weight == len(shaped.data) + 4 * 3 * 4 + 3
    assert shape({"prompt": "p", "image": bytearray(b"xy")}).given == [b"xy"]


def test_the_callers_objects_are_not_changed():
    """The same conversation may be sent twice."""
    request = {"messages": [{"role": "user", "content": [{"type": "image", "value": b"abc"}]}], "image": [b"x"]}
    before = copy.deepcopy(request)
    assert shape(request, {"seed": 1}).refused is None
    assert request == before


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (3, "is a int: give a string"),
        (None, "is a NoneType"),
        (b"bytes", "is a bytes"),
        ([], "an empty list"),
        (["a", "b"], "a list of something other than messages"),
        ([{"role": "user", "content": "a"}, {"type": "text", "value": "b"}], "mixes messages"),
        ([{"type": "video", "value": "b"}], "a part of type 'video'"),
        ([{"type": "image", "value": 3}], "has a int for a picture"),
        ({"prompt": "a", "image": object()}, "has a object for a picture"),
        ({"prompt": "a", "extra": object()}, "can't be written as JSON"),
        ({"prompt": "\ud800"}, "can't be written as JSON"),
    ],
)
def test_what_is_no_request_is_refused_in_its_place(request_, reason):
    """As a value: one bad request of a million must not end the others. Its text is not repeated."""
    shaped = shape(request_)
    assert shaped == Shaped(b"", refused=shaped.refused)
    assert reason in str(shaped.refused)
