"""What the supervisor does, decided from events and the time alone: no I/O happens here.

The daemon is one *control* child, N *worker* children and perhaps *helpers* (children that hold no requests), each in a
named slot. A slot's child is started, beats, and dies; a dead one is started again with the next generation, after a
wait that doubles with each failure in a row.

Reasons of a death, and what follows:

=========  ==============================================================  ========================================
cause      seen as                                                         what follows
=========  ==============================================================  ========================================
crashed    a signal that we did not send, or an exit code other than 0     its requests become suspects; restart
hung       we ended it because its loop fell silent                        its requests go back; restart
stopped    we ended it to stop the daemon                                  its requests go back
left       exit code 0 that nobody asked for                               its requests go back; restart
unfit      an exit code of `BOOT_FAILURES`                                 the daemon stops with that code
=========  ==============================================================  ========================================

A child that dies `loop_deaths` times within `loop_window_s` before its first beat will not come up at all: the daemon
stops with exit code 1. A child that came up may die as often as it likes (one bad request that kills its worker is
found by halving, which takes a death per step), only ever more slowly.

Stopping goes through stages, each with its budget; a further stop request goes to the next stage at once:

    RUNNING -> DRAINING (SIGTERM) -> HURRYING (SIGINT) -> KILLING (SIGKILL) -> FINISHING -> DONE

In FINISHING no worker is left: the control child is told to act on its last notices and to leave, and helpers get a
SIGTERM. These are the last to go and are kept alive (restarted, too) until then: control gives dead workers' requests
back.

Whoever drives this calls `step` with every event, does what it returns in order, and calls `step(Tick())` no later
than `next_due_s`.
"""

from __future__ import annotations

import signal
from collections import Counter, deque
from collections.abc import Sequence

from gristmilld.config import BOOT_FAILURES
from gristmilld.metricsdir import Supervision
from gristmilld.supervisor.terms import (
    Action,
    Beat,
    Bury,
    Cause,
    Died,
    Event,
    Exit,
    Finish,
    Rules,
    Say,
    Send,
    Stage,
    Start,
    StopAsked,
    Tick,
)

EXIT_CRASH_LOOP = 1
CONTROL = "control"


_STAGE_SIGNALS = {
    Stage.DRAINING: signal.SIGTERM,
    Stage.HURRYING: signal.SIGINT,
    Stage.KILLING: signal.SIGKILL,
}


class _Slot:
    """One place for a child, and what we know of the child that has it."""

    def __init__(self, name: str, now_s: float, *, is_worker: bool = False) -> None:
        self.name = name
        self.is_worker = is_worker
        self.generation = -1
        self.alive = False
        self.start_at_s: float | None = now_s
        self.failures = 0
        self.early_deaths: deque[float] = deque()
        self.deaths: Counter[str] = Counter()
        self._reset(now_s)

    def _reset(self, now_s: float) -> None:
        self.started_s = self.last_beat_s = now_s
        self.beaten = self.hung = False
        self.kill_at_s: float | None = None
        self.sent: set[int] = set()

    def start(self, now_s: float) -> Start:
        self.generation += 1
        self.alive = True
        self.start_at_s = None
        self._reset(now_s)
        return Start(self.name, self.generation)

    def send(self, signum: int) -> Send:
        self.sent.add(signum)
        return Send(self.name, signum)

    def cause(self, death: Died) -> Cause:
        if self.hung:
            return Cause.HUNG
        if death.signum:
            return Cause.STOPPED if death.signum in self.sent else Cause.CRASHED
        if death.exit_code in BOOT_FAILURES:
            return Cause.UNFIT
        if death.exit_code:
            return Cause.CRASHED
        return Cause.STOPPED if self.sent else Cause.LEFT

    def due_s(self, rules: Rules) -> float | None:
        """When this slot next needs a decision."""
        if not self.alive:
            return self.start_at_s
        return self.kill_at_s if self.hung else self.last_beat_s + rules.hang_s


