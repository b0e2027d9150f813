"""Which request it is: the same for the same call, another for any other."""

from __future__ import annotations

import json
from typing import Any

from gristmill.intake import fingerprint
from gristmill.intake.draft import Draft
from gristmill.intake.normalise import Normaliser
from gristmill.intake.options import EncodeOptions, ImageOptions


def draft_of(line: Any, **options: Any) -> Draft:
    made = Normaliser(EncodeOptions(**options))(json.dumps(line).encode())
    assert isinstance(made, Draft)
    return made


def of(line: Any, **options: Any) -> bytes:
    made = draft_of(line, **options)
    return fingerprint.of_body(made.path, made.body)


def test_form_and_key_order_and_id_do_not_matter() -> None:
    """The same call in another form, with another id or another order of keys, is the same request."""
    messages = [{"role": "user", "content": "p"}]
    wanted = of({"prompt": "p", "model": "m"})
    assert len(wanted) == 16
    assert of({"custom_id": "x", "model": "m", "messages": messages}) == wanted
    assert of({"url": "/v1/chat/completions", "body": {"messages": messages, "model": "m"}}) == wanted
    assert of({"prompt": "p"}, model="m") == wanted


def test_every_change_of_the_call_matters() -> None:
    """Model, text, options, system and path each make another request."""
    lines = [
        of({"prompt": "p"}),
        of({"prompt": "q"}),
        of({"prompt": "p", "seed": 1}),
        of({"prompt": "p", "seed": 1.0}),
        of({"prompt": "p"}, model="m"),
        of({"prompt": "p"}, system="s"),
        of({"url": "/v1/other", "body": {"messages": [{"role": "user", "content": "p"}]}}),
    ]
    assert len(set(lines)) == len(lines)


def test_pictures_count_by_their_bytes_and_options() -> None:
    """A moved file is the same request; other bytes, another order or other picture options are not."""

    def pictured(paths: list[str], digests: list[str], options: ImageOptions = ImageOptions()) -> bytes:
        return fingerprint.of_draft(draft_of({"prompt": "p", "images": paths}), digests, options)

    wanted = pictured(["a.jpg", "b.jpg"], ["1" * 32, "2" * 32])
    assert pictured(["c.jpg", "d.jpg"], ["1" * 32, "2" * 32]) == wanted
    assert pictured(["a.jpg", "b.jpg"], ["2" * 32, "1" * 32]) != wanted
    assert pictured(["a.jpg", "b.jpg"], ["1" * 32, "2" * 32], ImageOptions(max_pixels=5)) != wanted
