"""The users of examples/users.acl can do all that their role does, and each of their rules is needed for it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from tests.support import roles
from tests.support.store import StoreProcess

from gristmill.queue.loader import expand, scripts
from gristmill.queue.store import connect

FILE = Path(__file__).resolve().parents[2] / "examples/users.acl"
ALWAYS = {"on", "-@all", ">CHANGE-ME"}


def users() -> dict[str, list[str]]:
    """User -> rules, as the file has them."""
    lines = [line.split() for line in FILE.read_text().splitlines()]
    assert all(words[0] == "user" for words in lines)
    return {words[1]: words[2:] for words in lines}


USERS = users()


@pytest.fixture(scope="module")
def guarded() -> Iterator[StoreProcess]:
    """A store of this module alone: users outlive a flush."""
    store = StoreProcess().start()
    yield store
    store.close()


@pytest.fixture
async def admin(guarded: StoreProcess) -> AsyncIterator[Redis]:
    client = connect(guarded.url)
    yield client
    await client.aclose()


Attempt = Callable[[str, list[str]], Awaitable[list[str]]]


@pytest.fixture
def attempt(guarded: StoreProcess, admin: Redis) -> Attempt:
    """Plays a role with some rules; what it was denied, in the store's words."""

    async def play(role: str, rules: list[str], *scenes: roles.RoleWork) -> list[str]:
        await admin.flushall()
        await admin.script_flush()
        await admin.execute_command("ACL", "SETUSER", role, "reset", *rules)
        await admin.execute_command("ACL", "LOG", "RESET")
        url = f"unix://{role}:CHANGE-ME@{guarded.socket}"
        failure: BaseException | None = None
        try:
            if role == "rq":
                roles.run_rq(url)  # it handles signals, so it needs this thread
            else:
                await _play(url, admin, scenes or (getattr(roles, role),))
        except Exception as error:  # noqa: BLE001  # a denial shows in many forms
            failure = error
        denied = [f"{e[b'reason'].decode()} {e[b'object'].decode()}" for e in await _acl_log(admin)]
        denied = [what for what in denied if what not in roles.NEWER]
        if failure is not None and not denied:
            raise failure
        return denied

    return play


async def _acl_log(admin: Redis) -> list[dict[bytes, bytes]]:
    """The store's list of what it denied."""
    entries = await admin.execute_command("ACL", "LOG")
    return [e if isinstance(e, dict) else dict(zip(e[::2], e[1::2], strict=True)) for e in entries]


async def _play(url: str, admin: Redis, scenes: tuple[roles.RoleWork, ...]) -> None:
    redis = connect(url, name="roles")
    redis.connection_pool.connection_kwargs["retry"] = None
    try:
        for scene in scenes:
            await scene(redis, admin)
    finally:
        await redis.aclose()


SCENES = {"control": (roles.producer, roles.collector, roles.worker, roles.wisher)}


@pytest.mark.parametrize("role", USERS)
async def test_a_role_may_do_all_that_it_does(attempt: Attempt, role: str):
    """With exactly the rules of the file nothing is denied."""
    assert await attempt(role, USERS[role], *SCENES.get(role, ())) == []


@pytest.mark.parametrize(
    ("role", "rule"), [(role, rule) for role, rules in USERS.items() for rule in rules if rule not in ALWAYS]
)
async def test_no_rule_is_too_many(attempt: Attempt, role: str, rule: str):
    """Without any one of its rules, a role is denied something that it does."""
    rules = [other for other in USERS[role] if other != rule]
    for scene in SCENES.get(role, (None,)):
        if await attempt(role, rules, *(() if scene is None else (scene,))):
            return
    pytest.fail(f"{role} does without {rule}")


SCRIPTS = {
    "producer": ("create", "lease", "look", "seal", "close", "ctl", "free"),
    "collector": ("lease", "look", "ack"),
    "worker": ("claim", "commit", "renew", "reap", "ctl", "free", "look"),
    "control": tuple(scripts()),
}


@pytest.mark.parametrize("role", SCRIPTS)
def test_what_a_roles_scripts_may_do_is_granted(role: str):
    """Also on paths that only an accident takes: a script that is denied a command has done a part by then."""
    called = {name for script in SCRIPTS[role] for name in re.findall(r"redis\.call\('(\w+)'", expand(script))}
    assert {f"+{name.lower()}" for name in called} - set(USERS[role]) == set()


@pytest.mark.parametrize("role", [role for role in USERS if role != "rq"])
async def test_only_rqs_user_writes_its_keys(guarded: StoreProcess, admin: Redis, role: str):
    """A job sent by hand into RQ's keys is refused by the store; so are its channels."""
    from redis.exceptions import NoPermissionError

    await admin.execute_command("ACL", "SETUSER", role, "reset", *USERS[role])
    redis = connect(f"unix://{role}:CHANGE-ME@{guarded.socket}")
    try:
        for command in (
            ("HSET", "rq:job:planted", "data", "x"),
            ("RPUSH", "rq:queue:gristmill-feed", "planted"),
            ("SADD", "rq:queues", "rq:queue:gristmill-feed"),
            ("PUBLISH", "rq:pubsub:w", "{}"),
        ):
            with pytest.raises(NoPermissionError):
                await redis.execute_command(*command)
    finally:
        await redis.aclose()