class Policy:
    """The supervisor's decisions; see the module's head.

    Args:
        rules: the budgets.
        workers: names of the worker slots.
        now_s: monotonic time; the same clock as in every later call.
        helpers: names of the slots of helpers.
    """

    def __init__(self, rules: Rules, workers: list[str], now_s: float, helpers: Sequence[str] = ()) -> None:
        self.rules = rules
        self.stage = Stage.RUNNING
        self.exit_code = 0
        self._slots = {name: _Slot(name, now_s) for name in [CONTROL, *helpers]}
        self._slots |= {name: _Slot(name, now_s, is_worker=True) for name in workers}
        self._stage_since_s = now_s
        self._stage_until_s: float | None = None
        self._last_step_s = now_s

    def step(self, event: Event, now_s: float) -> list[Action]:
        """What to do about `event`, and about everything that has become due by `now_s`; in order."""
        self._forgive_own_stall(now_s)
        actions: list[Action] = []
        match event:
            case Beat(slot):
                self._slots[slot].beaten = True
                self._slots[slot].last_beat_s = now_s
            case Died(slot):
                actions += self._died(self._slots[slot], event, now_s)
            case StopAsked():
                actions += self._stop_asked(now_s)
            case Tick():
                pass
        return actions + self._due(now_s)

    def next_due_s(self) -> float | None:
        """When `step(Tick())` is needed at the latest; None while only an event can change anything."""
        times = [slot.due_s(self.rules) for slot in self._slots.values()]
        known = [t for t in [*times, self._stage_until_s] if t is not None]
        return min(known, default=None)

    def _forgive_own_stall(self, now_s: float) -> None:
        """Beats can't be judged for the time in which nobody read them (the machine slept, we were stopped)."""
        stalled = now_s - self._last_step_s > self.rules.hang_s / 2
        self._last_step_s = now_s
        if stalled:
            for slot in self._slots.values():
                slot.last_beat_s = now_s

    def supervision(self) -> Supervision:
        """Who lives and who has died how, for the metrics."""
        slots = self._slots.values()
        return Supervision(
            stage=self.stage.name.lower(),
            up=[slot.name for slot in slots if slot.alive and slot.beaten and not slot.hung],
            starts={slot.name: slot.generation + 1 for slot in slots if slot.generation >= 0},
            deaths={slot.name: dict(slot.deaths) for slot in slots if slot.deaths},
        )

    # -- deaths

    def _died(self, slot: _Slot, death: Died, now_s: float) -> list[Action]:
        cause = slot.cause(death)
        slot.deaths[cause.value] += 1
        slot.alive = False
        slot.kill_at_s = None
        actions: list[Action] = [Bury(slot.name, slot.generation, cause)] if slot.is_worker else []
        if cause is Cause.UNFIT:
            text = f"{slot.name} can't run as set up (exit code {death.exit_code}, see its message above)"
            return actions + self._give_up(death.exit_code, text, now_s)
        if not self._wanted(slot):
            return actions
        return actions + self._restart(slot, death, cause, now_s)

    def _wanted(self, slot: _Slot) -> bool:
        """Whether a dead child of `slot` is replaced: workers until we stop, the others until the workers are gone."""
        return self.stage is Stage.RUNNING or (not slot.is_worker and self.stage < Stage.FINISHING)

    def _restart(self, slot: _Slot, death: Died, cause: Cause, now_s: float) -> list[Action]:
        if self._loops(slot, now_s) and self.stage is Stage.RUNNING:
            text = f"{slot.name} died {len(slot.early_deaths)} times before it was up (last by {death})"
            return self._give_up(EXIT_CRASH_LOOP, text, now_s)
        slot.failures = 1 if now_s - slot.started_s >= self.rules.steady_s else slot.failures + 1
        wait_s = min(self.rules.back_off_s * 2.0 ** (slot.failures - 1), self.rules.back_off_max_s)
        slot.start_at_s = now_s + wait_s
        level = "info" if cause is Cause.LEFT else "warning"
        return [Say(level, f"{slot.name} {cause} ({death}); it starts again in {wait_s:g} s")]

    def _loops(self, slot: _Slot, now_s: float) -> bool:
        """Note an early death; whether there were too many of them."""
        if slot.beaten:
            slot.early_deaths.clear()
            return False
        slot.early_deaths.append(now_s)
        while slot.early_deaths[0] < now_s - self.rules.loop_window_s:
            slot.early_deaths.popleft()
        return len(slot.early_deaths) >= self.rules.loop_deaths

    def _give_up(self, code: int, why: str, now_s: float) -> list[Action]:
        actions: list[Action] = [Say("error", f"{why}; the daemon stops")]
        self.exit_code = self.exit_code or code
        return actions + (self._enter(Stage.DRAINING, now_s) if self.stage is Stage.RUNNING else [])

    # -- stopping

    def _stop_asked(self, now_s: float) -> list[Action]:
        if self.stage >= Stage.KILLING:
            return []
        if self.stage is not Stage.RUNNING and now_s - self._stage_since_s < self.rules.again_s:
            return []
        return self._enter(Stage(self.stage + 1), now_s)

    def _enter(self, stage: Stage, now_s: float) -> list[Action]:
        budgets = {
            Stage.DRAINING: self.rules.drain_s,
            Stage.HURRYING: self.rules.hurry_s,
            Stage.FINISHING: self.rules.finish_s,
        }
        self.stage = stage
        self._stage_since_s = now_s
        self._stage_until_s = now_s + budgets[stage] if stage in budgets else None
        for slot in self._slots.values():
            if slot.is_worker:
                slot.start_at_s = None
        signum = _STAGE_SIGNALS.get(stage)
        alive = self._alive(workers=True)
        if signum is None or not alive:
            return []
        text = f"stopping: {signum.name} to {len(alive)} worker{'s' if len(alive) > 1 else ''}"
        return [Say("info", text), *(slot.send(signum) for slot in alive)]

    # -- time

    def _due(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        for slot in self._slots.values():
            due_s = slot.due_s(self.rules)
            if due_s is None or due_s > now_s:
                continue
            if slot.alive:
                actions += self._silent(slot, now_s)
            elif self._wanted(slot):
                actions.append(slot.start(now_s))
            else:
                slot.start_at_s = None
        return actions + self._advance(now_s)

    def _silent(self, slot: _Slot, now_s: float) -> list[Action]:
        if slot.hung:
            slot.kill_at_s = None
            return [slot.send(signal.SIGKILL)]
        slot.hung = True
        slot.kill_at_s = now_s + self.rules.abort_s
        text = f"{slot.name} hangs: its loop has been silent for {self.rules.hang_s:g} s; it is ended"
        return [Say("error", text), slot.send(signal.SIGABRT)]

    def _advance(self, now_s: float) -> list[Action]:
        """Go on to the next stages as far as they are due."""
        actions: list[Action] = []
        if Stage.DRAINING <= self.stage <= Stage.KILLING:
            if not self._alive(workers=True):
                actions += self._finish(now_s)
            elif self._expired(now_s):
                actions += self._enter(Stage(self.stage + 1), now_s)
        if self.stage is Stage.FINISHING:
            late = self._alive(workers=False)
            if not late:
                return [*actions, *self._enter(Stage.DONE, now_s), Exit(self.exit_code)]
            if self._expired(now_s):
                self._stage_until_s = None
                names = ", ".join(slot.name for slot in late)
                actions.append(Say("warning", f"{names} did not finish in time and is killed"))
                actions += [slot.send(signal.SIGKILL) for slot in late]
        return actions

    def _finish(self, now_s: float) -> list[Action]:
        """The last stage; a control child that waits for its restart gets it now, for the notices still open."""
        actions = self._enter(Stage.FINISHING, now_s)
        control = self._slots[CONTROL]
        if not control.alive and control.start_at_s is not None:
            actions.append(control.start(now_s))
        helpers = [slot for slot in self._alive(workers=False) if slot is not control]
        return [*actions, Finish(), *(slot.send(signal.SIGTERM) for slot in helpers)]

    def _alive(self, *, workers: bool) -> list[_Slot]:
        return [slot for slot in self._slots.values() if slot.alive and slot.is_worker is workers]

    def _expired(self, now_s: float) -> bool:
        return self._stage_until_s is not None and now_s >= self._stage_until_s
