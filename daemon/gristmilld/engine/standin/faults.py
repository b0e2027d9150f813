"""PURE: what the stand-in does wrong, and to whom.

A fault names what happens (`kind`) and which requests it is for: all, a share (`rate`), the first few (`times`), those
after some (`skip`), those whose body holds a text (`text`: plants poison and slow rows), those of a path, or those that
come on a connection that carried one before (`reused`: plants stale connections). The first fault that takes a request
has it.

======================  ==============================================================================================
kind                    what the client sees
======================  ==============================================================================================
``status``              `status`, asking for `retry_after` seconds in its header, a date, its body or words
``error_200``           200 whose body is an error
``garbage`` ``html``    200 whose body is no JSON, or a web page
``empty``               200 without a body
``not_an_answer``       200 with a JSON object that is no answer of its path
``truncated``           half of the body, then the connection ends
``stall_mid``           half of the body, then nothing for `seconds`, then the rest
``stall``               nothing for `seconds`, then the answer
``reset`` ``close``     the connection ends without an answer, by RST or FIN
``idle_cut``            the answer; `seconds` later the connection ends
``redirect``            307 to `location`
``finish``              an answer with finish reason `reason`; for ``length`` its content is cut in half
``content``             an answer whose content is `body`
======================  ==============================================================================================

`seconds` also delays the other kinds; `body` replaces what they send; `echo` puts the request's text into the error.
"""

from __future__ import annotations

import random
from typing import Literal

import msgspec

Kind = Literal[
    "status", "error_200", "garbage", "html", "empty", "not_an_answer", "truncated", "stall_mid", "stall", "reset",
    "close", "idle_cut", "redirect", "finish", "content",
]  # fmt: skip

FOREVER_S = 86_400.0


class Fault(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One rule; see the table above. `times` and `skip` count the requests that all else would let it take."""

    kind: Kind
    status: int = 500
    retry_after: float | None = None
    retry_after_in: Literal["header", "date", "body", "words"] = "header"
    seconds: float | None = None
    body: str | None = None
    echo: bool = False
    location: str = "/"
    reason: str = "length"
    rate: float = 1.0
    times: int | None = None
    skip: int = 0
    text: str | None = None
    path: str | None = None
    reused: bool = False

    @property
    def delay_s(self) -> float:
        """How long it waits: for ever, for a stall that names no time."""
        if self.seconds is not None:
            return self.seconds
        return FOREVER_S if self.kind in {"stall", "stall_mid"} else 0.0

    def takes(self, path: str, body: bytes, chance: random.Random, *, reused: bool) -> bool:
        """Whether this request is for it; counts it if so."""
        if (self.reused and not reused) or (self.path is not None and not path.endswith(self.path)):
            return False
        if self.text is not None and self.text.encode() not in body:
            return False
        if self.rate < 1.0 and chance.random() >= self.rate:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is None:
            return True
        self.times -= 1
        return self.times >= 0


def parse_fault(text: str) -> Fault:
    """A fault as the command line writes it: ``KIND[=VALUE][@RATE]``.

    KIND is a status or a kind; VALUE is Retry-After seconds for a status, seconds for stalls and cuts, the reason for
    ``finish``: ``429=2@0.1``, ``503@0.05``, ``stall=3@0.01``, ``reset@0.01``.

    Raises:
        ValueError: it is no such thing; the message shows examples.
    """
    what, _, rate = text.partition("@")
    kind, _, value = what.partition("=")
    try:
        fields: dict[str, object] = {"kind": kind, "rate": float(rate) if rate else 1.0}
        if kind.isdigit():
            fields |= {"kind": "status", "status": int(kind)} | ({"retry_after": float(value)} if value else {})
        elif value:
            fields["reason" if kind == "finish" else "seconds"] = value if kind == "finish" else float(value)
        return msgspec.convert(fields, Fault)
    except ValueError:  # msgspec's, too
        raise ValueError(
            f"{text!r} is no fault: write it like 429=2@0.1, 503@0.05, stall=3@0.01 or reset@0.01"
        ) from None
