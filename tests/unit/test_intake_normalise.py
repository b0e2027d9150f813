"""Lines of four forms become bodies; what can't be sent says why, without saying what was in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gristmill.contract.failure import FailureClass
from gristmill.intake.draft import Draft, Refused
from gristmill.intake.encode import text_entry
from gristmill.intake.normalise import Normaliser
from gristmill.intake.options import EncodeOptions
from gristmill.intake.readers import Line

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT_BODY = {"model": "m", "messages": MESSAGES}


def draft(line: Any, **options: Any) -> Draft:
    data = line if isinstance(line, bytes) else json.dumps(line).encode()
    made = Normaliser(EncodeOptions(**options))(data)
    assert isinstance(made, Draft), made
    return made


def refused(line: Any) -> Refused:
    data = line if isinstance(line, bytes) else json.dumps(line).encode()
    made = Normaliser(EncodeOptions())(data)
    assert isinstance(made, Refused), made
    return made


def sent(made: Draft) -> Any:
    """The body as it would be sent."""
    return json.loads(text_entry(Line(1, 1, b""), 0, made).pieces[0])


def test_batch_line_is_sent_byte_for_byte() -> None:
    """Key order, spacing, escapes and numbers of the body stay as the user wrote them."""
    body = (
        rb'{ "z": 1.50, "model":"m", "big": 12345678901234567890123, "messages":[{"role":"user","content":"\u00e9"}]}'
    )
    made = draft(b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":' + body + b"}\n")
    assert (made.custom_id, made.path, made.raw) == ("a", "/chat/completions", body)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/v1/chat/completions", "/chat/completions"),
        ("/v1/embeddings", "/embeddings"),
        ("/chat/completions/", "/chat/completions"),
        ("https://api.example.com/v1/responses", "/responses"),
        (None, "/chat/completions"),
    ],
)
def test_url_becomes_a_path_below_the_base(url: str | None, path: str) -> None:
    """The version prefix and any host go: the endpoint's base has them."""
    line = {"custom_id": "a", "body": {**CHAT_BODY, "input": "x"}}
    assert draft({**line, "url": url} if url else line).path == path


def test_messages_line_is_its_own_body() -> None:
    """Without an id the line's bytes are the body; with one, all but the id is."""
    line = json.dumps({"messages": MESSAGES, "temperature": 0}).encode()
    assert draft(line + b"\r\n").raw == line
    made = draft({"custom_id": "x", "id": 7, "messages": MESSAGES, "temperature": 0})
    assert made.custom_id == "x"
    assert sent(made) == {"messages": MESSAGES, "temperature": 0}


@pytest.mark.parametrize(("value", "custom_id"), [("a", "a"), (7, "7"), (None, None), (True, None), ([1], None)])
def test_id_is_the_custom_id_when_it_can_be(value: Any, custom_id: str | None) -> None:
    """A string or integer `id` names the request; any other is dropped."""
    made = draft({"id": value, "prompt": "p"})
    assert made.custom_id == custom_id
    assert "id" not in made.body


def test_prompt_becomes_a_user_message() -> None:
    """Other keys of the line are kept in the body."""
    made = draft({"prompt": "p", "max_tokens": 5})
    assert made.path == "/chat/completions"
    assert sent(made) == {"messages": [{"role": "user", "content": "p"}], "max_tokens": 5}


def test_images_of_a_prompt_line_stand_before_its_text() -> None:
    """`image` and `images`, as strings or objects, become parts in their order."""
    made = draft({"prompt": "p", "image": "a.jpg", "images": ["b.jpg", {"url": "c.jpg"}]})
    content = made.body["messages"][0]["content"]
    assert [part["type"] for part in content] == ["image_url"] * 3 + ["text"]
    assert [ref.url for ref in made.pictures] == ["a.jpg", "b.jpg", "c.jpg"]


def test_http_pictures_pass_untouched() -> None:
    """The server fetches them; the line's bytes stay."""
    line = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "HTTPS://h/a.png"}}]}]}
    made = draft(line)
    assert made.pictures == []
    assert made.raw == json.dumps(line).encode()


def test_short_image_url_is_made_long() -> None:
    """`"image_url": "a.jpg"` becomes the object that servers want; `input_image` keeps its string."""
    made = draft({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "a.jpg"}]}]})
    assert made.body["messages"][0]["content"][0]["image_url"] == {"url": "a.jpg"}
    part = {"type": "input_image", "image_url": "a.jpg"}
    made = draft({"url": "/v1/responses", "body": {"input": [{"role": "user", "content": [part]}]}})
    assert (made.pictures[0].key, made.pictures[0].place) == ("image_url", "message 1 part 1")


