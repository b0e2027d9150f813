"""This machine: libraries, open files, disk, folders, key files, the port of the metrics.

What is asked of the system (`os.statvfs`, `resource.getrlimit`, stat) is asked of it directly and judged by pure
functions, which the tests call with numbers that no machine has.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from gristmill import __version__
from gristmilld.config import DEFAULT_METRICS_PORT, DaemonConfig
from gristmilld.doctor.finding import Finding, fail, ok, warn
from gristmilld.server.listen import ListenError, listen
from gristmilld.supervisor.limits import SPARE_FILES, explain_misfit, raise_open_files

LITTLE_DISK_BYTES = 1 << 30
NO_DISK_BYTES = 64 << 20
_NEEDED = ("aiohttp", "prometheus_client")
_FASTER = {"uvloop": "a third of the workers' CPU", "hiredis": "most of what reading from the store costs"}


def versions() -> list[Finding]:
    """What is installed; the daemon needs some of it and is slower without the rest."""
    have = {name: _version(name) for name in (*_NEEDED, "redis", *_FASTER)}
    named = ", ".join(f"{name} {version}" for name, version in have.items() if version)
    python = f"Python {platform.python_version()}"
    found = [ok("versions", f"gristmill {__version__}, {python}, {named}")]
    if any(have[name] is None for name in _NEEDED):
        found = [fail("versions", "the daemon's libraries are not installed", "pip install 'gristmill[daemon]'")]
    found += [
        warn("versions", f"{name} is not installed: it saves {worth}", f"pip install {name}")
        for name, worth in _FASTER.items()
        if have[name] is None
    ]
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def open_files(concurrency: int) -> Finding:
    """Whether a worker may have all its connections open."""
    limit = raise_open_files()
    misfit = explain_misfit(concurrency, limit)
    if misfit:
        text, _, fix = misfit.partition(": ")
        return fail("open files", text, fix)
    return ok("open files", f"a worker needs {concurrency + SPARE_FILES:,}, the limit is {limit:,}")


# -- disk and folders


def state_dir(config: DaemonConfig) -> Iterator[Finding]:
    """Whether the state folder can be written to, is private, and has room."""
    folder = Path(config.state_dir).expanduser().absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        yield fail("state folder", f"{existing} can't be written to", "give another with --state-dir, or chown it")
        return
    if existing == folder and folder.stat().st_mode & 0o077:
        yield warn("state folder", f"others may look into {folder}, where prompts lie", f"chmod 700 {folder}")
    room = os.statvfs(existing)
    yield disk(str(folder), room.f_bavail * room.f_frsize, room.f_favail if room.f_files else None)


def disk(folder: str, free_bytes: int, free_files: int | None) -> Finding:
    """What it means that the file system of `folder` has so much room; `free_files` None is no limit. PURE."""
    fix = "free some, or give another folder with --state-dir"
    if free_bytes < NO_DISK_BYTES:
        return fail("disk", f"{free_bytes / (1 << 20):.0f} MiB free for {folder}", fix)
    if free_files is not None and free_files < 100:
        return fail("disk", f"no more files can be made in {folder} (no inodes left)", fix)
    if free_bytes < LITTLE_DISK_BYTES:
        return warn("disk", f"{free_bytes / (1 << 20):.0f} MiB free for {folder}", fix)
    return ok("disk", f"{free_bytes / (1 << 30):.1f} GiB free for {folder}")


def roots(config: DaemonConfig) -> Iterator[Finding]:
    """Whether pictures can be read beneath the allowed folders; those that don't exist are an error of the settings."""
    for root in config.allowed_roots:
        if not os.access(root, os.R_OK | os.X_OK):
            yield fail("allowed roots", f"{root} can't be read by this user", "chmod or chown it, or leave it out")
        elif root == "/":
            yield warn(
                "allowed roots",
                "/ is allowed: whoever can write the store can have every file sent that this user may read",
                "allow only the folders with pictures",
            )
        else:
            yield ok("allowed roots", f"pictures may be read beneath {root}")


# -- secrets


def key_files(files: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the files of keys can be read by us and by nobody else. `files`: endpoint name -> path."""
    for name, path in files.items():
        try:
            mode = Path(path).stat().st_mode
        except OSError:
            continue  # an error of the settings, told already
        yield _secrecy(f"key of {name}", path, mode)


def config_file(path: Path | None, redis: str) -> Iterator[Finding]:
    """A configuration file that holds the store's password is a key file, too."""
    if path is not None and path.is_file() and "@" in redis and redis in path.read_text("utf-8", "replace"):
        yield _secrecy("settings file", str(path), path.stat().st_mode)


def _secrecy(check: str, path: str, mode: int) -> Finding:
    readers = [who for who, bit in (("its group", stat.S_IRGRP), ("everybody", stat.S_IROTH)) if mode & bit]
    if readers:
        return warn(check, f"{path} can be read by {readers[-1]}", f"chmod 600 {path}")
    return ok(check, f"{path} is for its owner alone")


# -- the port


def metrics_port(config: DaemonConfig) -> Finding:
    """Whether the port of the metrics is free; the default one may be taken, as by a second daemon."""
    if not config.metrics:
        return ok("metrics", "none are served")
    asked = config.metrics_port is not None
    port = config.metrics_port if config.metrics_port is not None else DEFAULT_METRICS_PORT
    try:
        listen(config.metrics_host, port).close()
    except ListenError as error:
        text, _, fix = str(error).partition(": ")
        fix = fix or "give another with --metrics-port PORT"
        return fail("metrics", text, fix) if asked else warn("metrics", f"{text}; `up` goes on without", fix)
    return ok("metrics", f"port {port} of {config.metrics_host} is free")
