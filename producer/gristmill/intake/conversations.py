"""PURE: one row of a data set of conversations -> the body of a chat request.

The form is that of LLaVA and of what is exported for training::

    {"id": "7", "image": "cat.jpg" | ["a.jpg", "b.jpg"],
     "conversations": [{"from": "human", "value": "<image>\\nWhat is this?"}, {"from": "gpt", "value": "A cat."}]}

- Turns of ``human`` (``user``) and ``gpt`` (``assistant``) become messages in order, ``system`` one of the system.
- Each ``<image>`` in a turn of human becomes the next picture, where it stands; line breaks around it are dropped.
  There must be as many as there are pictures.
- The last turn is the answer to be generated when it is gpt's, and is left off.
- Other keys of the row (its answer's score, the picture's size) are not sent.
"""

from __future__ import annotations

from typing import Any

PLACEHOLDER = "<image>"
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}


class ConversationError(ValueError):
    """A row that can't be sent; the text is a clause that follows "line N"."""


def conversation_body(row: dict[str, Any]) -> dict[str, Any]:
    """The body of a row.

    Raises:
        ConversationError: it is none, or its pictures and placeholders do not match.
    """
    turns = row.get("conversations")
    if not isinstance(turns, list) or not turns:
        raise ConversationError('has no "conversations" with at least one turn')
    said = [_turn(turn, at) for at, turn in enumerate(turns, 1)]
    if said[-1][0] == "assistant":
        said.pop()
    pictures = _pictures(row)
    count = sum(text.count(PLACEHOLDER) for role, text in said if role == "user")
    if count != len(pictures):
        raise ConversationError(f"has {count} {PLACEHOLDER} in its turns and {len(pictures)} pictures")
    if not any(role == "user" for role, _ in said):
        raise ConversationError("has no turn of human to be answered")
    left = iter(pictures)
    return {"messages": [{"role": role, "content": _content(role, text, left)} for role, text in said]}


def _turn(turn: Any, at: int) -> tuple[str, str]:
    if not isinstance(turn, dict):
        raise ConversationError(f"has a turn {at} that is not an object")
    role, text = _ROLES.get(str(turn.get("from")).lower()), turn.get("value")
    if role is None:
        raise ConversationError(f"has a turn {at} that is from neither human nor gpt")
    if not isinstance(text, str):
        raise ConversationError(f"has a turn {at} whose value is not a string")
    return role, text


def _pictures(row: dict[str, Any]) -> list[str]:
    value = row.get("image", row.get("images"))
    found = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, str) and item for item in found):
        raise ConversationError('has an entry in "image" that is neither a path nor a URL')
    return found


def _content(role: str, text: str, pictures: Any) -> str | list[dict[str, Any]]:
    if role != "user" or PLACEHOLDER not in text:
        return text
    parts: list[dict[str, Any]] = []
    for at, piece in enumerate(text.split(PLACEHOLDER)):
        if at:
            parts.append({"type": "image_url", "image_url": {"url": next(pictures)}})
        words = piece.strip("\r\n")
        if words:
            parts.append({"type": "text", "text": words})
    return parts
