"""Settings: the file, the flags and the environment become one checked `DaemonConfig`.

A flag goes before the environment, the environment before the file, the file before the default. ``-e`` replaces the
file's endpoints; where it names one of them, by name or URL, that one is meant, with its own key. The environment's
endpoint (``OPENAI_BASE_URL``) is used when neither names any. The environment's key (``OPENAI_API_KEY``) goes to the
endpoints of ``-e`` and of the environment alone: whoever wrote the file has said there which key goes where.

The file is TOML; its top level has the fields of `PlainConfig` and those of `_File`, and a table for each endpoint::

    redis = "redis://store:6379/0"
    workers = 4

    [endpoints.local]
    url = "http://localhost:8000/v1"
    key_env = "LOCAL_KEY"
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from gristmill.contract.storeurl import Cluster, parse_store_url
from gristmill.contract.url import normalise_base_url
from gristmill.embedded import default_state_dir
from gristmilld.config import DaemonConfig, EndpointConfig, PlainConfig, Secret, default_workers

REDIS_ENV = "GRISTMILL_REDIS_URL"
CONTROL_REDIS_ENV = "GRISTMILL_CONTROL_REDIS_URL"
BASE_URL_ENVS = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
KEY_ENV = "OPENAI_API_KEY"

T = TypeVar("T")

_POOL_CHARS = frozenset(string.ascii_letters + string.digits + "-_.")


class SettingsError(ValueError):
    """A setting is wrong: one sentence that says which, where and how to mend it. It holds no key or password."""


class Survey(msgspec.Struct, frozen=True):
    """The configuration as far as it can be had, and everything that is wrong with it, in the order of the file.

    Attributes:
        config: without the endpoints and roots that are wrong.
        errors: why `load` would refuse it; none when it would not.
        key_files: endpoint name -> the file that its key is read from.
    """

    config: DaemonConfig
    errors: list[SettingsError]
    key_files: dict[str, str]


class _EndpointTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[endpoints.NAME]``: `EndpointConfig`, with the place of the key instead of the key."""

    url: str
    key_env: str | None = None
    key_file: str | None = None
    max_in_flight: int = 0
    ca_file: str | None = None
    insecure: bool = False
    proxy: str | None = None
    aiohttp: bool = False


class _WebhookTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[webhooks]``: where the secret lies that signs them, and whether `private` addresses may be called."""

    secret_env: str | None = None
    secret_file: str | None = None
    private: bool = False


class _File(PlainConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file may hold; None where it says nothing and a default depends on the machine."""

    redis: str | None = None
    workers: int | None = None
    control_redis: str | None = None
    state_dir: str | None = None
    webhooks: _WebhookTable = _WebhookTable()
    endpoints: dict[str, _EndpointTable] = msgspec.field(default_factory=dict)


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says; None or empty where it says nothing."""

    config: Path | None = None
    redis: str | None = None
    endpoints: Sequence[str] = ()
    workers: int | None = None
    concurrency: int | None = None
    pool: str | None = None
    allowed_roots: Sequence[str] = ()
    no_control: bool = False
    control_redis: str | None = None
    no_metrics: bool = False
    metrics_host: str | None = None
    metrics_port: int | None = None
    state_dir: str | None = None
    log_format: Literal["text", "json"] | None = None
    log_level: Literal["debug", "info", "warning", "error"] | None = None


def load(flags: Flags, env: Mapping[str, str]) -> DaemonConfig:
    """The daemon's configuration; its `redis` is empty where the embedded store is to be used.

    Raises:
        SettingsError: something is wrong or missing.
    """
    found = survey(flags, env)
    if found.errors:
        raise found.errors[0]
    return found.config


def survey(flags: Flags, env: Mapping[str, str]) -> Survey:
    """As `load`, but never raises: whoever wants to mend a configuration wants to know everything at once."""
    errors: list[SettingsError] = []
    file = _File()
    if flags.config:
        try:
            file = _read(flags.config)
        except SettingsError as error:
            errors.append(error)
    unread = bool(errors)  # then nothing is known of its endpoints
    config = DaemonConfig(
        **_plain(file, flags, errors),
        redis=flags.redis or env.get(REDIS_ENV) or file.redis or "",
        endpoints=_endpoints(flags.endpoints, file.endpoints, env, errors, may_lack=unread),
        workers=_first(flags.workers, file.workers, default_workers()),
        control_redis=flags.control_redis or env.get(CONTROL_REDIS_ENV) or file.control_redis or "",
        webhook_secret=_webhook_secret(file.webhooks, env, errors),
        webhook_private=file.webhooks.private,
        state_dir=flags.state_dir or file.state_dir or str(default_state_dir()),
    )
    errors += _wrong(config)
    return Survey(config, errors, {name: t.key_file for name, t in file.endpoints.items() if t.key_file is not None})


def _plain(file: _File, flags: Flags, errors: list[SettingsError]) -> dict[str, Any]:
    """The fields of `PlainConfig`: what a flag says, else the file's."""
    said = {name: getattr(flags, name, None) for name in PlainConfig.__struct_fields__}
    plain = {name: getattr(file, name) if value is None else value for name, value in said.items()}
    return plain | {
        "allowed_roots": _folders((*file.allowed_roots, *flags.allowed_roots), errors),
        "metrics": file.metrics and not flags.no_metrics,
        "control": file.control and not flags.no_control,
    }


