"""What the server sees in a real store, and what it shows of it."""

from __future__ import annotations

import time

import pytest
from redis.asyncio import Redis
from tests.support.clock import ManualClock
from tests.support.queues import COLLECTOR, FEEDER, claim, fed_job, feed, finish, make_job
from tests.support.wait import wait_until

from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import PauseReason
from gristmill.queue import feedstats, registry
from gristmill.queue.feedstats import FeedStats
from gristmill.queue.registry import DaemonInfo
from gristmill.queue.replies import Role
from gristmill.queue.store import connect
from gristmilld.metrics import LONGEST_LABEL, MOST_JOBS
from gristmilld.server import gauges
from gristmilld.server.look import IDLE_EVERY_S, StoreLook


def shown(look: StoreLook) -> dict[tuple[str, ...], float]:
    """(name, label values as declared) -> value."""
    families = gauges.of_store(look.view)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


async def test_a_job_is_shown_by_place(redis):
    """Fresh, waiting, in flight, ok and failed add up to what was sealed; bytes and uncollected results are there."""
    queue = await fed_job(redis, 20)
    taken = (await claim(queue, "w1", 5)).claimed
    await finish(queue, "w1", taken[:2])
    look = StoreLook(redis)
    view = await look.once()
    got = shown(look)
    places = {p: got["gristmill_job_requests", queue.job, p] for p in ("fresh", "waiting", "in_flight", "ok", "failed")}
    assert places == {"fresh": 15, "waiting": 0, "in_flight": 3, "ok": 2, "failed": 0}
    assert got["gristmill_job_uncollected_results", queue.job] == 2
    assert got["gristmill_job_uncollected_bytes", queue.job] > 0
    assert got["gristmill_job_payload_bytes", queue.job] == (await queue.snapshot()).payload_bytes
    assert got["gristmill_job_tokens", queue.job, "completion"] == 10
    assert got["gristmill_store_up",] == got["gristmill_store_fit",] == 1
    assert got["gristmill_jobs", "running"] == 1
    assert view.look_s < 1


async def test_what_a_job_is_stands_beside_its_numbers(redis):
    """Name and model on a series of its own, cut to a bounded length; without a model, that requests name it."""
    named = await make_job(redis, name="n" * 200, model="llama-70b")
    plain = await make_job(redis, name="in.jsonl")
    look = StoreLook(redis)
    await look.once()
    got = shown(look)
    assert got["gristmill_job_info", named.job, "n" * LONGEST_LABEL, "llama-70b"] == 1
    assert got["gristmill_job_info", plain.job, "in.jsonl", "by request"] == 1
    assert ("gristmill_job_info", "other", "other", "other") not in got


async def test_redeliveries_and_late_answers_are_shown(redis):
    """A crashed worker's requests, and the answer that came after the other one."""
    queue = await fed_job(redis, 4)
    late = (await claim(queue, "w1", 4)).claimed
    await queue.reap("w1", force=True, crashed=False)
    await finish(queue, "w2", (await claim(queue, "w2", 4)).claimed)
    await finish(queue, "w1", late)
    look = StoreLook(redis)
    await look.once()
    got = shown(look)
    assert got["gristmill_job_redelivered_requests", queue.job] == 4
    assert got["gristmill_job_duplicate_results", queue.job] == 4


async def test_a_feeder_that_waits_is_told_from_one_that_died(redis):
    """At the mark with a living feeder: waiting; without one: lost."""
    queue = await make_job(redis, payload_mark_bytes=100_000)
    assert (await feed(queue, 0, 0, 1, size=99_000)).status == "OK"
    look = StoreLook(redis)
    await look.once()
    assert shown(look)["gristmill_job_feeder_waiting", queue.job] == 1
    assert shown(look)["gristmill_job_feeder_lost", queue.job] == 0
    assert await queue.renew_lease(Role.FEEDER, FEEDER, 1)

    async def lost() -> bool:
        await look.once()
        return shown(look)["gristmill_job_feeder_lost", queue.job] == 1

    await wait_until(lost, description="the lease has run out")
    assert shown(look)["gristmill_job_feeder_waiting", queue.job] == 0
    assert shown(look)["gristmill_job_feeder_up", queue.job] == 0


