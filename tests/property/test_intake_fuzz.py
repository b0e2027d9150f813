"""What runs in the feeder itself must survive any bytes: lines and picture headers of every kind of damage."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.pictures import exif, quarters, saved

from gristmill.intake.draft import Draft, Refused
from gristmill.intake.encode import text_entry
from gristmill.intake.errors import PictureError
from gristmill.intake.normalise import Normaliser
from gristmill.intake.options import EncodeOptions
from gristmill.intake.readers import Line
from gristmill.intake.structure import Verdict, look

SEEDS = [
    saved(quarters(), "JPEG", exif=exif(1), progressive=True),
    saved(quarters(), "JPEG"),
    saved(quarters(), "PNG", exif=exif(1)),
    saved(quarters(), "WEBP", exif=exif(1)),
    saved(quarters(), "WEBP", lossless=True),
]
EDITS = st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=4), st.integers(0, 12)), max_size=6)


@given(seed=st.sampled_from(SEEDS), edits=EDITS, keep=st.floats(0, 1), tolerant=st.booleans())
@settings(max_examples=600, deadline=None)
def test_any_damage_of_a_picture_is_a_verdict(
    seed: bytes, edits: list[tuple[float, bytes, int]], keep: float, tolerant: bool
) -> None:
    """Edited and cut files give a verdict or a reason, nothing else; what is called plain has a size."""
    data = seed
    for place, piece, gone in edits:
        at = int(place * len(data))
        data = data[:at] + piece + data[at + gone :]
    data = data[: int(keep * len(data)) + 1]
    try:
        seen = look(data, allow_truncated=tolerant)
    except PictureError:
        return
    assert seen.verdict is Verdict.ENCODE or (seen.width and seen.height and seen.mime)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("custom_id", "id", "method", "url", "body", "messages", "prompt", "image", "images", "input", "stream", "model")
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["image_url", "input_image", "text"]) | JSON},
    optional={"image_url": JSON | st.fixed_dictionaries({"url": JSON}), "text": JSON},
)
MESSAGES = st.lists(
    st.fixed_dictionaries({}, optional={"role": JSON, "content": JSON | st.lists(PART, max_size=3)}), max_size=3
)
VALUE = JSON | MESSAGES | st.fixed_dictionaries({}, optional={"messages": MESSAGES, "model": JSON, "input": JSON})
LINES = st.dictionaries(st.sampled_from(KEYS), VALUE, max_size=6)
OPTIONS = st.sampled_from(
    [EncodeOptions(), EncodeOptions(model="m", system="s", set={"messages": [1]}, default_model="d")]
)


@given(line=LINES | JSON, options=OPTIONS)
@settings(max_examples=600, deadline=None)
def test_any_json_is_a_draft_or_a_refusal(line: Any, options: EncodeOptions) -> None:
    """Whatever a line holds, it becomes a body that is JSON again, or a refusal with a reason."""
    made = Normaliser(options)(json.dumps(line).encode())
    if isinstance(made, Refused):
        assert made.reason
        return
    assert isinstance(made, Draft)
    if not made.pictures:
        body = json.loads(text_entry(Line(1, 1, b""), 0, made).pieces[0])
        assert "stream" not in body


@given(data=st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_draft_or_a_refusal(data: bytes) -> None:
    """A line need not even be text."""
    assert isinstance(Normaliser(EncodeOptions())(data), Draft | Refused)
