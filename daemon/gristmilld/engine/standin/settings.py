"""What ``POST /control`` can set, as one JSON object; what it leaves out stays as it is.

``{"latency": "lognormal:0.4:0.7", "concurrency": 8, "key": null, "strict_model": true, "faults": [{"kind": "status",
"status": 429, "retry_after": 2, "rate": 0.1}]}``; `faults` replaces all faults.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from gristmilld.engine.standin.faults import Fault
from gristmilld.engine.standin.latency import Draw, parse_latency


class Control(msgspec.Struct, forbid_unknown_fields=True):
    """A change of the settings."""

    latency: str | float | UnsetType = UNSET
    concurrency: int | UnsetType | None = UNSET
    key: str | UnsetType | None = UNSET
    strict_model: bool | UnsetType = UNSET
    faults: list[Fault] | UnsetType = UNSET


class Settings:
    """How the stand-in behaves now.

    Attributes:
        latency: draws the seconds that an answer takes, or None for at once.
        concurrency: requests that it works on at once, the others wait; None is unbounded.
        key: the bearer token that it asks for, or None.
        strict_model: whether another model than its own is unknown (404).
        faults: in order of precedence.
    """

    def __init__(self) -> None:
        self.latency: Draw | None = None
        self.concurrency: int | None = None
        self.key: str | None = None
        self.strict_model = False
        self.faults: list[Fault] = []

    def apply(self, control: Control) -> None:
        """Change what `control` names.

        Raises:
            ValueError: the latency is none.
        """
        if control.latency is not UNSET:
            self.latency = parse_latency(control.latency)
        if control.concurrency is not UNSET:
            self.concurrency = control.concurrency or None
        if control.key is not UNSET:
            self.key = control.key
        if control.strict_model is not UNSET:
            self.strict_model = control.strict_model
        if control.faults is not UNSET:
            self.faults = control.faults


_control = msgspec.json.Decoder(Control)


def read_control(body: bytes) -> Control:
    """The change in `body`.

    Raises:
        ValueError: it is none; the message says which field.
    """
    try:
        return _control.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"no such control: {error}") from None