async def test_a_feeders_own_word_counts(redis):
    """What it says of waiting and of its pictures is shown, and it expires."""
    queue = await make_job(redis)
    stats = FeedStats(waiting=True, pictures=3, read_bytes=900, sent_bytes=400, encode_s=1.5)
    await feedstats.publish(redis, queue.job, stats)
    look = StoreLook(redis)
    await look.once()
    got = shown(look)
    assert got["gristmill_job_feeder_waiting", queue.job] == 1
    assert got["gristmill_job_encoded_pictures", queue.job] == 3
    assert got["gristmill_job_pictures_read_bytes", queue.job] == 900
    assert got["gristmill_job_pictures_sent_bytes", queue.job] == 400
    assert got["gristmill_job_encoder_seconds", queue.job] == 1.5
    [key] = await redis.keys("gm:feed:*")
    assert 0 < await redis.pttl(key) <= feedstats.TTL_S * 1000


async def test_a_collector_is_wanted_when_results_are_at_their_mark(redis):
    """Nobody collects, nothing fresh is handed out: that must be seen."""
    queue = await make_job(redis, results_mark_bytes=1)
    await feed(queue, 0, 0, 2)
    await finish(queue, "w1", (await claim(queue, "w1", 1)).claimed)
    look = StoreLook(redis)
    await look.once()
    assert shown(look)["gristmill_job_collector_wanted", queue.job] == 0
    await queue.release_lease(Role.COLLECTOR, COLLECTOR)
    await look.once()
    assert shown(look)["gristmill_job_collector_wanted", queue.job] == 1


async def test_a_thousand_jobs_keep_the_labels_bounded(redis):
    """Fifty labels and `other`; the sums are those of all jobs; a look stays within its budget."""
    for _ in range(1000):
        await make_job(redis, leases=False)
    clock = ManualClock()
    look = StoreLook(redis, clock)
    begun = time.monotonic()
    view = await look.once()
    assert time.monotonic() - begun < 3
    assert 0 < len(view.jobs) < 1000, "one look has a limit"
    clock.advance(1)
    while len((await look.once()).jobs) < 1000:
        clock.advance(1)
    got = shown(look)
    labels = {key[1] for key in got if key[0] == "gristmill_job_payload_mark_bytes"}
    assert len(labels) == MOST_JOBS + 1
    assert "other" in labels
    told = [key for key in got if key[0] == "gristmill_job_info"]
    assert {key[1] for key in told} == labels
    assert len(told) == MOST_JOBS + 1
    total = sum(value for key, value in got.items() if key[0] == "gristmill_job_payload_mark_bytes")
    assert total == 1000 * (1 << 30)
    assert got["gristmill_jobs", "running"] == 1000


async def test_live_jobs_are_named_before_ended_ones(redis):
    """When there are more than fifty, an old job that still runs has a label; ended ones are summed."""
    running = await make_job(redis, leases=False)
    for _ in range(MOST_JOBS):
        ended = await make_job(redis, leases=False)
        await ended.close(0, 0)
    look = StoreLook(redis)
    await look.once()
    got = shown(look)
    assert got["gristmill_jobs", "complete"] == MOST_JOBS
    assert ("gristmill_job_attempts", running.job) in got


async def test_a_removed_job_is_gone_from_the_next_look(redis):
    """Also one that was made anew under its id shows the new one's numbers."""
    queue = await fed_job(redis, 3)
    look = StoreLook(redis)
    await look.once()
    await queue.remove()
    await look.once()
    assert not [key for key in shown(look) if key[0] == "gristmill_job_attempts"]


