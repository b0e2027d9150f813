"""Reads a request as a model server would, down to the pixels, and says what it saw.

The answer's content is JSON: ``{"text_len", "text_sha256", "images": [{"format", "width", "height", "mean_rgb"}]}``:
the characters and the sha-256 of all text parts joined by newlines; of each picture its size after EXIF orientation.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import Any

import msgspec
import pybase64
from PIL import Image, ImageOps, ImageStat


class RefusedError(ValueError):
    """The request cannot be answered; the text says why, as the server's error would."""


class Asked(msgspec.Struct):
    """What a body asks for: of the chat, completions, embeddings and responses calls alike."""

    messages: Any = None
    prompt: Any = None
    input: Any = None
    model: str | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    n: int | None = None


class Picture(msgspec.Struct):
    """One decoded picture."""

    format: str
    width: int
    height: int
    mean_rgb: list[float]


class Seen(msgspec.Struct):
    """The content of an answer."""

    text_len: int
    text_sha256: str
    images: list[Picture]


_asked = msgspec.json.Decoder(Asked)


def read_request(body: bytes) -> Asked:
    """The request in `body`.

    Raises:
        RefusedError: it is no JSON object of the expected shape.
    """
    try:
        return _asked.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise RefusedError("the body is no JSON object of a known call") from None


def parts(asked: Asked) -> tuple[list[str], list[str]]:
    """All texts and all picture URLs, in order.

    Raises:
        RefusedError: there is nothing to answer, or a part of an unknown kind.
    """
    texts: list[str] = []
    urls: list[str] = []
    for value in (asked.messages, asked.prompt, asked.input):
        for kind, text in _walk(value):
            (texts if kind == "text" else urls).append(text)
    if not texts and not urls:
        raise RefusedError("the request has no messages, prompt or input")
    return texts, urls


def _walk(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield "text", value
    elif isinstance(value, list):
        for item in value:
            yield from _walk(item)
    elif isinstance(value, dict):
        if "content" in value:
            yield from _walk(value["content"])
        elif "type" in value:
            yield _part(value)


def _part(part: dict[str, Any]) -> tuple[str, str]:
    match part.get("type"):
        case "text" | "input_text" | "output_text":
            return "text", str(part.get("text"))
        case "image_url" | "input_image":
            url = part.get("image_url")
            return "image", str(url.get("url") if isinstance(url, dict) else url)
    raise RefusedError("a content part is neither text nor a picture")


def see(texts: list[str], pictures: list[Picture]) -> Seen:
    """The content of the answer."""
    text = "\n".join(texts)
    return Seen(len(text), hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), pictures)


def decode_pictures(urls: list[str]) -> list[Picture]:
    """Decode every picture wholly; slow, so for a thread.

    Raises:
        RefusedError: one is no data URL or no picture.
    """
    return [_decode(url) for url in urls]


def _decode(url: str) -> Picture:
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise RefusedError("a picture is no base64 data URL, and the stand-in fetches none")
    try:
        with Image.open(io.BytesIO(pybase64.b64decode(data, validate=True))) as image:
            kind = image.format or "unknown"
            upright = ImageOps.exif_transpose(image)
            rgb = upright.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise RefusedError("cannot identify or decode a picture") from None
    mean = [round(level, 3) for level in ImageStat.Stat(rgb).mean]
    return Picture(kind, rgb.width, rgb.height, mean)
