"""The demo's two inputs: one in which everything is right, and one full of what goes wrong in real life."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checks import Expected
from variants import Picture

HERE = Path(__file__).parent


def _prompts() -> list[str]:
    texts = []
    for line in (HERE / "prompts.jsonl").read_text(encoding="utf-8").splitlines():
        request = json.loads(line)
        messages = request.get("body", request).get("messages")
        texts.append(messages[-1]["content"] if messages else request["prompt"])
    return texts


def _text_request(number: int, text: str) -> tuple[dict[str, Any], Expected]:
    """One of the three ways to write a request without pictures, in turn."""
    messages = [{"role": "user", "content": text}]
    if number % 3 == 0:
        custom_id = f"text-{number}"
        body = {"messages": messages, "temperature": 0}
        line = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
        return line, Expected(custom_id, text)
    if number % 3 == 1:
        return {"messages": messages}, Expected(None, text)
    return {"prompt": text}, Expected(None, text)


def _photo_request(number: int, text: str, pictures: list[Picture]) -> tuple[dict[str, Any], Expected]:
    """One of the ways to name pictures, in turn: a path, a list of them, a file URL, a data URL."""
    expected = Expected(None, text, tuple(pictures))
    if len(pictures) > 1:
        return {"prompt": text, "images": [str(p.path) for p in pictures]}, expected
    (picture,) = pictures
    if number % 3 == 0:
        return {"prompt": text, "image": str(picture.path)}, expected
    url = picture.path.as_uri()
    if number % 3 == 1:
        kind = picture.path.suffix[1:].replace("jpg", "jpeg")
        url = f"data:image/{kind};base64,{base64.b64encode(picture.path.read_bytes()).decode()}"
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
    return {"messages": [{"role": "user", "content": parts}]}, expected


def write_requests(path: Path, pictures: list[Picture], count: int) -> list[Expected]:
    """Write `count` requests, with all `pictures` spread among them; what each must come back with."""
    prompts = _prompts()
    waiting = list(reversed(pictures))
    spacing = max(1, count // len(pictures))
    expected = []
    with path.open("w", encoding="utf-8") as out:
        for number in range(count):
            text = f"{prompts[number % len(prompts)]} (request {number})"
            if waiting and number % spacing == 0:
                chosen = [waiting.pop() for _ in range(min(len(waiting), 2 if number % (20 * spacing) == 0 else 1))]
                line, want = _photo_request(number, text, chosen)
            else:
                line, want = _text_request(number, text)
            out.write(json.dumps(line, ensure_ascii=number % 2 == 0) + "\n")
            expected.append(want)
    return expected


def broken_lines(folder: Path) -> Iterator[tuple[str, str, str]]:
    """(what is wrong in words, the class that it must be given, the line as it stands in INPUT).

    Lines whose class is "ok" are right ones between the broken: they have to be answered all the same.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def spoiled(name: str, data: bytes) -> str:
        (folder / name).write_bytes(data)
        return json.dumps({"prompt": "What is this?", "image": str(folder / name)})

    photos = HERE / "photos"
    jpeg, png = (photos / "coffee.jpg").read_bytes(), (photos / "chelsea.png").read_bytes()
    good = json.dumps({"prompt": "What is this?", "image": str(photos / "coffee.jpg")})
    yield "a right picture", "ok", good
    yield "a JPEG cut in half", "bad_image", spoiled("half.jpg", jpeg[: len(jpeg) // 2])
    yield "a JPEG without its last bytes", "bad_image", spoiled("tail.jpg", jpeg[:-2000])
    yield "a PNG cut in half", "bad_image", spoiled("half.png", png[: len(png) // 2])
    yield "a text file named .jpg", "bad_image", spoiled("text.jpg", b"This is no picture.\n")
    yield "an empty picture", "bad_image", spoiled("empty.png", b"")
    yield "a picture that is not there", "bad_image", json.dumps({"prompt": "And?", "image": str(folder / "gone.jpg")})
    yield "a line cut short", "bad_input", '{"prompt": "What is th'
    yield "a list, not an object", "bad_input", '["What is this?"]'
    yield "an object without a request", "bad_input", '{"question": "What is this?"}'
    yield "a right text", "ok", json.dumps({"prompt": "Still here?"})
