"""A request as people write it in Python -> the line of JSON that a file would have, and the pictures it was given.

Taken are all forms of a line (`intake.normalise`), and besides:

- a string: one user message;
- a list of messages: a conversation; or a list of ``{"type": "image"|"text", "value": ...}``: one user message;
- ``{"type": "image"|"text", "value": ...}`` for a part of a message;
- a picture, wherever a path or a URL may stand, as a PIL image, as bytes or as a `pathlib.Path`.

The line then takes the same way as one of a file, so both mean the same. Given pictures stay outside: in the line
stands a name that no caller can guess. The caller's objects are copied as far as they are changed, never written to.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

GIVEN = f"gm-given-{secrets.token_hex(16)}:"
"""Begins the URL of a given picture; its number follows."""

_BYTES_PER_PIXEL = 4
_TEXT_PARTS = ("text", "input_text")
_URL_PARTS = ("image_url", "input_image")


class ShapeError(ValueError):
    """What was given is no request; the text is a clause that follows "request N"."""


class Shaped(msgspec.Struct):
    """One request on its way to the feeder.

    Attributes:
        data: the line; empty when refused.
        given: the pictures that stand in it by number.
        weight: bytes that it holds in memory, about.
        refused: why it is no request: a clause that follows "request N".
    """

    data: bytes
    given: list[Any] = []
    weight: int = 0
    refused: str | None = None


def shape(request: object, extra: Mapping[str, Any] | None = None) -> Shaped:
    """The request as a line; the keys of `extra` go into its body, over its own.

    What is no request is refused, not raised: it gets a failed result in its place.
    """
    given: list[Any] = []
    try:
        line = _line(request, given)
        if extra:
            line = _with(line, extra)
        data = msgspec.json.encode(line, enc_hook=plain)
    except ShapeError as error:
        return Shaped(b"", refused=str(error))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return Shaped(b"", refused=f"can't be written as JSON ({type(error).__name__})")
    return Shaped(data, given, len(data) + sum(map(_weight, given)))


def _with(line: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(line.get("body"), dict):
        return {**line, "body": {**line["body"], **extra}}
    return {**line, **extra}


def plain(value: object) -> Any:
    """What msgspec can't write by itself: paths, and numbers and arrays of other libraries.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    for name in ("tolist", "item"):  # numpy's and torch's
        convert = getattr(value, name, None)
        if callable(convert):
            return convert()
    raise TypeError(f"a {type(value).__name__} is no JSON")


def _line(request: object, given: list[Any]) -> dict[str, Any]:
    if isinstance(request, str):
        return {"prompt": request}
    if isinstance(request, Mapping):
        return _object(dict(request), given)
    if isinstance(request, Sequence) and not isinstance(request, bytes | bytearray):
        return {"messages": _conversation(request, given)}
    raise ShapeError(f"is a {type(request).__name__}: give a string, a list of messages, or a dict")


def _object(line: dict[str, Any], given: list[Any]) -> dict[str, Any]:
    body = line.get("body")
    if isinstance(body, Mapping):
        line["body"] = _object(dict(body), given)
    for key in ("messages", "input"):
        if isinstance(line.get(key), list | tuple):
            line[key] = [_message(message, given) for message in line[key]]
    for key in ("image", "images"):
        value = line.get(key)
        if value is not None:
            line[key] = [_url(v, given) for v in value] if isinstance(value, list | tuple) else _url(value, given)
    if "type" in line and "value" in line and "messages" not in line:
        return {"messages": [{"role": "user", "content": [_part(line, given)]}]}
    if "role" in line and "content" in line and "messages" not in line:
        return {"messages": [_message(line, given)]}
    return line


def _conversation(items: Sequence[Any], given: list[Any]) -> list[Any]:
    """A list of messages, or of the parts of one."""
    if not items:
        raise ShapeError("is an empty list: give at least one message")
    if not all(isinstance(item, Mapping) for item in items):
        raise ShapeError("is a list of something other than messages: give dicts, or one string")
    if all("role" in item for item in items):
        return [_message(item, given) for item in items]
    if any("role" in item for item in items):
        raise ShapeError("mixes messages (with a role) and parts (without one)")
    return [{"role": "user", "content": [_part(item, given) for item in items]}]


def _message(message: Any, given: list[Any]) -> Any:
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), list | tuple):
        return message
    return {**message, "content": [_part(part, given) for part in message["content"]]}


def _part(part: Any, given: list[Any]) -> Any:
    """A part in OpenAI's form; what it does not know stays as it is."""
    if not isinstance(part, Mapping):
        return part
    kind = part.get("type")
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": _url(_value(part, "image"), given)}}
    if kind == "text" and "value" in part and "text" not in part:
        return {"type": "text", "text": part["value"]}
    if kind in _TEXT_PARTS:
        return part
    if kind in _URL_PARTS:
        return {**part, "image_url": _image_url(part.get("image_url"), given)}
    if kind is None or "value" in part:
        raise ShapeError(f"has a part of type {str(kind)[:20]!r}: give image or text")
    return part


def _image_url(value: Any, given: list[Any]) -> Any:
    if isinstance(value, Mapping):
        return {**value, "url": _url(value.get("url"), given)}
    return _url(value, given)


def _value(part: Mapping[str, Any], name: str) -> Any:
    return part["value"] if "value" in part else part.get(name)


def _url(value: Any, given: list[Any]) -> Any:
    """What stands in the line for a picture."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return value.get("url")
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, bytes | bytearray | memoryview) or is_picture(value):
        given.append(bytes(value) if isinstance(value, bytearray | memoryview) else value)
        return f"{GIVEN}{len(given) - 1}"
    raise ShapeError(f"has a {type(value).__name__} for a picture: give a path, a URL, bytes or a PIL image")


def is_picture(value: object) -> bool:
    """Whether it is a PIL image; told by its methods, so that Pillow need not be imported."""
    return all(hasattr(value, name) for name in ("tobytes", "size", "mode", "save", "getexif"))


def _weight(picture: Any) -> int:
    if isinstance(picture, bytes):
        return len(picture)
    width, height = picture.size
    return int(width) * int(height) * _BYTES_PER_PIXEL
