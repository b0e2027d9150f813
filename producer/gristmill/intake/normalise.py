"""One line of INPUT -> a draft, or a refusal that says what is wrong.

Four forms are read; the first key found decides:

==============================================  ==================================================================
``{"custom_id","method","url","body"}``         OpenAI batch; ``url`` defaults to chat completions
``{"messages": [...]}``                         chat completions
``{"prompt": "..."}``                           chat completions, the prompt as one user message
``{"prompt": "...", "image"|"images": ...}``    the same, the pictures before the text
==============================================  ==================================================================

In the last three, ``custom_id`` (else ``id``, when it is a string or an integer) is the caller's id, and the other keys
go into the body. Merged over the body, later over earlier: ``--system`` (put first, unless the messages begin with a
system or developer message of their own, which stays), ``-m``, ``--set``. ``stream`` and ``stream_options`` are taken
out: a batch has nobody to stream to.

Where nothing had to be changed, the line's own bytes are sent. With the format `conversations`, a line is read as
`gristmill.intake.conversations` says instead.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gristmill.contract.failure import FailureClass
from gristmill.intake.conversations import ConversationError, conversation_body
from gristmill.intake.draft import Draft, PictureRef, Refused
from gristmill.intake.options import EncodeOptions

CHAT = "/chat/completions"
_REQUIRED = {CHAT: "messages", "/completions": "prompt", "/embeddings": "input", "/responses": "input"}
_PATH = re.compile(r"(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+")
_ORIGIN = re.compile(r"https?://[^/]+", re.IGNORECASE)
_HTTP = re.compile(r"https?://", re.IGNORECASE)
_PICTURE_PARTS = ("image_url", "input_image")
_SYSTEM_ROLES = ("system", "developer")
_MAX_ID_CHARS = 1024
_HALF_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
"""The escape of a high surrogate without a low one behind it, or of a low one without a high one before it."""


class _BatchBody(msgspec.Struct):
    body: msgspec.Raw


_any_decoder = msgspec.json.Decoder()
_body_decoder = msgspec.json.Decoder(_BatchBody)


class _BadLineError(Exception):
    """A clause that follows "line N"."""


class Normaliser:
    """Turns lines into drafts by one set of options; keeps no state between lines."""

    def __init__(self, options: EncodeOptions) -> None:
        self._options = options
        self._merges = bool(options.set) or options.model is not None or options.system is not None

    def __call__(self, data: bytes) -> Draft | Refused:
        custom_id: str | None = None
        try:
            line = _decode(data)
            custom_id = _custom_id(line)
            if self._options.format == "conversations":
                return self._draft(custom_id, CHAT, conversation_body(line), None)
            path, body, raw = _form(line, data)
            return self._draft(custom_id, path, body, raw)
        except (_BadLineError, ConversationError) as error:
            return Refused(custom_id, FailureClass.BAD_INPUT, str(error))

    def _draft(self, custom_id: str | None, path: str, body: dict[str, Any], raw: bytes | None) -> Draft:
        if self._merges:
            raw = None
            self._merge(body)
        if "model" not in body and self._options.default_model is not None:
            raw = None
            body["model"] = self._options.default_model
        stream = False
        if "stream" in body or "stream_options" in body:
            raw = None
            stream = bool(body.pop("stream", False))
            body.pop("stream_options", None)
        _check_required(path, body)
        pictures = _pictures(body)
        return Draft(
            custom_id, path, body, None if pictures else raw, pictures, _wants_json(body), stream, "model" in body
        )

    def _merge(self, body: dict[str, Any]) -> None:
        options = self._options
        messages = body.get("messages")
        if options.system is not None and isinstance(messages, list) and not _begins_with_system(messages):
            body["messages"] = [{"role": "system", "content": options.system}, *messages]
        if options.model is not None:
            body["model"] = options.model
        body.update(options.set)


def _decode(data: bytes) -> dict[str, Any]:
    try:
        line = _any_decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _BadLineError(_syntax_problem(data, error)) from None
    if isinstance(line, list):
        raise _BadLineError("is a JSON array, and one request a line is expected: `jq -c '.[]' FILE` writes them so")
    if not isinstance(line, dict):
        raise _BadLineError('is not a JSON object: each line must be one request, like {"messages": [...]}')
    return line


def _syntax_problem(data: bytes, error: Exception) -> str:
    """Why `data` is no JSON; msgspec's own words name a byte at most, never content."""
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if "UTF-8" in str(error):
        return "is not valid UTF-8: the input must be UTF-8 text"
    if data.lstrip()[:1] not in b"{[":
        return "is not JSON: the input must be JSON lines, one object on each"
    if _HALF_PAIR.search(data):
        return (
            "has half of a surrogate pair (an escape from \\ud800 to \\udfff that stands alone), which is no character"
        )
    if "truncated" in str(error):
        return "is not valid JSON (it is cut): each request stands on one line; `jq -c . FILE` writes them so"
    return f"is not valid JSON ({error})"


