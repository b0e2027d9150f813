"""The command ``gristmilld``.

``up`` becomes the supervisor in this very process: nothing here starts a thread, a loop or a connection before the
first fork.

Exit codes: 0 stopped as asked; 1 a child died again and again before it was up; 2 a wrong option, setting or store;
3 refused from outside, a person has to act.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gristmill import __version__, stdio
from gristmilld.config import DEFAULT_METRICS_PORT, EXIT_USAGE, DaemonConfig

if TYPE_CHECKING:
    from gristmilld.supervisor.loop import Helping, Serving

log = logging.getLogger(__name__)

NEEDED = ("aiohttp", "prometheus_client", "rq")
PRELOADED = ("asyncio", "pybase64", "redis.asyncio", "uvloop", "gristmilld.worker.main")
"""Imported before the first fork, so that children share the pages and a restart takes no time. None starts a thread
or opens a file when imported."""


class _Commands(click.Group):
    """Imports a command only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), "standin"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "standin":
            return super().get_command(ctx, cmd_name)
        _require_extra()
        from gristmilld.engine.standin import standin_command

        return standin_command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gristmilld")
def main() -> None:
    """The daemon that takes requests from the queue and sends them to model servers."""
    stdio.repair()


_SETTINGS = (
    click.option("--config", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                 help="Settings and endpoints, as TOML; see the documentation."),
    click.option("--redis", metavar="URL",
                 help="The store, redis://, rediss://, unix://, redis+sentinel:// or redis+cluster:// "
                 "(env GRISTMILL_REDIS_URL); without it, the embedded store of --state-dir."),
    click.option("-e", "--endpoint", "endpoints", multiple=True, metavar="URL|NAME",
                 help="A model server, or the name of a configured one; may be repeated."),
    click.option("--workers", type=click.IntRange(1, 1024),
                 help="Worker processes; by default one per core, at most 8."),
    click.option("--concurrency", type=click.IntRange(1, 65_536),
                 help="Requests in flight per worker; 256 by default."),
    click.option("--pool", metavar="NAME", help="Work only on jobs of this pool."),
    click.option("--allow-root", "allowed_roots", multiple=True, metavar="DIR",
                 help="A folder beneath which inputs and pictures may be read, and results written; may be repeated."),
    click.option("--control-redis", metavar="URL",
                 help="Store of the control plane's queues (RQ), where that is another one "
                 "(env GRISTMILL_CONTROL_REDIS_URL)."),
    click.option("--no-control", is_flag=True, help="Leave feeding, exporting and webhooks to other daemons."),
    click.option("--metrics-port", type=click.IntRange(0, 65_535),
                 help="Serve /metrics and /readyz there; 9464 by default, off with --exit-with-parent."),
    click.option("--metrics-host", metavar="HOST", help="The address for them; 127.0.0.1 by default."),
    click.option("--no-metrics", is_flag=True, help="Serve none of them."),
    click.option("--state-dir", metavar="DIR", help="Where the embedded store lies."),
)  # fmt: skip
"""Options of every command that has the daemon's settings; `up` has more."""


def _settings(function: Callable[..., None]) -> Callable[..., None]:
    return reduce(lambda decorated, option: option(decorated), reversed(_SETTINGS), function)


@main.command()
@_settings
@click.option("--exit-with-parent", is_flag=True, help="Stop at the end of stdin, as on SIGTERM.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="For people (the default) or for machines.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="The least that is logged.")
def up(exit_with_parent: bool, **given: Any) -> None:
    """Run supervisor, workers and control until told to stop.

    SIGTERM or Ctrl-C stops: workers finish what is in flight within the drain budget and put the rest back. A second
    one puts everything back at once; a third kills. SIGHUP is ignored: changed settings take a restart.
    """
    from gristmilld.settings import Flags, SettingsError, load

    try:
        config = load(Flags(**given), os.environ)
        _require_extra()
        _fit_open_files(config)
    except SettingsError as error:
        raise _Refusal(str(error)) from error
    sys.exit(_run(config, exit_with_parent=exit_with_parent))


@main.command()
@_settings
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def doctor(as_json: bool, **given: Any) -> None:
    """Check everything that `up` with the same options needs, and say how to mend what is wrong.

    Store (reachable, version, eviction, log, memory, latency, clock), endpoints (reachable, key, models, metrics), open
    files, disk, folders, key files, libraries, the port of the metrics. Nothing is changed but one key of the store,
    which lives for a second. Each line is ok, warn (it works, but is unsafe, slow or about to run out) or fail (the
    daemon does not start or can't work).

    Exit codes: 0 all is well; 1 something is to be warned of; 2 something fails, or a wrong option.
    """
    import json

    from gristmilld.doctor import finding
    from gristmilld.doctor.examination import examine
    from gristmilld.settings import Flags

    found = examine(Flags(**given), os.environ)
    if as_json:
        click.echo(json.dumps(finding.to_json(found)))
    else:
        colours = {finding.Level.WARN: "yellow", finding.Level.FAIL: "red"}
        for level, line in finding.lines(found):
            click.secho(line, fg=colours.get(level))
        click.echo(finding.conclusion(found))
    sys.exit(finding.worst(found))


