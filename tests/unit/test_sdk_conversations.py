"""Rows of conversations: turns, placeholders, and files that are one JSON array."""

from __future__ import annotations

import gzip
import io
import json

import pytest
from tests.support import pictures

from gristmill.intake import json_array
from gristmill.intake.check import check
from gristmill.intake.conversations import ConversationError, conversation_body
from gristmill.intake.draft import Draft, Refused
from gristmill.intake.errors import InputError
from gristmill.intake.json_array import ArrayError, begins_array, elements
from gristmill.intake.normalise import Normaliser
from gristmill.intake.options import EncodeOptions
from gristmill.intake.readers import open_lines


def turns(*said: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": who, "value": text} for who, text in said]


def url(picture: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": picture}}


def test_turns_become_messages_and_the_last_answer_is_left_off():
    """human, gpt and system become user, assistant and system; what gpt said last is what is asked for."""
    row = {"conversations": turns(("system", "s"), ("human", "a"), ("gpt", "b"), ("human", "c"), ("gpt", "d"))}
    assert conversation_body(row)["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]


def test_each_placeholder_becomes_the_next_picture_where_it_stands():
    """Pictures keep their place among the words, over several turns; line breaks around them are dropped."""
    row = {
        "image": ["1.jpg", "2.jpg", "3.jpg"],
        "conversations": turns(
            ("human", "<image>\nand <image>: compare"),
            ("gpt", "an <image> is only text here"),
            ("human", "now <image>"),
        ),
    }
    assert [m["content"] for m in conversation_body(row)["messages"]] == [
        [url("1.jpg"), {"type": "text", "text": "and "}, url("2.jpg"), {"type": "text", "text": ": compare"}],
        "an <image> is only text here",
        [{"type": "text", "text": "now "}, url("3.jpg")],
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"image": "a.jpg", "conversations": turns(("human", "hi"))}, "0 <image> in its turns and 1 pictures"),
        ({"conversations": turns(("human", "<image>"))}, "1 <image> in its turns and 0 pictures"),
        ({"conversations": turns(("robot", "hi"))}, "a turn 1 that is from neither"),
        ({"conversations": turns(("gpt", "hi"))}, "no turn of human"),
        ({"conversations": [{"from": "human", "value": 3}]}, "whose value is not a string"),
        ({"conversations": ["hi"]}, "a turn 1 that is not an object"),
        ({"conversations": []}, 'no "conversations"'),
        ({"image": [3], "conversations": turns(("human", "<image>"))}, "neither a path nor a URL"),
    ],
)
def test_a_row_that_cannot_be_sent_says_why(row, reason):
    """Each is a refusal of that row alone, of class bad_input, with its id."""
    with pytest.raises(ConversationError, match=reason):
        conversation_body(row)
    refused = Normaliser(EncodeOptions(format="conversations"))(json.dumps({"id": "x", **row}).encode())
    assert isinstance(refused, Refused)
    assert (refused.custom_id, refused.cls) == ("x", "bad_input")
    assert reason in refused.reason


def test_options_are_merged_and_other_keys_of_the_row_stay_behind():
    """Model, system message and set keys go into the body; the row's width and score do not."""
    options = EncodeOptions(format="conversations", model="m", system="be brief", set={"temperature": 0})
    draft = Normaliser(options)(json.dumps({"id": 7, "width": 3, "conversations": turns(("human", "a"))}).encode())
    assert isinstance(draft, Draft)
    assert draft.custom_id == "7"
    assert draft.body == {
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a"}],
        "model": "m",
        "temperature": 0,
    }


# --- arrays

ROWS = [
    {"id": 1, "t": 'quotes " and \\ and ]}[{,'},
    [],
    {},
    {"deep": [[{"a": ["x"]}]], "u": "ü€𐍈"},
    'a string, with ] and " in it',
    -1.5e3,
    None,
    True,
    {"id": 2, "t": "x" * 5000},
]


