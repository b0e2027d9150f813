"""The lease queue of one job: the one class that feeders, workers, collectors and commands talk to.

What can happen, and what holds:

* An index is in exactly one of: unproduced, fresh, waiting, held, done. The done bit dominates.
* A terminal record is taken first-wins from anyone of the same epoch; what is given back unfinished only from the
  claim that is held. So a worker that stalled, came back and answers late loses nothing and harms nothing.
* Every call may be repeated after a lost reply: the second changes nothing. Only `claim` hands out more, so after a
  lost reply of a claim look at `held`.
* Whatever dies, nothing is lost: leases run out and are reaped, stages expire, a half-removed job is still listed.
* When the store loses a suffix of its history, `rolled_back` says so (see `handle`).

The work is done in `creating`, `feeding`, `working`, `collecting` and `controlling`, one for each side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from redis.asyncio import Redis

from gristmill.contract.keys import JobKeys
from gristmill.contract.lifecycle import PauseReason
from gristmill.contract.manifest import Manifest
from gristmill.queue import (
    collecting,
    controlling,
    creating,
    durable,
    feeding,
    feedstats,
    retrying,
    stragglers,
    working,
)
from gristmill.queue.durable import Place
from gristmill.queue.feedstats import FeedStats
from gristmill.queue.handle import Handle
from gristmill.queue.replies import (
    AckReply,
    Claimed,
    ClaimReply,
    CloseReply,
    CommitReply,
    ControlReply,
    Finished,
    JobSnapshot,
    LeaseReply,
    ReapReply,
    RenewReply,
    Returned,
    Role,
    Run,
    SealReply,
)
from gristmill.queue.stragglers import Straggler


class LeaseQueue:
    """One job in one store; cheap to make, safe to share between the tasks of one loop."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @classmethod
    async def create(cls, redis: Redis, manifest: Manifest) -> LeaseQueue:
        """See `creating.create`."""
        return cls(await creating.create(redis, manifest))

    @classmethod
    async def attach(cls, redis: Redis, job: str) -> LeaseQueue:
        """See `creating.attach`."""
        return cls(await creating.attach(redis, job))

    @property
    def job(self) -> str:
        return self._handle.keys.job

    @property
    def epoch(self) -> str:
        return self._handle.epoch

    @property
    def keys(self) -> JobKeys:
        return self._handle.keys

    @property
    def block_size(self) -> int:
        """Indices per result block."""
        return self._handle.block_size

    @property
    def version(self) -> int:
        """The highest version seen since the last loss."""
        return self._handle.version

    @property
    def rolled_back(self) -> bool:
        """The store lost a suffix of its history; whoever acts on it sets this to False."""
        return self._handle.rolled_back

    @rolled_back.setter
    def rolled_back(self, value: bool) -> None:
        self._handle.rolled_back = value

    def __repr__(self) -> str:
        return f"LeaseQueue(job={self.job!r}, epoch={self.epoch!r}, version={self.version})"

    # -- the job as a whole ---------------------------------------------------------------------------------------

    async def manifest(self) -> Manifest:
        """See `creating.read_manifest`."""
        return await creating.read_manifest(self._handle.redis, self.keys)

    async def snapshot(self) -> JobSnapshot:
        """See `creating.snapshot`."""
        return await creating.snapshot(self._handle)

    async def take_lease(self, role: Role, token: str, holder: str, ttl_ms: int, *, force: bool = False) -> LeaseReply:
        """See `controlling.take_lease`."""
        return await controlling.take_lease(self._handle, role, token, holder, ttl_ms, force=force)

    async def renew_lease(self, role: Role, token: str, ttl_ms: int) -> bool:
        """See `controlling.renew_lease`."""
        return await controlling.renew_lease(self._handle, role, token, ttl_ms)

    async def release_lease(self, role: Role, token: str) -> None:
        """See `controlling.release_lease`."""
        await controlling.release_lease(self._handle, role, token)

    async def failed_codes(self) -> bytes:
        """See `retrying.failed_codes`."""
        return await retrying.failed_codes(self._handle)

    async def done_bits(self) -> bytes:
        """See `retrying.done_bits`."""
        return await retrying.done_bits(self._handle)

    async def choose(self, ordinals: Iterable[int]) -> None:
        """See `retrying.choose`."""
        await retrying.choose(self._handle, ordinals)

    async def chosen(self) -> list[int] | None:
        """See `retrying.chosen`."""
        return await retrying.chosen(self._handle)

    # -- feeder ---------------------------------------------------------------------------------------------------

    async def stage(self, token: str, fields: Mapping[bytes | str, bytes]) -> int:
        """See `feeding.stage`."""
        return await feeding.stage(self._handle, token, fields)

    async def seal(self, token: str, run: Run) -> SealReply:
        """See `feeding.seal`."""
        return await feeding.seal(self._handle, token, run)

    async def close(self, runs: int, n: int) -> CloseReply:
        """See `feeding.close`."""
        return await feeding.close(self._handle, runs, n)

    async def lacking(self, timeout_ms: int) -> list[Place]:
        """See `durable.lacking`."""
        return await durable.lacking(self._handle, timeout_ms)

    async def tell_feeding(self, stats: FeedStats) -> None:
        """See `feedstats.publish`."""
        await feedstats.publish(self._handle.redis, self.job, stats)

    async def forget_feeding(self) -> None:
        """See `feedstats.forget`."""
        await feedstats.forget(self._handle.redis, self.job)

    # -- worker ---------------------------------------------------------------------------------------------------

    async def claim(
        self,
        token: str,
        want: int,
        max_bytes: int,
        ttl_ms: int,
        *,
        believed: bool,
        suspects: bool,
        only_suspects: bool = False,
        company: int = working.MAX_CLAIM,
    ) -> ClaimReply:
        """See `working.claim`."""
        return await working.claim(
            self._handle,
            token,
            want,
            max_bytes,
            ttl_ms,
            believed=believed,
            suspects=suspects,
            only_suspects=only_suspects,
            company=company,
        )

    async def fetch(self, claimed: Sequence[Claimed]) -> list[bytes | None]:
        """See `working.fetch`."""
        return await working.fetch(self._handle, claimed)

    async def fetch_images(self, run: int, digests: Sequence[str]) -> list[bytes | None]:
        """See `working.fetch_images`."""
        return await working.fetch_images(self._handle, run, digests)

    async def commit(self, token: str, finished: Sequence[Finished], returned: Sequence[Returned]) -> CommitReply:
        """See `working.commit`."""
        return await working.commit(self._handle, token, finished, returned)

    async def renew(self, token: str, ttl_ms: int) -> RenewReply:
        """See `working.renew`."""
        return await working.renew(self._handle, token, ttl_ms)

    async def held(self, token: str) -> dict[int, int]:
        """See `working.held`."""
        return await working.held(self._handle, token)

    async def tokens(self) -> dict[str, int]:
        """See `working.tokens`."""
        return await working.tokens(self._handle)

    async def reap(self, token: str, *, force: bool, crashed: bool, delay_ms: int = 0) -> ReapReply:
        """See `working.reap`."""
        return await working.reap(self._handle, token, force=force, crashed=crashed, delay_ms=delay_ms)

    async def reap_expired(self) -> int:
        """See `working.reap_expired`."""
        return await working.reap_expired(self._handle)

    # -- collector ------------------------------------------------------------------------------------------------

    async def read_blocks(self, max_bytes: int, *, after: int | None = None) -> dict[int, dict[int, bytes]]:
        """See `collecting.read_blocks`."""
        return await collecting.read_blocks(self._handle, max_bytes, after=after)

    async def read_unseen(
        self, seen: Mapping[int, Collection[int]], max_bytes: int, *, below: int | None = None
    ) -> dict[int, dict[int, bytes]]:
        """See `collecting.read_unseen`."""
        return await collecting.read_unseen(self._handle, seen, max_bytes, below=below)

    async def ack(self, token: str, indices: Mapping[int, Sequence[int]]) -> AckReply:
        """See `collecting.ack`."""
        return await collecting.ack(self._handle, token, indices)

    # -- control --------------------------------------------------------------------------------------------------

    async def pause(self, reason: PauseReason, detail: str) -> ControlReply:
        """See `controlling.pause`."""
        return await controlling.pause(self._handle, reason, detail)

    async def resume(self, *, proven: bool = False) -> ControlReply:
        """See `controlling.resume`."""
        return await controlling.resume(self._handle, proven=proven)

    async def cancel(self) -> ControlReply:
        """See `controlling.cancel`."""
        return await controlling.cancel(self._handle)

    async def settle(self, *, force: bool = False) -> ControlReply:
        """See `controlling.settle`."""
        return await controlling.settle(self._handle, force=force)

    async def expire(self) -> ControlReply:
        """See `controlling.expire`."""
        return await controlling.expire(self._handle)

    async def stragglers(self, *, started_before_ms: int | None = None, most: int | None = None) -> list[Straggler]:
        """See `stragglers.find`."""
        return await stragglers.find(self._handle, started_before_ms=started_before_ms, most=most)

    async def custom_ids(self, indices: Sequence[int]) -> dict[int, str | None]:
        """The callers' ids of requests that have no result yet."""
        return {i: frame.custom_id for i, (_, frame) in (await stragglers.requests(self._handle, indices)).items()}

    async def give_up(self, some: Sequence[Straggler], why: str) -> CommitReply:
        """See `stragglers.give_up`."""
        return await stragglers.give_up(self._handle, some, why)

    async def remove(self) -> None:
        """See `controlling.remove`."""
        await controlling.remove(self._handle)
