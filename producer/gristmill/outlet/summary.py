"""What is told at the end: the counts of OUT, as one object for scripts and as a few lines for people. Pure."""

from __future__ import annotations

from typing import Any

import msgspec


class Tokens(msgspec.Struct, frozen=True):
    prompt: int = 0
    completion: int = 0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One job over its OUT; ``total = ok + failed + waiting + in_flight + not_run``.

    Attributes:
        job: its id.
        state: its state.
        total: lines of INPUT, those that an earlier run had finished included; as far as fed while INPUT is not at its
        end. ok: lines with an answer.
        failed: lines with a failure.
        waiting: lines whose requests are still to come.
        in_flight: requests on their way.
        not_run: lines that will never run, since the job was cancelled or has expired.
        by_class: failed lines by class.
        attempts: HTTP calls that the lines of OUT took.
        tokens: tokens that the servers say the lines of OUT took.
        wall_s: from the job's creation to its end, or to now, seconds.
        examples: one message for each class of failure.
    """

    job: str
    state: str
    total: int
    ok: int
    failed: int
    waiting: int = 0
    in_flight: int = 0
    not_run: int = 0
    by_class: dict[str, int] = {}
    attempts: int = 0
    tokens: Tokens = Tokens()
    wall_s: float = 0.0
    examples: dict[str, str] = {}

    def to_json(self) -> dict[str, Any]:
        """The object of ``--json``; its keys are a contract, examples are not among them."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        del found["examples"]
        return found

    def to_text(self) -> str:
        """A few lines for people: counts, then each class of failure with one example."""
        rest = {"waiting": self.waiting, "in flight": self.in_flight, "not run": self.not_run}
        counts = [f"{self.ok:,} ok", f"{self.failed:,} failed", *(f"{n:,} {name}" for name, n in rest.items() if n)]
        total = f"{self.total:,} line{'' if self.total == 1 else 's'}"
        lines = [f"job {self.job} {self.state}: {total}: {', '.join(counts)}"]
        for cls, count in sorted(self.by_class.items(), key=lambda item: (-item[1], item[0])):
            example = self.examples.get(cls)
            lines.append(f"  {count:>9,}  {cls}" + (f", for example: {example}" if example else ""))
        lines.append(
            f"{self.attempts:,} attempts; tokens: {self.tokens.prompt:,} prompt, "
            f"{self.tokens.completion:,} completion; {self.wall_s:,.1f} s"
        )
        return "\n".join(lines)