def cut(data: bytes, offset: int = 0, cap: int = 1 << 20) -> list[json_array.Element]:
    stream = io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type]
    stream.seek(offset)
    return list(elements(stream, offset, cap))


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("lead", ["", "\ufeff", " \n"])
def test_an_array_is_cut_into_its_elements_however_it_is_read(monkeypatch, chunk, indent, lead):
    """Whatever the pieces in which the file comes, each element is one, and reading goes on behind any of them."""
    monkeypatch.setattr(json_array, "_CHUNK_BYTES", chunk)
    data = (lead + json.dumps(ROWS, indent=indent, ensure_ascii=False) + "\n").encode()
    assert begins_array(data)
    found = cut(data)
    assert [json.loads(e.data) for e in found] == ROWS
    for at, element in enumerate(found):
        assert [e.data for e in cut(data, element.offset_after)] == [e.data for e in found[at + 1 :]]


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_an_element_beyond_the_cap_is_skipped_over(monkeypatch, chunk):
    """It keeps its place as a problem, with a bounded head, and the next one follows."""
    monkeypatch.setattr(json_array, "_CHUNK_BYTES", chunk)
    long = {"t": 'x\\"]}{[' * 300, "more": [{"a": 1}] * 50}
    found = cut(json.dumps([{"a": 1}, long, {"b": 2}]).encode(), cap=500)
    assert [e.too_long for e in found] == [False, True, False]
    assert json.loads(found[2].data) == {"b": 2}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'[{"a":1}', "cut short"),
        (b'[{"a":1},', "cut short"),
        (b'[{"a":"1', "cut short"),
        (b"[", "cut short"),
        (b'[{"a":1} {"b":2}]', "no comma at byte 9"),
        (b'[1, "abc', "cut short"),
        (b'["' + b"x" * 5000 + b'"]', "no object"),
    ],
)
def test_what_is_no_whole_array_is_an_error_of_the_input(monkeypatch, data, reason):
    """Rows would be missing without anyone noticing."""
    monkeypatch.setattr(json_array, "_CHUNK_BYTES", 16)
    with pytest.raises(ArrayError, match=reason):
        cut(data, cap=500)


def test_an_empty_array_has_no_rows():
    """Nothing to do is no error."""
    assert cut(b" [ ] ") == []


@pytest.mark.parametrize("pack", [lambda d: d, gzip.compress], ids=["plain", "gzip"])
def test_open_lines_numbers_the_elements(tmp_path, pack):
    """An array's elements are lines, plain or compressed, and a reader resumes behind any of them."""
    path = tmp_path / "rows.json"
    path.write_bytes(pack(json.dumps(ROWS, indent=1).encode()))
    whole = list(open_lines(path, arrays=True))
    assert [line.number for line in whole] == list(range(1, len(ROWS) + 1))
    for at, line in enumerate(whole):
        assert list(open_lines(path, line.offset_after, number=line.number, arrays=True)) == whole[at + 1 :]


def test_lines_are_still_lines(tmp_path):
    """With arrays allowed, a file of JSON lines is read as before."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a":1}\n\n{"b":2}\n')
    lines = [(line.number, line.data) for line in open_lines(path, arrays=True)]
    assert lines == [(1, b'{"a":1}\n'), (3, b'{"b":2}\n')]


def test_a_torn_array_names_its_file(tmp_path):
    """As every error of an input does."""
    path = tmp_path / "rows.json"
    path.write_bytes(b'[{"a":1},{"b"')
    with pytest.raises(InputError, match=r"rows\.json is cut short"):
        list(open_lines(path, arrays=True))


@pytest.mark.parametrize("as_array", [True, False])
async def test_a_data_set_is_checked_with_its_pictures(tmp_path, as_array):
    """Relative pictures lie below the media root, and a row whose counts differ is the only one refused."""
    folder = tmp_path / "media"
    folder.mkdir()
    (folder / "p.jpg").write_bytes(pictures.saved(pictures.quarters(), "JPEG"))
    rows = [
        {"id": "a", "image": "p.jpg", "conversations": turns(("human", "<image>\nwhat?"), ("gpt", "a thing"))},
        {"id": "b", "image": "p.jpg", "conversations": turns(("human", "what?"), ("gpt", "a thing"))},
        {"id": "c", "conversations": turns(("human", "no picture"))},
    ]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows) if as_array else "\n".join(map(json.dumps, rows)))
    report = await check(path, EncodeOptions(format="conversations", media_root=str(folder), model="m"))
    assert (report.lines, report.sendable, report.refused, report.pictures) == (3, 2, 1, 1)
    assert report.bad[0].line == 2
    assert report.bad[0].cls == "bad_input"