class _Refusal(click.ClickException):
    """A setting, or what is installed, doesn't do: one sentence, and nothing has been started."""

    exit_code = EXIT_USAGE


def _require_extra() -> None:
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        raise _Refusal("the daemon's libraries are not installed: pip install 'gristmill[daemon]'")


def _fit_open_files(config: DaemonConfig) -> None:
    from gristmilld.supervisor.limits import explain_misfit, raise_open_files

    misfit = explain_misfit(config.concurrency, raise_open_files())
    if misfit:
        raise _Refusal(misfit)


def _run(config: DaemonConfig, *, exit_with_parent: bool) -> int:
    """Open the embedded store where no other is given, then supervise; the exit code."""
    from gristmill.embedded import EmbeddedStore, EmbeddedStoreError
    from gristmilld import logs
    from gristmilld.control.main import run_control
    from gristmilld.control.rqstore import why_none
    from gristmilld.supervisor.loop import Entries, Supervisor

    logs.set_up("supervisor", log_format=config.log_format, level=config.log_level)
    for name in PRELOADED:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    with ExitStack() as stack:
        revive = None
        if not config.redis:
            try:
                store = stack.enter_context(EmbeddedStore.open(Path(config.state_dir)))
            except EmbeddedStoreError as error:
                raise _Refusal(str(error)) from error
            config, revive = msgspec.structs.replace(config, redis=store.url), store.revive
        _introduce(config)
        if exit_with_parent:  # whoever started it looks after its job
            config = msgspec.structs.replace(config, control=False)
        if lacks := why_none(config):
            log.warning("%s", lacks)
            config = msgspec.structs.replace(config, control=False)
        entries = Entries(worker=_work, control=partial(run_control, revive=revive))
        daemon_id = f"d{secrets.token_hex(5)}"
        serving = _open_metrics(config, daemon_id, stack, by_default=not exit_with_parent)
        helping = _control_plane() if config.control else None
        supervisor = Supervisor(
            config, daemon_id, entries, exit_with_parent=exit_with_parent, serving=serving, helping=helping
        )
        return supervisor.run()


def _open_metrics(config: DaemonConfig, daemon_id: str, stack: ExitStack, *, by_default: bool) -> Serving | None:
    """Take the port and make the folder of the metrics; `stack` gives them back.

    Where nobody asked for a port, a default one that is in use is only a warning: a second daemon of this machine is
    no mistake.
    """
    from gristmilld import metricsdir
    from gristmilld.server.listen import ListenError, listen
    from gristmilld.supervisor.loop import Serving

    os.environ.pop(metricsdir.ENV, None)  # somebody else's folder is not ours to write to
    asked = config.metrics_port is not None
    if not config.metrics or not (asked or by_default):
        return None
    try:
        port = config.metrics_port if config.metrics_port is not None else DEFAULT_METRICS_PORT
        socket = stack.enter_context(listen(config.metrics_host, port))
        folder = metricsdir.MetricsDir.create(config.state_dir, daemon_id)
    except (ListenError, OSError) as error:
        text = str(error) if isinstance(error, ListenError) else f"metrics can't be kept in {config.state_dir}: {error}"
        if asked:
            raise _Refusal(text) from error
        log.warning("no metrics: %s", text)
        return None
    stack.callback(folder.remove)
    folder.enter()
    log.info("metrics are served on %s port %d", *socket.getsockname()[:2])
    return Serving(_serve, socket.fileno(), folder)


def _control_plane() -> Helping:
    from gristmill.queue.wishes import Wish
    from gristmilld.supervisor.loop import Helping

    for name in ("rq", "gristmilld.control.rqworker"):  # as `PRELOADED`
        importlib.import_module(name)
    return Helping(_help, tuple(Wish))


def _introduce(config: DaemonConfig) -> None:
    """Say what starts, so that a wrong endpoint or store is seen at once."""
    from gristmill.queue.store import shown

    names = ", ".join(endpoint.name for endpoint in config.endpoints)
    log.info(
        "gristmilld %s: %d workers with %d requests each, pool %s, endpoints %s, store %s",
        __version__, config.workers, config.concurrency, config.pool, names, shown(config.redis),
    )  # fmt: skip


def _work(spec: Any) -> int:
    """Runs in a worker alone: what it imports may open files that no two processes should share."""
    from gristmilld.worker.main import run_worker

    return run_worker(spec)


def _serve(spec: Any) -> int:
    """Runs in the server alone, as `_work`."""
    from gristmilld.server.main import run_server

    return run_server(spec)


def _help(spec: Any) -> int:
    """Runs in an RQ worker alone, as `_work`."""
    from gristmilld.control.rqworker import run_rq_worker

    return run_rq_worker(spec)
