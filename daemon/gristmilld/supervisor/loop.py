"""The supervisor: waits for something to happen, asks the policy what to do, does it.

One thread, no event loop, no connection to the store: the process that forks has nothing that a child must not share.
Everything it waits for is a descriptor in one `poll`: signals, heartbeats, acknowledgements of the control child, and
stdin where the daemon is to end with whoever started it. What it does not hear about, it looks up each second.
"""

from __future__ import annotations

import logging
import os
import selectors
from collections.abc import Callable
from contextlib import suppress
from typing import assert_never

import msgspec

from gristmilld import process
from gristmilld.clock import monotonic_s
from gristmilld.config import ControlSpec, DaemonConfig, HelperSpec, ServerSpec, WorkerSpec
from gristmilld.metricsdir import MetricsDir
from gristmilld.supervisor.heartbeat import Heartbeat
from gristmilld.supervisor.outbox import Outbox
from gristmilld.supervisor.policy import CONTROL, Policy
from gristmilld.supervisor.signals import STOP_SIGNALS, SignalPipe
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
    Start,
    StopAsked,
    Tick,
)

log = logging.getLogger(__name__)

SERVER = "server"
LOOK_INTERVAL_S = 1.0
"""Children and pipes are looked at this often even when nothing was heard of them."""


class Entries(msgspec.Struct, frozen=True):
    """What children run; each returns its exit code."""

    worker: Callable[[WorkerSpec], int]
    control: Callable[[ControlSpec], int]


class Serving(msgspec.Struct, frozen=True):
    """The helper that serves metrics and health.

    Attributes:
        entry: what it runs; returns its exit code.
        listen_fd: the listening socket; whoever made it closes it.
        folder: of the metrics, entered; whoever made it removes it.
    """

    entry: Callable[[ServerSpec], int]
    listen_fd: int
    folder: MetricsDir


class Helping(msgspec.Struct, frozen=True):
    """The helpers that work on the control plane's queues, one for each of `wishes`.

    Attributes:
        entry: what each runs; returns its exit code.
    """

    entry: Callable[[HelperSpec], int]
    wishes: tuple[str, ...]


class _Child(msgspec.Struct, frozen=True):
    slot: str
    pid: int
    heartbeat: Heartbeat


