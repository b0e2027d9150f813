"""The life of a job: states, events, and the one transition table.

A job is *created* when its keys stand and becomes *running* at once; *paused* holds back claims but nothing else:
records of what is in flight are still accepted. *cancelling* accepts terminal records of what is in flight, hands out
nothing new, and settles into *cancelled* when nothing is in flight or a grace has passed. Finished work is kept in
every state but *deleting*.

The Lua script ``ctl`` walks the same table; a test replays every (state, event) pair through both.
"""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    COMPLETE = "complete"
    DELETING = "deleting"


class PauseReason(StrEnum):
    """Why a job is paused: who has to act before `resume` helps."""

    USER = "user"
    CONFIG = "config"
    BUDGET = "budget"
    STORE = "store"


class Event(StrEnum):
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    SETTLE = "settle"
    """Nothing is in flight any more, or the grace has passed."""
    EXPIRE = "expire"
    COMPLETE = "complete"
    DELETE = "delete"


TERMINAL = frozenset({JobState.CANCELLED, JobState.EXPIRED, JobState.COMPLETE})
"""No request of such a job will ever be sent again."""

_S, _E = JobState, Event
TRANSITIONS: dict[tuple[JobState, Event], JobState] = {
    (_S.CREATED, _E.START): _S.RUNNING,
    (_S.CREATED, _E.CANCEL): _S.CANCELLING,
    (_S.CREATED, _E.DELETE): _S.DELETING,
    (_S.RUNNING, _E.PAUSE): _S.PAUSED,
    (_S.RUNNING, _E.CANCEL): _S.CANCELLING,
    (_S.RUNNING, _E.EXPIRE): _S.EXPIRED,
    (_S.RUNNING, _E.COMPLETE): _S.COMPLETE,
    (_S.RUNNING, _E.DELETE): _S.DELETING,
    (_S.PAUSED, _E.PAUSE): _S.PAUSED,  # a newer reason replaces the older one
    (_S.PAUSED, _E.RESUME): _S.RUNNING,
    (_S.PAUSED, _E.CANCEL): _S.CANCELLING,
    (_S.PAUSED, _E.EXPIRE): _S.EXPIRED,
    (_S.PAUSED, _E.COMPLETE): _S.COMPLETE,  # the last record may arrive while paused
    (_S.PAUSED, _E.DELETE): _S.DELETING,
    (_S.CANCELLING, _E.SETTLE): _S.CANCELLED,
    (_S.CANCELLING, _E.COMPLETE): _S.COMPLETE,  # everything had been answered after all
    (_S.CANCELLING, _E.DELETE): _S.DELETING,
    (_S.CANCELLED, _E.DELETE): _S.DELETING,
    (_S.EXPIRED, _E.DELETE): _S.DELETING,
    (_S.COMPLETE, _E.DELETE): _S.DELETING,
    (_S.DELETING, _E.DELETE): _S.DELETING,
}


def next_state(state: JobState, event: Event) -> JobState | None:
    """The state after `event`, or None where the event does not apply (callers treat that as "already so")."""
    return TRANSITIONS.get((state, event))
