"""What the doctor found, as lines for people, as an object for scripts, and as an exit code. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import msgspec


class Level(IntEnum):
    """How bad it is; the worst of all is the exit code of the command."""

    OK = 0
    WARN = 1
    FAIL = 2

    def __str__(self) -> str:
        return self.name.lower()


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at.

    Attributes:
        level: how bad it is.
        check: what was looked at, the same words each time.
        text: what is the case.
        fix: what to do; empty where all is well.
    """

    level: Level
    check: str
    text: str
    fix: str = ""


def ok(check: str, text: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, check, text)


def warn(check: str, text: str, fix: str) -> Finding:
    """The daemon works, but something is unsafe, slow or about to run out."""
    return Finding(Level.WARN, check, text, fix)


def fail(check: str, text: str, fix: str) -> Finding:
    """The daemon does not start, or can't work."""
    return Finding(Level.FAIL, check, text, fix)


def worst(findings: Sequence[Finding]) -> Level:
    """The worst level of all."""
    return max((finding.level for finding in findings), default=Level.OK)


def lines(findings: Sequence[Finding]) -> list[tuple[Level, str]]:
    """Each finding in one line, and its fix in a second one; texts begin below each other."""
    width = max((len(finding.check) for finding in findings), default=0)
    shown = []
    for finding in findings:
        shown.append((finding.level, f"{finding.level!s:<5} {finding.check:<{width}}  {finding.text}"))
        if finding.fix:
            shown.append((finding.level, f"{'':<{width + 8}}fix: {finding.fix}"))
    return shown


def conclusion(findings: Sequence[Finding]) -> str:
    """The last line: how many of each."""
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    if not counts[Level.WARN] and not counts[Level.FAIL]:
        return f"all is well: {counts[Level.OK]} checks"
    return f"{counts[Level.FAIL]} failed, {counts[Level.WARN]} warnings, {counts[Level.OK]} ok"


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """``{"worst": "ok|warn|fail", "checks": [{"level", "check", "text", "fix"}]}``."""
    return {
        "worst": str(worst(findings)),
        "checks": [{"level": str(f.level), "check": f.check, "text": f.text, "fix": f.fix} for f in findings],
    }
