"""What a chaos run did, and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.chaos_input import Findings


@dataclass
class Report:
    """What one run did and found."""

    requests: int = 0
    jobs: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    hurt: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    executions: int = 0
    extra: int = 0
    allowed: int = 0
    wall_s: float = 0.0
    refusals: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.wrong or self.violations)

    def take(self, findings: Findings, name: str) -> None:
        """Add what was found in one OUT."""
        self.lost += findings.lost
        self.doubled += findings.doubled
        self.wrong += findings.wrong
        self.violations += [f"{name}: {example}" for example in findings.examples]
