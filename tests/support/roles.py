"""What each role does to the store, all of it, in one go: for tests of what it must be allowed to do.

Each is called with a client of the role's own user and one of the administrator, who plays the others' parts.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Awaitable, Callable

from redis import Redis as SyncRedis
from redis.asyncio import Redis

from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import PauseReason
from gristmill.contract.manifest import Manifest
from gristmill.queue import board, feedstats, registry, wishes
from gristmill.queue.board import read
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.registry import DaemonInfo
from gristmill.queue.replies import Role
from gristmill.queue.scene import look_around
from gristmill.queue.store import check_store
from gristmill.queue.wishes import Wish
from tests.support.queues import COLLECTOR, FEEDER, TTL_MS, claim, collect_all, fed_job, feed, finish, give_back

NEWER = {"command client|setinfo", "command waitaof"}
"""What Redis 7.0 does not know and nobody needs: the first is for show, by the second `submit` waits for the disk."""

RoleWork = Callable[[Redis, Redis], Awaitable[None]]
_numbers = itertools.count(1)


def _manifest(**changes: object) -> Manifest:
    number = next(_numbers)
    values: dict = {"first_alone": 0, "block_size": 8} | changes
    return Manifest(job=f"role-{number}", epoch=f"e{number}", name="roles", created_at_ms=0, **values)


async def _forget_scripts(admin: Redis) -> None:
    """So that the role has to load them."""
    await admin.script_flush()


async def _as(redis: Redis, queue: LeaseQueue) -> LeaseQueue:
    return await LeaseQueue.attach(redis, queue.job)


async def producer(redis: Redis, admin: Redis) -> None:
    """Submit, feed, look, steer, retry, remove: every verb but the collecting ones."""
    await _forget_scripts(admin)
    await check_store(redis)
    await redis.ping()
    queue = await LeaseQueue.create(redis, _manifest())
    await wishes.announce(redis, queue.job)
    assert (await queue.take_lease(Role.FEEDER, FEEDER, "me", TTL_MS)).granted
    assert await queue.renew_lease(Role.FEEDER, FEEDER, TTL_MS)
    assert (await feed(queue, 0, 0, 10, images=1)).status == "OK"
    await queue.tell_feeding(feedstats.FeedStats())
    await queue.forget_feeding()
    assert (await queue.close(1, 10)).status == "OK"
    await queue.lacking(1000)
    await queue.release_lease(Role.FEEDER, FEEDER)
    await _look(redis, queue)
    await queue.pause(PauseReason.USER, "")
    await queue.resume()
    mine = await _as(admin, queue)
    claimed = (await claim(mine, "w.1", 4)).claimed
    await finish(mine, "w.1", claimed[:2])
    await finish(mine, "w.1", claimed[2:3], FailureClass.TIMEOUT)
    await give_back(mine, "w.1", claimed[3:])
    await queue.cancel()
    await queue.failed_codes()
    await queue.done_bits()
    await queue.choose([1])
    await queue.chosen()
    await queue.remove()


async def _look(redis: Redis, queue: LeaseQueue) -> None:
    await registry.list_jobs(redis)
    await registry.live_daemons(redis)
    snapshot, _ = await queue.snapshot(), await queue.manifest()
    await read(redis, "default")
    await look_around(redis, queue, snapshot, oldest=True)
    await wishes.progress(redis, queue.job)


async def collector(redis: Redis, admin: Redis) -> None:
    """`results`: take the lease, read, ack, and look on until the job has ended."""
    job = await fed_job(admin, 13)
    await finish(job, "w.1", (await claim(job, "w.1", 12)).claimed)
    await job.release_lease(Role.COLLECTOR, COLLECTOR)
    await _forget_scripts(admin)
    await check_store(redis)
    await redis.ping()
    queue = await _as(redis, job)
    assert (await queue.take_lease(Role.COLLECTOR, "mine", "me", TTL_MS)).granted
    assert await queue.renew_lease(Role.COLLECTOR, "mine", TTL_MS)
    blocks = await queue.read_blocks(1 << 20, after=-1)
    assert sum(map(len, blocks.values())) == 12
    assert len((await queue.read_blocks(10))[0]) >= 1
    await collect_all(queue, "mine")
    await queue.ack("mine", {1: [12]})  # as after the store has lost its last writes
    await _look(redis, queue)
    await queue.chosen()
    await queue.release_lease(Role.COLLECTOR, "mine")


async def worker(redis: Redis, admin: Redis) -> None:
    """A daemon without control plane: register, claim, fetch, commit, reap, expire, settle, mend, clean up."""
    job = await fed_job(admin, 40, per_run=10)
    await _forget_scripts(admin)
    await check_store(redis)
    await redis.ping()
    await redis.info("server")
    info = DaemonInfo(daemon_id="d1", host="h", pid=1, version="0", pool="p", workers=1, slots=1, started_at_ms=0)
    await registry.register_daemon(redis, info, 30)
    await registry.live_daemons(redis)
    await registry.runnable(redis)
    queue = await _as(redis, job)
    claimed = (await claim(queue, "w.1", 8)).claimed
    claimed += (await claim(queue, "w.1", 2, believed=True)).claimed
    await queue.fetch(claimed)
    await queue.fetch_images(0, ["00"])
    await queue.held("w.1")
    await queue.tokens()
    await queue.renew("w.1", TTL_MS)
    await finish(queue, "w.1", claimed[:4])
    await finish(queue, "w.1", claimed[4:5], FailureClass.TIMEOUT)
    await give_back(queue, "w.1", claimed[5:7], delay_ms=1, charged=1)
    await queue.reap("w.1", force=True, crashed=True)
    taken = (await claim(queue, "w.2", 2, suspects=True)).claimed
    await give_back(queue, "w.2", taken)
    late = (await claim(queue, "w.2", 20)).claimed
    await queue.reap("w.2", force=True, crashed=False)
    await finish(queue, "w.9", late[:3])
    await finish(queue, "w.1", (await claim(queue, "w.1", 40)).claimed)
    await queue.reap_expired()
    await board.post(redis, "p", "w", {"e": ("down", 0)}, 0)
    await board.post(redis, "p", "w", {}, 0)
    await _look(redis, queue)
    await registry.tidy_jobs(redis)
    ended = await _as(redis, await fed_job(admin, 10))
    await ended.expire()
    await registry.mark_runnable(redis, ended.job, 0)
    await registry.unmark_runnable(redis, ended.job)
    await ended.settle()
    await ended.pause(PauseReason.CONFIG, "")
    await ended.remove()
    await registry.forget_daemon(redis, "d1")


async def wisher(redis: Redis, admin: Redis) -> None:
    """What the control plane does to the store of the jobs, beside feeding and collecting."""
    job = await fed_job(admin, 1)
    await wishes.announce(redis, job.job)
    await wishes.due(redis)
    await wishes.begin(redis, job.job, Wish.FEED, 1)
    await wishes.complain(redis, job.job, Wish.FEED, "no")
    await wishes.fulfil(redis, job.job, Wish.FEED)
    await wishes.progress(redis, job.job)
    await wishes.notifier(redis, job.job, 0)
    await wishes.withdraw(redis, job.job)


def rq(connection: SyncRedis) -> None:
    """What the control plane does to the store of RQ's keys: enqueue, look, do one well and one badly, clean up."""
    from rq import SimpleWorker
    from rq.serializers import JSONSerializer

    from gristmilld.control import jobs
    from gristmilld.control.rqdesk import ControlJob, RqDesk, queue_name
    from gristmilld.control.rqworker import Deaf

    desk = RqDesk(connection, jobs.TIMEOUTS_S)
    assert desk.enqueue(Wish.FEED, "j", "one")
    assert desk.enqueue(Wish.FEED, "j", "two")
    assert not desk.enqueue(Wish.FEED, "j", "two")
    desk.standing(Wish.FEED, "one")

    class DeafWorker(Deaf, SimpleWorker):
        """Works in this very process."""

    one = DeafWorker(
        [queue_name(Wish.FEED)],
        connection=connection,
        job_class=ControlJob,
        serializer=JSONSerializer,
        maintenance_interval=30,
        worker_ttl=16,
    )
    outcomes = iter([None, ValueError("planted")])

    def act(_: str) -> None:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome

    known = dict(jobs.BY_NAME)
    jobs.BY_NAME[jobs.__name__ + ".feed"] = act
    try:
        one.work(max_jobs=2, max_idle_time=1, logging_level="CRITICAL")
    finally:
        jobs.BY_NAME.update(known)


def run_rq(url: str) -> None:
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        with SyncRedis.from_url(url, client_name="roles") as connection:
            connection.ping()
            rq(connection)
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
