"""All checks in the order in which a person would mend what they find."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gristmilld.doctor import endpoints, machine, store
from gristmilld.doctor.finding import Finding, fail, ok
from gristmilld.settings import Flags, SettingsError, Survey, survey


def examine(flags: Flags, env: Mapping[str, str]) -> list[Finding]:
    """What there is to say of this machine, this store and these endpoints; takes some ten seconds at most for each
    that does not answer."""
    surveyed = survey(flags, env)
    config = surveyed.config
    return [
        *machine.versions(),
        *_settings(surveyed),
        *machine.config_file(flags.config, config.redis),
        *machine.key_files(surveyed.key_files),
        machine.open_files(config.concurrency),
        *machine.state_dir(config),
        *machine.roots(config),
        machine.metrics_port(config),
        *asyncio.run(store.examine(config)),
        *endpoints.examine(config.endpoints),
    ]


def _settings(surveyed: Survey) -> list[Finding]:
    config = surveyed.config
    if surveyed.errors:
        return [_error(error) for error in surveyed.errors]
    names = ", ".join(endpoint.name for endpoint in config.endpoints)
    return [
        ok(
            "settings",
            f"{config.workers} workers with {config.concurrency} requests each, pool {config.pool}, endpoints {names}",
        )
    ]


def _error(error: SettingsError) -> Finding:
    return fail("settings", str(error), "mend it: `gristmilld up` refuses to start")