async def test_an_ended_job_is_looked_at_less_often(redis):
    """It is shown all the time, but asked for only now and then."""
    queue = await make_job(redis)
    await queue.close(0, 0)
    await registry.unmark_runnable(redis, queue.job)
    clock = ManualClock()
    look = StoreLook(redis, clock)
    await look.once()
    await redis.hset(queue.keys.meta, "attempts", 7)
    clock.advance(1)
    await look.once()
    assert shown(look)["gristmill_job_attempts", queue.job] == 0
    clock.advance(IDLE_EVERY_S)
    await look.once()
    assert shown(look)["gristmill_job_attempts", queue.job] == 7


async def test_a_paused_job_keeps_its_numbers(redis):
    """States are counted."""
    queue = await fed_job(redis, 3)
    await queue.pause(PauseReason.USER, "")
    look = StoreLook(redis)
    await look.once()
    assert shown(look)["gristmill_jobs", "paused"] == 1
    assert shown(look)["gristmill_job_requests", queue.job, "fresh"] == 3


async def test_registered_daemons_are_seen(redis):
    """Their ids, for readiness, and their number."""
    info = DaemonInfo(daemon_id="d1", host="h", pid=1, version="0", pool="default", workers=1, slots=8, started_at_ms=0)
    await registry.register_daemon(redis, info, 60)
    look = StoreLook(redis)
    assert (await look.once()).daemons == ["d1"]
    assert shown(look)["gristmill_daemons",] == 1


async def test_an_unfit_store_is_up_and_says_what_is_wrong(own_store):
    """An eviction policy: the jobs are shown all the same."""
    client = Redis.from_url(own_store.url)
    await fed_job(client, 3)
    await client.config_set("maxmemory-policy", "allkeys-lru")
    look = StoreLook(client)
    view = await look.once()
    assert view.up
    assert "maxmemory-policy allkeys-lru" in view.trouble
    assert shown(look)["gristmill_store_fit",] == 0
    assert len(view.jobs) == 1
    await client.aclose()


async def test_a_store_that_is_away_is_a_sentence(own_store):
    """Nothing of the last look is shown as if it were true now."""
    client = connect(own_store.url, timeout_s=1, connect_timeout_s=1)
    await fed_job(client, 3)
    look = StoreLook(client)
    assert (await look.once()).up
    own_store.kill()
    view = await look.once()
    assert not view.up
    assert "the store" in view.trouble
    assert {key[0] for key in shown(look)} == {"gristmill_store_up", "gristmill_store_fit"}
    assert set(shown(look).values()) == {0}
    await client.aclose()


@pytest.mark.parametrize("count", [0, 3])
async def test_feed_stats_are_read_in_one_go(redis, count):
    """No job, no call; several jobs, each its own."""
    jobs = [f"j{n}" for n in range(count)]
    for n, job in enumerate(jobs):
        await feedstats.publish(redis, job, FeedStats(pictures=n))
    got = await feedstats.read(redis, [*jobs, "silent"] if jobs else [])
    assert {job: stats.pictures for job, stats in got.items()} == {job: n for n, job in enumerate(jobs)}


async def test_why_a_job_is_paused_is_shown(redis):
    """Its state with who has to act, its age, and what failed by class; a finished one has no age."""
    queue = await fed_job(redis, 4)
    await queue.pause(PauseReason.CONFIG, "the key is refused")
    look = StoreLook(redis)
    await look.once()
    got = shown(look)
    assert got["gristmill_job_state", queue.job, "paused", "config"] == 1
    assert 0 <= got["gristmill_job_age_seconds", queue.job] < 60
    await queue.resume()
    await finish(queue, "w1", (await claim(queue, "w1", 4)).claimed, FailureClass.BAD_REQUEST)
    await look.once()
    got = shown(look)
    assert got["gristmill_job_state", queue.job, "complete", "none"] == 1
    assert got["gristmill_job_failed_requests", queue.job, "bad_request"] == 4
    assert ("gristmill_job_age_seconds", queue.job) not in got
