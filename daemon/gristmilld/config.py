"""What the daemon was told to do: plain values, complete and checked before anything starts.

`gristmilld.settings` makes them from the file, the flags and the environment. Keys are `Secret`s: they show in no repr,
no log and no traceback, and they can't be serialised, so none can reach the store by accident.
"""

from __future__ import annotations

import os
from typing import Literal, NoReturn

import msgspec

DEFAULT_CONCURRENCY = 256
MAX_DEFAULT_WORKERS = 8
DEFAULT_METRICS_PORT = 9464

EXIT_USAGE = 2
"""A wrong setting, or a store that can't be used as it is set up."""
EXIT_SETUP = 3
"""Refused from outside (a key, a password, a full disk): a person has to act."""
BOOT_FAILURES = frozenset({EXIT_USAGE, EXIT_SETUP})
"""Exit codes of a child that no restart can mend: the daemon stops with the same code."""


class Secret:
    """A key; `reveal` is the one way to its text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the one header it belongs in."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is never serialised")


class EndpointConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One model server.

    Attributes:
        name: what records, metrics and ``-e`` call it.
        url: its base URL, normalised; a request's path is appended.
        key: sent as a bearer token to this scheme, host and port alone.
        max_in_flight: most requests in flight to it from one worker; 0 is unbounded.
        ca_file: certificates to trust instead of the system's.
        insecure: don't verify its certificate.
        proxy: URL of an HTTP proxy to reach it by.
        aiohttp: speak to it through aiohttp's client instead of our own connections, at some three times the cost.
    """

    name: str
    url: str
    key: Secret | None = None
    max_in_flight: int = 0
    ca_file: str | None = None
    insecure: bool = False
    proxy: str | None = None
    aiohttp: bool = False

    def __repr__(self) -> str:
        return f"EndpointConfig(name={self.name!r}, url={self.url!r})"


class PlainConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a daemon that mean the same in the file and in the checked configuration.

    Attributes:
        pool: works only on jobs of this pool.
        concurrency: requests in flight per worker.
        in_flight_bytes: most bytes of frames and pictures that a worker holds at a time.
        lease_ttl_s: a worker's claim on its requests lives so long without a renewal.
        drain_s: a stop waits so long for requests in flight before they are put back.
        hang_s: a process whose loop is silent for so long is ended.
        stalled_after_s: a job of which nothing has finished for so long is reported, with what it waits for.
        allowed_roots: folders beneath which pictures may be read by reference, inputs read and results written; none
            by default.
        metrics: False serves none, whatever the port.
        metrics_host: where the metrics are served.
        metrics_port: None leaves it to the command: `DEFAULT_METRICS_PORT` for a daemon that stands for itself, no
            metrics for one that ends with whoever started it.
        control: run the control plane: feeding, exporting and webhooks for jobs that wish it.
        log_format: ``text`` for people, ``json`` for machines.
        log_level: the least severity that is logged.
    """

    pool: str = "default"
    concurrency: int = DEFAULT_CONCURRENCY
    in_flight_bytes: int = 512 << 20
    lease_ttl_s: float = 30.0
    drain_s: float = 30.0
    hang_s: float = 60.0
    stalled_after_s: float = 120.0
    allowed_roots: list[str] = []
    metrics: bool = True
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    control: bool = True
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class DaemonConfig(PlainConfig, frozen=True, kw_only=True):
    """One daemon: its supervisor, its control process and its workers; see also `PlainConfig`.

    Attributes:
        redis: URL of the store; may hold a password, so the repr leaves it out.
        endpoints: where requests go; names are distinct.
        workers: worker processes.
        control_redis: URL of the store of RQ's keys; empty is `redis`. May hold a password, as that.
        webhook_secret: signs webhooks; without it none is called.
        webhook_private: webhooks may have private addresses.
        state_dir: the embedded store's and the daemon's own files.
    """

    redis: str
    endpoints: list[EndpointConfig]
    workers: int = 1
    control_redis: str = ""
    webhook_secret: Secret | None = None
    webhook_private: bool = False
    state_dir: str = ""

    def __repr__(self) -> str:
        names = [e.name for e in self.endpoints]
        return f"DaemonConfig(pool={self.pool!r}, workers={self.workers}, endpoints={names})"


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a forked worker needs to know.

    Attributes:
        config: of the whole daemon.
        daemon_id: distinct for each start of a daemon.
        slot: the worker's place, from 0; a restarted worker keeps it.
        generation: counts the starts of this slot, from 0.
        heartbeat_fd: the worker's loop writes one byte to it at least each second; silence means hung.
        parent_fd: reads end of file once the supervisor is dead; the worker then quits at once.

    SIGTERM drains within `config.drain_s` and exits 0. A second SIGTERM, or SIGINT, puts everything back and exits.
    """

    config: DaemonConfig
    daemon_id: str
    slot: int
    generation: int
    heartbeat_fd: int
    parent_fd: int

    @property
    def token_prefix(self) -> str:
        """Every lease token of this process is this, a dot, and a number."""
        return f"{self.daemon_id}.{self.slot}.{self.generation}"


class ControlSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the forked control process needs to know; `heartbeat_fd` and `parent_fd` as in `WorkerSpec`.

    Attributes:
        generation: counts its starts, from 0.
        notices_fd: reads notices of dead workers, one JSON line each; end of file asks for the last reap and exit 0.
        acks_fd: takes the number of each notice that has been acted on, one line each.
    """

    config: DaemonConfig
    daemon_id: str
    generation: int
    heartbeat_fd: int
    parent_fd: int
    notices_fd: int
    acks_fd: int


class ServerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the forked server of metrics and health needs to know; `heartbeat_fd` and `parent_fd` as in `WorkerSpec`.

    Attributes:
        generation: counts its starts, from 0.
        listen_fd: the listening socket, made by the supervisor, so that a restarted server keeps the port.

    SIGTERM and SIGINT end it with exit code 0.
    """

    config: DaemonConfig
    daemon_id: str
    generation: int
    heartbeat_fd: int
    parent_fd: int
    listen_fd: int


class HelperSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a forked RQ worker needs to know; `heartbeat_fd` and `parent_fd` as in `WorkerSpec`.

    Attributes:
        wish: whose queue it works on (`gristmill.queue.wishes.Wish`).
        generation: counts its starts, from 0.

    SIGTERM has its job put down and ends it with exit code 0.
    """

    config: DaemonConfig
    daemon_id: str
    wish: str
    generation: int
    heartbeat_fd: int
    parent_fd: int


def default_workers() -> int:
    """As many as there are cores that this process may use, up to 8."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MAX_DEFAULT_WORKERS)
