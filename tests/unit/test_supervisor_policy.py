"""The supervisor's decisions, with a clock that moves only when told."""

from __future__ import annotations

import signal

import pytest
from tests.support.clock import ManualClock

from gristmilld.metricsdir import Supervision
from gristmilld.supervisor.policy import CONTROL, Policy
from gristmilld.supervisor.terms import (
    Beat,
    Bury,
    Cause,
    Died,
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

W0, W1 = "worker-0", "worker-1"


class Drive:
    """A policy and its clock; actions without the sentences."""

    def __init__(self, workers: int = 2, rules: Rules | None = None, helpers=()) -> None:
        self.clock = ManualClock()
        self.policy = Policy(rules or Rules(), [f"worker-{n}" for n in range(workers)], self.clock(), helpers)
        self.said: list[Say] = []

    def step(self, event):
        actions = self.policy.step(event, self.clock())
        self.said += [a for a in actions if isinstance(a, Say)]
        return [a for a in actions if not isinstance(a, Say)]

    def up(self):
        """Start everybody; every child has beaten."""
        actions = self.step(Tick())
        for action in actions:
            self.step(Beat(action.slot))
        return self

    def after(self, seconds, beating=()):
        """Time passes second by second while `beating` children beat; what was done meanwhile."""
        actions = []
        while seconds > 0:
            pace = min(seconds, 1.0)
            self.clock.advance(pace)
            seconds -= pace
            for slot in beating:
                actions += self.step(Beat(slot))
            actions += self.step(Tick())
        return actions


def test_control_starts_first_then_every_worker():
    """The control child stands before there is anything to reap."""
    assert Drive(2).step(Tick()) == [Start(CONTROL, 0), Start(W0, 0), Start(W1, 0)]


@pytest.mark.parametrize(
    ("death", "cause"),
    [
        (Died(W0, signum=signal.SIGKILL), Cause.CRASHED),
        (Died(W0, signum=signal.SIGSEGV), Cause.CRASHED),
        (Died(W0, exit_code=70), Cause.CRASHED),
        (Died(W0, exit_code=0), Cause.LEFT),
    ],
)
def test_a_dead_worker_is_buried_with_its_cause_and_started_again(death, cause):
    """What it held is given back at once; the slot's next child has the next generation."""
    drive = Drive().up()
    assert drive.step(death) == [Bury(W0, 0, cause)]
    assert drive.after(1) == [Start(W0, 1)]


def test_a_dead_control_child_is_started_again_without_a_burial():
    """It holds no requests."""
    drive = Drive().up()
    assert drive.step(Died(CONTROL, signum=signal.SIGKILL)) == []
    assert drive.after(1) == [Start(CONTROL, 1)]


def test_restarts_slow_down_with_each_failure_and_recover_with_a_steady_life():
    """The wait doubles up to its maximum; a child that lived steadily starts quickly again."""
    rules = Rules(back_off_s=1, back_off_max_s=5, steady_s=30)
    drive = Drive(1, rules).up()
    waits = []
    for _ in range(4):
        drive.step(Died(W0, signum=signal.SIGKILL))
        begun = drive.clock()
        while not any(isinstance(a, Start) for a in drive.after(1, [CONTROL])):
            pass
        waits.append(drive.clock() - begun)
        drive.step(Beat(W0))
    assert waits == [1, 2, 4, 5]
    drive.after(30, [CONTROL, W0])
    drive.step(Died(W0, signum=signal.SIGKILL))
    assert drive.after(1, [CONTROL]) == [Start(W0, 5)]


def test_a_child_that_never_comes_up_ends_the_daemon():
    """Five deaths before the first beat: exit code 1, with a sentence that names slot and reason."""
    drive = Drive(1, Rules(loop_deaths=5, back_off_max_s=1))
    drive.step(Tick())
    drive.step(Beat(CONTROL))
    for _ in range(4):
        drive.step(Died(W0, exit_code=70))
        assert [type(a) for a in drive.after(1)] == [Start]
    assert drive.step(Died(W0, exit_code=70)) == [Bury(W0, 4, Cause.CRASHED), Finish()]
    assert drive.step(Died(CONTROL)) == [Exit(1)]
    assert "worker-0 died 5 times before it was up (last by exit code 70); the daemon stops" in drive.said[-1].text


def test_a_child_that_came_up_may_die_any_number_of_times():
    """One poisonous request kills a worker once for each halving; that is no crash loop."""
    drive = Drive(1).up()
    for _ in range(30):
        drive.step(Died(W0, signum=signal.SIGSEGV))
        drive.after(6, [CONTROL])
        drive.step(Beat(W0))
    assert drive.policy.stage is Stage.RUNNING


def test_early_deaths_far_apart_are_no_loop():
    """Only deaths within the window count together."""
    drive = Drive(1, Rules(loop_deaths=2, loop_window_s=60, hang_s=1000))
    drive.step(Tick())
    for _ in range(3):
        drive.step(Died(W0, exit_code=70))
        drive.after(100)
    assert drive.policy.stage is Stage.RUNNING


@pytest.mark.parametrize("code", [2, 3])
def test_an_unfit_child_ends_the_daemon_with_its_code(code):
    """No restart mends a wrong configuration: the others drain, the code is passed on."""
    drive = Drive(2).up()
    assert drive.step(Died(W0, exit_code=code)) == [Bury(W0, 0, Cause.UNFIT), Send(W1, signal.SIGTERM)]
    assert drive.step(Died(W1)) == [Bury(W1, 0, Cause.STOPPED), Finish()]
    assert drive.step(Died(CONTROL)) == [Exit(code)]


def test_an_unfit_control_child_ends_the_daemon():
    """It finds out first that a store can't be used."""
    drive = Drive(1).up()
    assert drive.step(Died(CONTROL, exit_code=2)) == [Send(W0, signal.SIGTERM)]
    assert drive.step(Died(W0)) == [Bury(W0, 0, Cause.STOPPED), Finish(), Exit(2)]


def test_a_silent_child_is_aborted_then_killed_and_not_called_crashed():
    """A hung loop is ended in two steps; its requests are no suspects."""
    drive = Drive(1, Rules(hang_s=60, abort_s=5)).up()
    assert drive.after(59, [CONTROL]) == []
    assert drive.after(1, [CONTROL]) == [Send(W0, signal.SIGABRT)]
    assert drive.after(5, [CONTROL]) == [Send(W0, signal.SIGKILL)]
    assert drive.after(100, [CONTROL]) == []
    assert drive.step(Died(W0, signum=signal.SIGKILL)) == [Bury(W0, 0, Cause.HUNG)]
    assert drive.after(1, [CONTROL]) == [Start(W0, 1)]


def test_a_child_that_beats_is_never_hung():
    """Beats push the deadline on."""
    assert Drive(1).up().after(600, [CONTROL, W0]) == []


def test_a_supervisor_that_was_stopped_itself_does_not_judge():
    """After its own stall (a laptop's sleep) silence proves nothing; it starts to count anew."""
    drive = Drive(1, Rules(hang_s=60)).up()
    drive.clock.advance(3600)
    assert drive.step(Tick()) == []
    assert drive.after(59) == []
    assert drive.after(1) == [Send(CONTROL, signal.SIGABRT), Send(W0, signal.SIGABRT)]


def test_stopping_goes_through_its_stages_each_with_its_budget():
    """TERM, INT, KILL to the workers, then the control child's last reap, then the exit."""
    rules = Rules(drain_s=30, hurry_s=5, finish_s=10)
    drive = Drive(1, rules).up()
    alive = [CONTROL, W0]
    assert drive.step(StopAsked()) == [Send(W0, signal.SIGTERM)]
    assert drive.after(29, alive) == []
    assert drive.after(1, alive) == [Send(W0, signal.SIGINT)]
    assert drive.after(4, alive) == []
    assert drive.after(1, alive) == [Send(W0, signal.SIGKILL)]
    assert drive.step(Died(W0, signum=signal.SIGKILL)) == [Bury(W0, 0, Cause.STOPPED), Finish()]
    assert drive.after(9, [CONTROL]) == []
    assert drive.after(1, [CONTROL]) == [Send(CONTROL, signal.SIGKILL)]
    assert drive.step(Died(CONTROL, signum=signal.SIGKILL)) == [Exit(0)]


def test_further_stop_requests_go_to_the_next_stage_at_once():
    """The second puts everything back, the third kills, a fourth changes nothing."""
    drive = Drive(1, Rules(again_s=0.25)).up()
    stages = []
    for _ in range(4):
        stages.append(drive.step(StopAsked()))
        drive.clock.advance(0.3)
    assert stages == [[Send(W0, signal.SIGTERM)], [Send(W0, signal.SIGINT)], [Send(W0, signal.SIGKILL)], []]


def test_stop_requests_in_the_same_moment_are_one():
    """A terminal and a service manager may both ask; that is not impatience."""
    drive = Drive(1).up()
    assert drive.step(StopAsked()) == [Send(W0, signal.SIGTERM)]
    assert drive.step(StopAsked()) == []


def test_nothing_is_restarted_while_stopping_but_control():
    """A worker that dies then stays dead; control is needed for the last reap."""
    drive = Drive(2).up()
    drive.step(StopAsked())
    assert drive.step(Died(W0, signum=signal.SIGSEGV)) == [Bury(W0, 0, Cause.CRASHED)]
    assert drive.step(Died(CONTROL, signum=signal.SIGKILL)) == []
    assert drive.after(1, [W1]) == [Start(CONTROL, 1)]


def test_a_control_child_waiting_for_its_restart_gets_it_when_the_last_worker_is_gone():
    """Open notices have one more chance; and it must not be waited for in vain."""
    drive = Drive(1).up()
    drive.step(StopAsked())
    drive.step(Died(CONTROL, signum=signal.SIGKILL))
    assert drive.step(Died(W0)) == [Bury(W0, 0, Cause.STOPPED), Start(CONTROL, 1), Finish()]
    assert drive.step(Died(CONTROL, exit_code=70)) == [Exit(0)]


def test_a_helper_is_restarted_without_a_burial_and_leaves_with_control():
    """It holds no requests: it stays until the workers are gone, then it is asked to leave, and waited for."""
    drive = Drive(1, helpers=["server"]).up()
    assert drive.step(Died("server", signum=signal.SIGKILL)) == []
    assert drive.after(1, [CONTROL, W0]) == [Start("server", 1)]
    assert drive.step(StopAsked()) == [Send(W0, signal.SIGTERM)]
    assert drive.step(Died(W0)) == [Bury(W0, 0, Cause.STOPPED), Finish(), Send("server", signal.SIGTERM)]
    assert drive.step(Died(CONTROL)) == []
    assert drive.after(5) == [Send("server", signal.SIGKILL)]
    assert drive.step(Died("server", signum=signal.SIGKILL)) == [Exit(0)]


def test_a_restart_that_is_due_later_is_dropped_by_a_stop():
    """A stop between a crash and its restart leaves nothing behind."""
    drive = Drive(1).up()
    drive.step(Died(W0, signum=signal.SIGKILL))
    assert drive.step(StopAsked()) == [Finish()]
    assert drive.step(Died(CONTROL)) == [Exit(0)]


def test_the_next_decision_is_announced():
    """Whoever drives the policy may sleep exactly until then."""
    drive = Drive(1, Rules(hang_s=60, drain_s=33)).up()
    now = drive.clock()
    assert drive.policy.next_due_s() == now + 60
    drive.step(StopAsked())
    assert drive.policy.next_due_s() == now + 33


def test_who_lives_and_how_the_others_died_is_told():
    """Up from the first beat until a death or a hang; starts and deaths by slot, whoever the child was."""
    drive = Drive(2, helpers=["server"])
    assert drive.policy.supervision() == Supervision()
    drive.step(Tick())
    assert drive.policy.supervision() == Supervision("running", [], {CONTROL: 1, "server": 1, W0: 1, W1: 1})
    for slot in (CONTROL, W0, W1):
        drive.step(Beat(slot))
    assert drive.policy.supervision().up == [CONTROL, W0, W1]
    drive.step(Died(W0, signum=signal.SIGKILL))
    drive.step(Died("server"))
    told = drive.policy.supervision()
    assert told.up == [CONTROL, W1]
    assert told.deaths == {W0: {"crashed": 1}, "server": {"left": 1}}
    drive.step(StopAsked())
    assert drive.policy.supervision().stage == "draining"