def _custom_id(line: dict[str, Any]) -> str | None:
    value = line.get("custom_id")
    if value is None:
        value = line.get("id")
        if value is None or not _is_id(value):
            return None
    elif not _is_id(value):
        raise _BadLineError("has a custom_id that is neither a string nor an integer")
    text = str(value)
    if len(text) > _MAX_ID_CHARS:
        raise _BadLineError(f"has a custom_id of more than {_MAX_ID_CHARS} characters")
    return text


def _is_id(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _form(line: dict[str, Any], data: bytes) -> tuple[str, dict[str, Any], bytes | None]:
    """Path, body, and the body's own bytes where it stands in the line as it is."""
    if "body" in line:
        body = line["body"]
        if not isinstance(body, dict):
            raise _BadLineError("has a body that is not an object")
        return _path(line), body, bytes(_body_decoder.decode(data).body)
    whole = "custom_id" not in line and "id" not in line
    if not whole:
        line.pop("custom_id", None)
        line.pop("id", None)
    if "messages" in line:
        return CHAT, line, data.strip() if whole else None
    if "prompt" in line:
        return CHAT, _prompt_body(line), None
    raise _BadLineError("has none of the keys body, messages and prompt")


def _path(line: dict[str, Any]) -> str:
    method, url = line.get("method"), line.get("url")
    if method is not None and (not isinstance(method, str) or method.upper() != "POST"):
        raise _BadLineError("has a method other than POST")
    if url is None:
        return CHAT
    if not isinstance(url, str):
        raise _BadLineError("has a url that is not a string")
    path = _ORIGIN.sub("", url, count=1).rstrip("/")
    path = path.removeprefix("/v1")
    if _PATH.fullmatch(path) is None:
        raise _BadLineError("has a url that is not a path like /v1/chat/completions")
    return path


def _prompt_body(line: dict[str, Any]) -> dict[str, Any]:
    prompt = line.pop("prompt")
    if not isinstance(prompt, str):
        raise _BadLineError("has a prompt that is not a string")
    images = _image_urls(line)
    content: Any = prompt
    if images:
        content = [{"type": "image_url", "image_url": {"url": url}} for url in images]
        content.append({"type": "text", "text": prompt})
    return {"messages": [{"role": "user", "content": content}], **line}


def _image_urls(line: dict[str, Any]) -> list[str]:
    """The pictures of ``image`` and ``images``, taken out of the line."""
    urls: list[str] = []
    if "image" not in line and "images" not in line:
        return urls
    for key in ("image", "images"):
        value = line.pop(key, None)
        for item in value if isinstance(value, list) else [] if value is None else [value]:
            url = item.get("url") if isinstance(item, dict) else item
            if not isinstance(url, str) or not url:
                raise _BadLineError(f'has an entry in "{key}" that is neither a path nor a URL')
            urls.append(url)
    return urls


def _begins_with_system(messages: list[Any]) -> bool:
    return bool(messages) and isinstance(messages[0], dict) and messages[0].get("role") in _SYSTEM_ROLES


def _check_required(path: str, body: dict[str, Any]) -> None:
    key = _REQUIRED.get(path)
    if key is None:
        return
    value = body.get(key)
    if not value:
        raise _BadLineError(f'has no "{key}", which {path} needs')
    if key == "messages" and (not isinstance(value, list) or [m for m in value if not isinstance(m, dict)]):
        raise _BadLineError("has messages that are not a list of objects")


def _pictures(body: dict[str, Any]) -> list[PictureRef]:
    found: list[PictureRef] = []
    messages = body.get("messages") or body.get("input")
    if not isinstance(messages, list):
        return found
    for at, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            for part_at, part in enumerate(content):
                if isinstance(part, dict) and part.get("type") in _PICTURE_PARTS:
                    ref = _picture(part, f"message {at + 1} part {part_at + 1}")
                    if ref is not None:
                        found.append(ref)
    return found


def _picture(part: dict[str, Any], place: str) -> PictureRef | None:
    """The picture of one part; None where the server is to fetch it (http) or it is named by a file id."""
    value = part.get("image_url")
    holder, key = part, "image_url"
    if isinstance(value, dict):
        holder, key, value = value, "url", value.get("url")
    elif part["type"] == "input_image" and value is None and "file_id" in part:
        return None
    if not isinstance(value, str) or not value:
        raise _BadLineError(f"has no image_url in {place}")
    if holder is part and part["type"] == "image_url" and not _HTTP.match(value):
        part["image_url"] = holder = {"url": value}  # the short form; servers want the long one
        key = "url"
    return None if _HTTP.match(value) else PictureRef(holder, key, value, place)


def _wants_json(body: dict[str, Any]) -> bool:
    wanted = body.get("response_format")
    return isinstance(wanted, dict) and wanted.get("type") in ("json_object", "json_schema")
