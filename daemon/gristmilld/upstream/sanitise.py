"""PURE: what of a server's error may stand in a message.

Servers echo their input in errors, so no free text of theirs is passed on. Two things are:

- an error *code* or *type*, when each of its words is in our vocabulary (``context_length_exceeded``,
  ``BadRequestError``): a prompt cannot hide in words that we chose;
- a number that stands right after a wording we know (`wordings.context_limit`).

Everything else stays in the body, which the record of a failed request keeps whole.
"""

from __future__ import annotations

import re

_CODE = re.compile(r"[A-Za-z][A-Za-z_.-]{0,59}")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

VOCABULARY = frozenset(
    """
    access account active allowed api argument auth authentication authorization available aborted bad balance billing
    body bytes cancelled client code connection content context credit credits current data deadline decode denied
    deployment does empty engine entity error exceed exceeded exception exhausted exist expired failed failure field
    filter forbidden format found gateway generation hard http id image input insufficient internal invalid json key
    large length level limit limited loading long malformed management many max maximum media message messages method
    missing model moderation no not of output overload overloaded param parameter parse payload payment per permission
    policy processing prompt quota rate reached region refused rejected request requests required resource response
    safety schema server service size string support supported temporarily temporary text throttled throttling timed
    timeout to token tokens too type unauthenticated unauthorized unavailable unexpected unknown unprocessable
    unsupported upstream url usage user validation value violation window
    """.split()  # noqa: SIM905  # a hundred words read better as text than as a list
)


def safe_code(code: object) -> str | None:
    """`code` when it is made of known words alone, else None."""
    if not isinstance(code, str) or not _CODE.fullmatch(code):
        return None
    return code if all(w.lower() in VOCABULARY for w in _WORDS.findall(code)) else None
