"""Exit codes, which are a contract with scripts, and the errors that carry them."""

from __future__ import annotations

from enum import IntEnum

import click


class ExitCode(IntEnum):
    OK = 0
    FAILED_REQUESTS = 1
    USAGE = 2
    PAUSED = 3
    """Somebody has to act: address, key, budget, disk."""
    ENDED_EARLY = 4
    """Cancelled or expired."""
    INTERRUPTED = 130


class CliError(click.ClickException):
    """A sentence for stderr and an exit code; printed as ``Error: sentence``. This one: finished, but not well (1)."""

    exit_code = int(ExitCode.FAILED_REQUESTS)


class BadUsageError(CliError):
    """What the user gave cannot work."""

    exit_code = int(ExitCode.USAGE)


class NeedsPersonError(CliError):
    """Nothing is lost, but somebody has to act."""

    exit_code = int(ExitCode.PAUSED)
