"""PURE: a dict out of what a model wrote."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

_FENCED = re.compile(r"```[a-zA-Z0-9_-]*[ \t]*\r?\n(.*?)```", re.DOTALL)
_THOUGHT_END = "</think>"
_MOST_STARTS = 50


def find_dict(text: str) -> dict[str, Any] | None:
    """The first object in `text`: the text itself, what stands in a fenced block, or what stands between other words.

    JSON first, then a Python literal (single quotes, True, None). What a model thought aloud before its answer is not
    looked at: a draft is no answer. None where there is no object.
    """
    found = _whole(text.strip())
    if found is not None:
        return found
    text = text.rpartition(_THOUGHT_END)[2]
    for candidate in _candidates(text):
        found = _whole(candidate.strip())
        if found is not None:
            return found
    return _inside(text)


def _candidates(text: str) -> Iterator[str]:
    """Pieces that may be an object as a whole."""
    yield text
    yield from _FENCED.findall(text)
    first, last = text.find("{"), text.rfind("}")
    if 0 <= first < last:  # with a fence in one of its own values, or written as Python between words
        yield text[first : last + 1]


def _whole(text: str) -> dict[str, Any] | None:
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return None


def _inside(text: str) -> dict[str, Any] | None:
    decoder = json.JSONDecoder()
    at = text.find("{")
    for _ in range(_MOST_STARTS):
        if at < 0:
            return None
        try:
            value, _end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at = text.find("{", at + 1)
            continue
        if isinstance(value, dict):
            return value
        at = text.find("{", at + 1)
    return None
