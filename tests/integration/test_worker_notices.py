"""Rate limits are shared: what one worker was told, all heed, and a watcher can read."""

from __future__ import annotations

from redis.asyncio import Redis

from gristmill.contract.failure import Failure, FailureClass
from gristmill.queue import board
from gristmilld.config import EndpointConfig
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.pool import EndpointPool
from gristmilld.worker.notices import Notices

URL = "http://127.0.0.1:1/v1"


def told_to_wait(endpoint: Endpoint, seconds: float) -> None:
    """The endpoint answers 429 with a Retry-After."""
    with endpoint.begin() as call:
        call.outcome = Failure(FailureClass.RATE_LIMITED, "slow down", 429, seconds)


def worker(redis: Redis, name: str, pool: str = "default") -> tuple[Endpoint, Notices]:
    endpoint = Endpoint(EndpointConfig(name="e", url=URL))
    return endpoint, Notices(redis, pool, name, EndpointPool([endpoint]))


async def test_a_rate_limit_holds_back_every_worker_of_the_pool(redis: Redis) -> None:
    """Another worker of the pool waits about as long as the one that was told; another pool's does not."""
    told, says = worker(redis, "a")
    other, heeds = worker(redis, "b")
    stranger, ignores = worker(redis, "c", pool="private")
    told_to_wait(told, 30)
    for one in (says, heeds, ignores):
        await one.turn()
    assert not told.ready
    assert 25 < other.ready_in_s <= 30
    assert stranger.ready


async def test_a_watcher_can_read_what_is_waited_for(redis: Redis) -> None:
    """The board names the endpoint, and when it may be called again."""
    told, says = worker(redis, "a")
    told_to_wait(told, 30)
    await says.turn()
    seen = await board.read(redis, "default")
    [notice] = seen.notices
    assert (notice.endpoint, notice.state) == (URL, "cooling")
    assert 25_000 < notice.until_ms - seen.now_ms <= 30_000


async def test_what_is_only_heeded_is_not_said_again(redis: Redis) -> None:
    """Two workers do not keep each other waiting for ever."""
    told, says = worker(redis, "a")
    _, heeds = worker(redis, "b")
    told_to_wait(told, 30)
    for one in (says, heeds, heeds):
        await one.turn()
    assert await redis.hkeys("gm:ep:default") == [b"a"]


async def test_a_notice_goes_when_its_endpoint_is_well_again(redis: Redis) -> None:
    """Nothing is left on the board, and the board itself has a time to live until then."""
    told, says = worker(redis, "a")
    told_to_wait(told, 30)
    await says.turn()
    assert 0 < await redis.ttl("gm:ep:default") <= 60
    told.limits.cool_until_s = 0.0
    await says.turn()
    assert not await redis.exists("gm:ep:default")


async def test_a_dead_workers_notice_is_not_read(redis: Redis) -> None:
    """What has not been renewed for a while counts for nothing."""
    (seconds, _) = await redis.time()
    await board.post(redis, "default", "dead", {URL: ("cooling", (seconds + 300) * 1000)}, (seconds - 60) * 1000)
    assert (await board.read(redis, "default")).notices == []