def _first(*values: T | None) -> T:
    """The first that is not None; the last is not."""
    return next(value for value in values if value is not None)


def _read(path: Path) -> _File:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise SettingsError(f"cannot read the configuration {path}: {error.strerror}; is the path right?") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SettingsError(f"the configuration {path} is wrong: {error}") from error


# -- endpoints


def _endpoints(
    chosen: Sequence[str],
    tables: Mapping[str, _EndpointTable],
    env: Mapping[str, str],
    errors: list[SettingsError],
    *,
    may_lack: bool = False,
) -> list[EndpointConfig]:
    """The endpoints that can be used; what is wrong is added to `errors`, and so is their lack unless it `may_lack`."""
    before = len(errors)
    configured = _each(tables, lambda name: _from_table(name, tables[name], env), errors)
    if chosen:
        known = [text for text in chosen if text not in tables or text in configured]  # the others are told already
        endpoints = _each(known, lambda text: _choose(text, configured, env), errors)
    elif tables:
        endpoints = configured
    else:
        given = [name for name in BASE_URL_ENVS if env.get(name)][:1]
        endpoints = _each(given, lambda name: _from_url(env[name], env, name), errors)
    if not endpoints and len(errors) == before and not may_lack:
        errors.append(
            SettingsError(
                "no endpoint is given: say where the model server is with -e http://HOST:PORT, "
                "OPENAI_BASE_URL, or [endpoints.NAME] in the configuration"
            )
        )
    return _distinct(list(endpoints.values()))


def _each(names: Iterable[str], make: Callable[[str], T], errors: list[SettingsError]) -> dict[str, T]:
    """What `make` makes of each name; its errors are gathered."""
    made: dict[str, T] = {}
    for name in names:
        try:
            made[name] = make(name)
        except SettingsError as error:
            errors.append(error)
    return made


def _distinct(endpoints: list[EndpointConfig]) -> list[EndpointConfig]:
    """Each endpoint once, each name once: ``http://h`` and ``https://h`` would both be called ``h``."""
    named: dict[str, EndpointConfig] = {}
    for endpoint in endpoints:
        if named.setdefault(endpoint.name, endpoint).url != endpoint.url:
            named[endpoint.url] = msgspec.structs.replace(endpoint, name=endpoint.url)
    return list(named.values())


def _choose(text: str, configured: Mapping[str, EndpointConfig], env: Mapping[str, str]) -> EndpointConfig:
    """The endpoint that ``-e TEXT`` means."""
    if text in configured:
        return configured[text]
    if "://" not in text and configured:
        raise SettingsError(f"-e {text}: no endpoint of this name is configured (there is {', '.join(configured)})")
    new = _from_url(text, env, "-e")
    return next((endpoint for endpoint in configured.values() if endpoint.url == new.url), new)