def test_merge_order_is_line_then_system_then_model_then_set() -> None:
    """Later wins; keys that nobody sets stay."""
    made = draft(
        {"prompt": "p", "model": "line", "temperature": 1, "top_p": 0.5},
        model="option",
        system="sys",
        set={"temperature": 0, "seed": 1},
    )
    body = sent(made)
    assert body["messages"][0] == {"role": "system", "content": "sys"}
    assert (body["model"], body["temperature"], body["top_p"], body["seed"]) == ("option", 0, 0.5, 1)
    assert sent(draft({"prompt": "p"}, model="a", set={"model": "b"}))["model"] == "b"


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_message_of_the_line_stays(role: str) -> None:
    """`--system` is for lines that have none of their own."""
    messages = [{"role": role, "content": "own"}, *MESSAGES]
    assert sent(draft({"messages": messages}, system="ours"))["messages"] == messages


def test_default_model_is_for_lines_without_one() -> None:
    """It never replaces a line's model."""
    assert sent(draft({"prompt": "p"}, default_model="d"))["model"] == "d"
    assert sent(draft({"prompt": "p", "model": "own"}, default_model="d"))["model"] == "own"
    assert draft({"prompt": "p"}).has_model is False


def test_streaming_is_taken_out_and_told() -> None:
    """A batch has nobody to stream to; `stream: false` is dropped in silence."""
    made = draft({"body": {**CHAT_BODY, "stream": True, "stream_options": {"include_usage": True}}})
    assert sent(made) == CHAT_BODY
    assert made.stream_removed
    assert not draft({"body": {**CHAT_BODY, "stream": False}}).stream_removed


@pytest.mark.parametrize(("kind", "wanted"), [("json_object", True), ("json_schema", True), ("text", False)])
def test_wanted_json_is_noted(kind: str, wanted: bool) -> None:
    """Only an asked-for format makes a non-JSON answer invalid."""
    assert draft({"prompt": "p", "response_format": {"type": kind}}).wants_json is wanted


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not valid JSON (it is cut): each request stands on one line"),
        (b"prompt,answer", "not JSON"),
        (b"[1,2]", "a JSON array, and one request a line"),
        (b'"text"', "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"prompt":"\xff\xfe"}', "UTF-8"),
        (b'{"body":{"messages":"\xff"}}', "UTF-8"),
        (b'{"prompt": NaN}', "not valid JSON"),
        (b'{"a":' * 20_000 + b"1" + b"}" * 20_000, "nested"),
        ({"a": 1}, "none of the keys"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages"),
        ({"prompt": ["a"]}, "prompt"),
        ({"body": None}, "body"),
        ({"body": {"model": "m"}}, "messages"),
        ({"body": CHAT_BODY, "method": "GET"}, "method"),
        ({"body": CHAT_BODY, "url": "/v1/../admin"}, "url"),
        ({"body": CHAT_BODY, "url": "/v1/chat?x=1"}, "url"),
        ({"body": {"model": "m"}, "url": "/v1/embeddings"}, "input"),
        ({"custom_id": [1], "prompt": "p"}, "custom_id"),
        ({"custom_id": "x" * 2000, "prompt": "p"}, "custom_id"),
        ({"prompt": "p", "image": 5}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "message 1 part 1"),
    ],
)
def test_bad_lines_say_why(line: Any, reason: str) -> None:
    """Each kind of bad line is `bad_input` with its reason."""
    made = refused(line)
    assert made.cls is FailureClass.BAD_INPUT
    assert reason in made.reason


def test_reasons_never_quote_the_line() -> None:
    """No reason holds a prompt or an id."""
    for line in (b'{"prompt": "SENTINEL", x}', b"SENTINEL", b'{"messages": "SENTINEL"}', b'["SENTINEL"]'):
        assert "SENTINEL" not in refused(line).reason


def test_custom_id_is_kept_as_far_as_it_was_read() -> None:
    """A refusal can still be told by its id."""
    assert refused({"custom_id": "a", "messages": []}).custom_id == "a"


@pytest.mark.parametrize("text", [r"\ud800", r"a\uDBFF b", r"\udc00", r"\ud83d\u0041"])
def test_half_a_surrogate_pair_is_named(text: str) -> None:
    """The line is whole, so nothing is said of a cut one; a whole pair is a character like any other."""
    line = b'{"prompt": "%b"}'
    assert "half of a surrogate pair" in refused(line % text.encode()).reason
    assert "half" not in refused(b'{"prompt": "cut').reason
    assert sent(draft(line % rb"\ud83d\ude00"))["messages"][0]["content"] == "\U0001f600"