class Supervisor:
    """One daemon, from its first fork until every child is gone.

    `run` may be called once. It returns when all is over; a SIGTERM or SIGINT asks for that.

    Args:
        config: what the daemon was told to do.
        daemon_id: distinct for each start; begins the lease tokens of all workers.
        entries: what the children run.
        rules: the budgets; by default made from `config`.
        exit_with_parent: the end of stdin is a stop request.
        serving: the server of metrics; None is off.
        helping: the workers of the control plane; None is off.
    """

    def __init__(
        self,
        config: DaemonConfig,
        daemon_id: str,
        entries: Entries,
        *,
        rules: Rules | None = None,
        exit_with_parent: bool = False,
        serving: Serving | None = None,
        helping: Helping | None = None,
    ) -> None:
        self._config = config
        self._daemon_id = daemon_id
        self._entries = entries
        self._worker_slots = {f"worker-{number}": number for number in range(config.workers)}
        self._serving = serving
        self._helping = helping
        self._helpers = {} if helping is None else {f"rq-{wish}": wish for wish in helping.wishes}
        helpers = [*([] if serving is None else [SERVER]), *self._helpers]
        self._policy = Policy(rules or rules_of(config), list(self._worker_slots), monotonic_s(), helpers)
        self._children: dict[str, _Child] = {}
        self._outbox = Outbox()
        self._signals = SignalPipe()
        self._selector = selectors.PollSelector()
        self._parent_fds = (-1, -1)
        self._watch_stdin = exit_with_parent
        self._exit_code: int | None = None

    def run(self) -> int:
        """Supervise until everything has ended; the exit code of the daemon."""
        with self._signals, self._selector:
            # nobody writes to it: its end of file tells the children that this process is dead
            self._parent_fds = os.pipe()
            self._selector.register(self._signals.read_fd, selectors.EVENT_READ, self._on_signals)
            if self._watch_stdin:
                self._selector.register(0, selectors.EVENT_READ, self._on_stdin)
            self._step(Tick())
            while self._exit_code is None:
                self._wait()
        for fd in self._parent_fds:
            os.close(fd)
        self._outbox.detach()
        if len(self._outbox):
            log.warning("workers not reported as dead: %d; their leases run out by themselves", len(self._outbox))
        return self._exit_code

    # -- what happens

    def _wait(self) -> None:
        for key, _ in self._selector.select(self._patience_s()):
            key.data()
        for child in list(self._children.values()):
            ended = process.poll(child.pid)
            if ended is not None:
                self._on_death(child, ended)
        self._outbox.flush()
        self._step(Tick())

    def _patience_s(self) -> float:
        due_s = self._policy.next_due_s()
        return LOOK_INTERVAL_S if due_s is None else min(max(due_s - monotonic_s(), 0.0), LOOK_INTERVAL_S)

    def _on_signals(self) -> None:
        for signum in self._signals.arrived():
            if signum in STOP_SIGNALS:
                self._step(StopAsked())

    def _on_stdin(self) -> None:
        """Whatever is said there is not for us; only its end is."""
        try:
            data = os.read(0, 65536)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(0)
            self._step(StopAsked())

    def _on_beat(self, child: _Child) -> None:
        if child.heartbeat.beaten():
            self._step(Beat(child.slot))
        else:
            # the child has closed it or is about to be found dead; a poll of a closed pipe never rests
            self._selector.unregister(child.heartbeat.read_fd)

    def _on_acks(self) -> None:
        if not self._outbox.hear():
            self._selector.unregister(self._outbox.acks_fd)

    def _on_death(self, child: _Child, ended: process.Ended) -> None:
        if child.slot == CONTROL:
            self._outbox.hear()  # what it had acknowledged before it died
            self._forget(self._outbox.acks_fd)
            self._outbox.detach()
        self._forget(child.heartbeat.read_fd)
        child.heartbeat.close()
        del self._children[child.slot]
        if self._serving is not None:
            self._serving.folder.forget(child.slot)
        self._step(Died(child.slot, ended.exit_code, ended.signum))

    def _forget(self, fd: int) -> None:
        with suppress(KeyError):
            self._selector.unregister(fd)

    # -- what is done about it

    def _step(self, event: Event) -> None:
        for action in self._policy.step(event, monotonic_s()):
            self._do(action)
        if self._serving is not None:
            self._serving.folder.publish(self._policy.supervision())

    def _do(self, action: Action) -> None:
        match action:
            case Start(slot, generation):
                self._start(slot, generation)
            case Send(slot, signum):
                if slot in self._children:
                    process.send(self._children[slot].pid, signum)
            case Bury(slot, generation, cause):
                prefix = f"{self._daemon_id}.{self._worker_slots[slot]}.{generation}"
                self._outbox.add(prefix, crashed=cause is Cause.CRASHED)
            case Finish():
                self._outbox.finish()
            case Exit(code):
                self._exit_code = code
            case Say(level, text):
                log.log(logging.getLevelNamesMapping()[level.upper()], text)
            case _:
                assert_never(action)

    def _start(self, slot: str, generation: int) -> None:
        heartbeat = None
        try:
            heartbeat = Heartbeat()
            pid = self._fork(slot, generation, heartbeat)
        except OSError as error:
            log.warning("%s can't be started: %s", slot, error)
            if heartbeat is not None:
                heartbeat.close()
            self._step(Died(slot, process.EXIT_SOFTWARE))
            return
        heartbeat.keep_reader()
        child = _Child(slot, pid, heartbeat)
        self._children[slot] = child
        self._selector.register(heartbeat.read_fd, selectors.EVENT_READ, lambda: self._on_beat(child))
        log.debug("%s started, generation %d, pid %d", slot, generation, pid)

    def _fork(self, slot: str, generation: int, heartbeat: Heartbeat) -> int:
        if slot == CONTROL:
            return self._fork_control(generation, heartbeat)
        if slot == SERVER:
            return self._fork_server(generation, heartbeat)
        if slot in self._helpers:
            return self._fork_helper(slot, generation, heartbeat)
        return self._fork_worker(slot, generation, heartbeat)

    def _fork_worker(self, slot: str, generation: int, heartbeat: Heartbeat) -> int:
        spec = WorkerSpec(
            config=self._config,
            daemon_id=self._daemon_id,
            slot=self._worker_slots[slot],
            generation=generation,
            heartbeat_fd=heartbeat.write_fd,
            parent_fd=self._parent_fds[0],
        )
        keep = {spec.heartbeat_fd, spec.parent_fd}
        return process.fork(lambda: self._entries.worker(spec), f"gm-{slot}", keep=keep)

    def _fork_server(self, generation: int, heartbeat: Heartbeat) -> int:
        serving = self._serving
        assert serving is not None, "there is no slot for a server where metrics are off"
        spec = ServerSpec(
            config=self._config,
            daemon_id=self._daemon_id,
            generation=generation,
            heartbeat_fd=heartbeat.write_fd,
            parent_fd=self._parent_fds[0],
            listen_fd=serving.listen_fd,
        )
        keep = {spec.heartbeat_fd, spec.parent_fd, spec.listen_fd}
        return process.fork(lambda: serving.entry(spec), "gm-server", keep=keep)

    def _fork_helper(self, slot: str, generation: int, heartbeat: Heartbeat) -> int:
        helping = self._helping
        assert helping is not None, "there is no slot for a helper where the control plane is off"
        spec = HelperSpec(
            config=self._config,
            daemon_id=self._daemon_id,
            wish=self._helpers[slot],
            generation=generation,
            heartbeat_fd=heartbeat.write_fd,
            parent_fd=self._parent_fds[0],
        )
        return process.fork(lambda: helping.entry(spec), f"gm-{slot}", keep={spec.heartbeat_fd, spec.parent_fd})

    def _fork_control(self, generation: int, heartbeat: Heartbeat) -> int:
        notices = os.pipe()
        try:
            acks = os.pipe()
        except OSError:
            _close(*notices)
            raise
        spec = ControlSpec(
            config=self._config,
            daemon_id=self._daemon_id,
            generation=generation,
            heartbeat_fd=heartbeat.write_fd,
            parent_fd=self._parent_fds[0],
            notices_fd=notices[0],
            acks_fd=acks[1],
        )
        keep = {spec.heartbeat_fd, spec.parent_fd, spec.notices_fd, spec.acks_fd}
        try:
            pid = process.fork(lambda: self._entries.control(spec), "gm-control", keep=keep)
        except OSError:
            _close(*notices, *acks)
            raise
        _close(notices[0], acks[1])
        self._outbox.attach(notices[1], acks[0])
        self._selector.register(acks[0], selectors.EVENT_READ, self._on_acks)
        return pid


def rules_of(config: DaemonConfig) -> Rules:
    """The budgets that `config` asks for; a worker needs a moment beyond its drain to put things back."""
    return Rules(drain_s=config.drain_s + 3.0, hang_s=config.hang_s)


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
