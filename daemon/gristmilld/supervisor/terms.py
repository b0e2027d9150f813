"""The words of supervision: budgets, stages and causes, what happens (events), and what is done about it (actions)."""

from __future__ import annotations

import signal
from enum import IntEnum, StrEnum
from typing import TypeAlias

import msgspec


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The budgets of supervision.

    Attributes:
        drain_s: from SIGTERM to SIGINT; longer than what the workers allow themselves.
        hurry_s: from SIGINT to SIGKILL.
        finish_s: for the control child's last reap.
        hang_s: silence of a child's loop that counts as hung.
        abort_s: from SIGABRT (which makes it print where it hangs) to SIGKILL.
        back_off_s: wait before the first restart; doubles with each failure in a row.
        back_off_max_s: and never gets longer than this.
        steady_s: a child that lived so long has no failures in a row.
        loop_deaths: deaths before the first beat that end the daemon, within `loop_window_s`.
        again_s: stop requests closer together than this are one (a terminal and a service manager may both ask).
    """

    drain_s: float = 33.0
    hurry_s: float = 5.0
    finish_s: float = 5.0
    hang_s: float = 60.0
    abort_s: float = 5.0
    back_off_s: float = 0.25
    back_off_max_s: float = 5.0
    steady_s: float = 30.0
    loop_deaths: int = 5
    loop_window_s: float = 120.0
    again_s: float = 0.25


class Stage(IntEnum):
    RUNNING = 0
    DRAINING = 1
    HURRYING = 2
    KILLING = 3
    FINISHING = 4
    DONE = 5


class Cause(StrEnum):
    CRASHED = "crashed"
    HUNG = "hung"
    STOPPED = "stopped"
    LEFT = "left"
    UNFIT = "unfit"


class Beat(msgspec.Struct, frozen=True):
    """The loop of the child in `slot` is alive."""

    slot: str


class Died(msgspec.Struct, frozen=True):
    """The child in `slot` is gone: by exit code, or by signal when `signum` is not 0."""

    slot: str
    exit_code: int = 0
    signum: int = 0

    def __str__(self) -> str:
        if not self.signum:
            return f"exit code {self.exit_code}"
        known = self.signum in signal.Signals.__members__.values()
        return signal.Signals(self.signum).name if known else f"signal {self.signum}"


class StopAsked(msgspec.Struct, frozen=True):
    """Somebody wants the daemon to stop, for the first time or again."""


class Tick(msgspec.Struct, frozen=True):
    """Nothing happened but time."""


class Start(msgspec.Struct, frozen=True):
    """Fork a child for `slot`."""

    slot: str
    generation: int


class Send(msgspec.Struct, frozen=True):
    """Send `signum` to the child in `slot`."""

    slot: str
    signum: int


class Bury(msgspec.Struct, frozen=True):
    """The child of `slot` and `generation` is dead: have what it held given back, as suspects when it crashed."""

    slot: str
    generation: int
    cause: Cause


class Finish(msgspec.Struct, frozen=True):
    """Tell the control child that no notice will follow."""


class Exit(msgspec.Struct, frozen=True):
    """Leave with `code`; every child is gone."""

    code: int


class Say(msgspec.Struct, frozen=True):
    """A sentence for the log."""

    level: str
    text: str


Event: TypeAlias = Beat | Died | StopAsked | Tick
Action: TypeAlias = Start | Send | Bury | Finish | Exit | Say