def _from_url(text: str, env: Mapping[str, str], where: str) -> EndpointConfig:
    url = _base_url(text, where)
    key = env.get(KEY_ENV, "").strip()
    return EndpointConfig(name=url.partition("://")[2].removesuffix("/v1"), url=url, key=Secret(key) if key else None)


def _from_table(name: str, table: _EndpointTable, env: Mapping[str, str]) -> EndpointConfig:
    where = f"endpoint {name!r}"
    if table.max_in_flight < 0:
        raise SettingsError(f"{where}: max_in_flight is 0 (unbounded) or more, not {table.max_in_flight}")
    if table.ca_file is not None and not Path(table.ca_file).is_file():
        raise SettingsError(f"{where}: there is no certificate file {table.ca_file}")
    return EndpointConfig(
        name=name,
        url=_base_url(table.url, where),
        key=_secret(table.key_env, table.key_file, env, where, "key"),
        max_in_flight=table.max_in_flight,
        ca_file=table.ca_file,
        insecure=table.insecure,
        proxy=table.proxy,
        aiohttp=table.aiohttp,
    )


def _base_url(text: str, where: str) -> str:
    try:
        return normalise_base_url(text)
    except ValueError as error:
        raise SettingsError(f"{where}: {error}") from None


def _webhook_secret(table: _WebhookTable, env: Mapping[str, str], errors: list[SettingsError]) -> Secret | None:
    try:
        return _secret(table.secret_env, table.secret_file, env, "webhooks", "secret")
    except SettingsError as error:
        errors.append(error)
        return None


def _secret(variable: str | None, path: str | None, env: Mapping[str, str], where: str, name: str) -> Secret | None:
    """The secret called `name` that lies in an environment variable or a file; None where neither is given."""
    if variable is not None and path is not None:
        raise SettingsError(f"{where}: give {name}_env or {name}_file, not both")
    if variable is not None:
        text = env.get(variable, "").strip()
        if not text:
            raise SettingsError(f"{where}: the environment has no {variable}: export it, or remove {name}_env")
        return Secret(text)
    if path is None:
        return None
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise SettingsError(f"{where}: the {name} file {path} cannot be read") from None
    if not text:
        raise SettingsError(f"{where}: the {name} file {path} is empty")
    return Secret(text)


# -- checks


def _folders(roots: Sequence[str], errors: list[SettingsError]) -> list[str]:
    return list(_each(roots, _folder, errors).values())


def _folder(text: str) -> str:
    path = Path(text).expanduser().absolute()
    if not path.is_dir():
        raise SettingsError(f"allowed root {text}: there is no such folder")
    return str(path)


def _wrong(config: DaemonConfig) -> Iterator[SettingsError]:
    """What is wrong with single values."""
    if not config.pool or not _POOL_CHARS.issuperset(config.pool):
        yield SettingsError(f"a pool's name has letters, digits, '-', '_' and '.', not {config.pool!r}")
    for name, url in (("control_redis: ", config.control_redis), ("", config.redis)):
        try:
            clustered = bool(url) and isinstance(parse_store_url(url), Cluster)
        except ValueError as error:
            yield SettingsError(f"{name}{error}")
        else:
            if name and clustered:
                yield SettingsError("control_redis names a cluster, which RQ cannot use: give it a store of its own")
    for name, low, high in (
        ("workers", 1, 1024),
        ("concurrency", 1, 65_536),
        ("in_flight_bytes", 1 << 20, 1 << 40),
        ("lease_ttl_s", 5, 3600),
        ("drain_s", 0, 86_400),
        ("hang_s", 5, 86_400),
        ("stalled_after_s", 1, 86_400),
    ):
        value = getattr(config, name)
        if not low <= value <= high:
            yield SettingsError(f"{name} is from {low} to {high}, not {value}")
    if config.metrics_port is not None and not 0 <= config.metrics_port <= 65_535:
        yield SettingsError(f"metrics_port is a port, 0 to 65535, not {config.metrics_port}")
