"""A worker's mill against a real store and a real HTTP server."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

import pytest
from redis.asyncio import Redis
from tests.support.invariants import check_invariants
from tests.support.jobs import chat, results, sealed_job, worker
from tests.support.pictures import quarters, saved
from tests.support.queue_model import DEATHS_ALONE
from tests.support.queues import record_of
from tests.support.standin import Standin, StandinProcess
from tests.support.wait import wait_until

from gristmill.contract.digest import digest_of
from gristmill.contract.failure import FailureClass
from gristmill.contract.frame import Image, Refusal, Request
from gristmill.contract.lifecycle import JobState, PauseReason
from gristmill.queue import LeaseQueue
from gristmill.queue.replies import Claimed, Finished
from gristmilld.worker.attempt import Caller, Outcome


async def state(queue: LeaseQueue) -> JobState:
    return (await queue.snapshot()).state


async def until(queue: LeaseQueue, wanted: JobState) -> None:
    async def holds() -> bool:
        return await state(queue) is wanted

    await wait_until(holds, description=f"the job is {wanted}")


async def test_every_request_gets_the_answer_to_its_own_body(redis: Redis) -> None:
    """Each index's record holds the answer to the text of that index, and the job completes."""
    async with Standin() as standin, worker(redis, standin.url):
        queue = await sealed_job(redis, [chat(i) for i in range(300)])
        await until(queue, JobState.COMPLETE)
        records = await results(queue)
        await check_invariants(redis, queue)
    assert sorted(records) == list(range(300))
    for i, record in records.items():
        assert record.ok
        assert record.detail.custom_id == f"c{i}"
        assert record.detail.body is not None
        said = json.loads(json.loads(record.detail.body)["choices"][0]["message"]["content"])
        assert said["text_sha256"] == hashlib.sha256(f"request {i}".encode()).hexdigest()
    assert standin.stats["requests"] == 300
    assert standin.stats["distinct"] == 300


async def test_no_more_in_flight_than_slots(redis: Redis) -> None:
    """Concurrency is bounded by the slots, and reaches them."""
    async with Standin(latency=0.05) as standin, worker(redis, standin.url, slots=10):
        queue = await sealed_job(redis, [chat(i) for i in range(120)])
        await until(queue, JobState.COMPLETE)
    assert standin.stats["in_flight_max"] == 10


async def test_pictures_in_the_store_reach_their_request(redis: Redis) -> None:
    """A picture that several requests of a run share is stored once and arrives whole with each."""
    data = saved(quarters(64, 48), "PNG")
    digest = digest_of(data)
    head = b'{"model":"standin","messages":[{"role":"user","content":[{"type":"text","text":"what"},'
    head += b'{"type":"image_url","image_url":{"url":"data:image/png;base64,'
    requests = [
        Request(i, None, bytes(16), "/chat/completions", [head, b'"}}]}]}'], [Image(digest, len(data))])
        for i in range(20)
    ]
    async with Standin() as standin, worker(redis, standin.url):
        queue = await sealed_job(redis, requests, images={digest: data})
        await until(queue, JobState.COMPLETE)
        records = await results(queue)
    for record in records.values():
        assert record.detail.body is not None
        said = json.loads(json.loads(record.detail.body)["choices"][0]["message"]["content"])
        assert (said["images"][0]["width"], said["images"][0]["height"]) == (64, 48)
    assert standin.stats["images"] == 20


async def test_a_refusal_is_committed_without_a_call(redis: Redis) -> None:
    """A line that could not be encoded becomes a failed record of its index; the others run."""
    refusal = Refusal(1, "bad", bytes(16), FailureClass.BAD_INPUT, "line 2: no JSON", 2)
    async with Standin() as standin, worker(redis, standin.url):
        queue = await sealed_job(redis, [chat(0), refusal, chat(2)])
        await until(queue, JobState.COMPLETE)
        records = await results(queue)
    assert [records[i].cls for i in range(3)] == [None, FailureClass.BAD_INPUT, None]
    assert records[1].detail.message == "line 2: no JSON"
    assert records[1].attempts == 0
    assert standin.stats["requests"] == 2


async def test_server_errors_are_retried_until_they_pass(redis: Redis) -> None:
    """A request that meets a few 500s still gets its answer; its record counts the attempts."""
    async with Standin() as standin, worker(redis, standin.url):
        standin.control(faults=[{"kind": "status", "status": 500, "times": 6}])
        queue = await sealed_job(redis, [chat(i) for i in range(20)])
        await until(queue, JobState.COMPLETE)
        records = await results(queue)
    assert all(r.ok for r in records.values())
    assert sum(r.attempts for r in records.values()) == standin.stats["requests"] == 26


async def test_a_request_that_never_passes_fails_after_its_attempts(redis: Redis) -> None:
    """Five charged attempts, then a failed record of the class that was seen; the others are untouched."""
    async with Standin() as standin, worker(redis, standin.url):
        standin.control(faults=[{"kind": "status", "status": 500, "text": "doomed"}])
        queue = await sealed_job(redis, [chat(0), chat(1, "doomed"), chat(2)], max_attempts=2)
        await until(queue, JobState.COMPLETE)
        records = await results(queue)
    assert [records[i].cls for i in range(3)] == [None, FailureClass.TRANSIENT, None]
    assert records[1].attempts == 2
    assert records[1].detail.status_code == 500


async def test_a_wrong_url_pauses_the_job_before_it_burns_rows(redis: Redis) -> None:
    """Four 404s, then nothing: no record, no charged attempt, and a diagnosis in the job's detail."""
    async with Standin() as standin, worker(redis, standin.root + "/wrong"):
        queue = await sealed_job(redis, [chat(i) for i in range(100)])
        await until(queue, JobState.PAUSED)
        await wait_until(lambda: not standin.stats["in_flight"], description="calls have ended")
    snapshot = await queue.snapshot()
    assert snapshot.reason is PauseReason.CONFIG
    assert "404" in snapshot.detail or "URL" in snapshot.detail
    assert snapshot.done == 0
    assert snapshot.in_flight == 0
    assert standin.stats["requests"] <= 4
    await check_invariants(redis, queue)


async def test_a_wrong_key_pauses_at_any_time_and_resume_goes_on(redis: Redis) -> None:
    """A key that is refused in mid-job burns no row: fixed and resumed, every request ends well."""
    async with Standin(latency=0.02) as standin, worker(redis, standin.url, slots=8):
        queue = await sealed_job(redis, [chat(i) for i in range(500)])  # a second and more: the key comes in between

        async def some_done() -> bool:
            return (await queue.snapshot()).done >= 20

        await wait_until(some_done, description="some requests are done")
        standin.control(key="another")
        await until(queue, JobState.PAUSED)
        snapshot = await queue.snapshot()
        assert snapshot.reason is PauseReason.CONFIG
        assert snapshot.failed == 0
        standin.control(key=None)
        await queue.resume()
        await until(queue, JobState.COMPLETE)
        assert (await queue.snapshot()).failed == 0


async def test_bad_rows_among_the_first_do_not_pause(redis: Redis) -> None:
    """The first four rows fail each by itself (400): they are failed records, and the job goes on."""
    async with Standin() as standin, worker(redis, standin.url):
        words = ["colour", "voice", "size", "name"]
        bodies = [{"kind": "status", "status": 400, "text": f"odd {i}", "body": w} for i, w in enumerate(words)]
        standin.control(faults=bodies)
        queue = await sealed_job(redis, [chat(i, f"odd {i}") for i in range(4)] + [chat(i) for i in range(4, 40)])
        await until(queue, JobState.COMPLETE)
        records = await results(queue)
    assert [i for i, r in sorted(records.items()) if not r.ok] == [0, 1, 2, 3]


async def test_first_rows_refused_alike_pause_the_job_until_it_is_resumed_as_it_is(redis: Redis) -> None:
    """Four times the same 400 burn no row; told that they are the rows' own fault, the job goes on."""
    async with Standin() as standin, worker(redis, standin.url):
        standin.control(faults=[{"kind": "status", "status": 400, "text": "odd"}])
        queue = await sealed_job(redis, [chat(i, f"odd {i}") for i in range(4)] + [chat(i) for i in range(4, 40)])
        await until(queue, JobState.PAUSED)
        snapshot = await queue.snapshot()
        assert (snapshot.reason, snapshot.done) == (PauseReason.CONFIG, 0)
        await queue.resume(proven=True)
        await until(queue, JobState.COMPLETE)
        records = await results(queue)
    assert [i for i, r in sorted(records.items()) if not r.ok] == [0, 1, 2, 3]


async def test_an_endpoint_that_goes_away_means_waiting(redis: Redis) -> None:
    """While nothing listens no row fails; once the endpoint is back the job ends well."""
    with StandinProcess("--latency", "0.05") as standin:
        port = standin.root.rpartition(":")[2]
        async with worker(redis, standin.url, slots=4) as one:
            queue = await sealed_job(redis, [chat(i) for i in range(60)])

            async def some_done() -> bool:
                return (await queue.snapshot()).done >= 10

            await wait_until(some_done, description="some requests are done")
            standin.kill()
            await wait_until(lambda: one.pool.endpoints[0].state == "down", description="the breaker is open")
            assert (await queue.snapshot()).failed == 0
            with StandinProcess("--port", port):
                await until(queue, JobState.COMPLETE)
            assert (await queue.snapshot()).failed == 0


async def test_drain_puts_back_what_cannot_end_in_time(redis: Redis) -> None:
    """A stop within a short budget returns slow requests uncharged, and no lease is left."""
    async with Standin(latency=30) as standin:
        queue = await sealed_job(redis, [chat(i) for i in range(10)], first_alone=0)
        async with worker(redis, standin.url, drain_s=0.1):
            await wait_until(lambda: standin.stats["in_flight"] == 10, description="all are in flight")
        snapshot = await queue.snapshot()
        assert (snapshot.in_flight, snapshot.waiting, snapshot.done) == (0, 10, 0)
        assert await queue.tokens() == {}
        await check_invariants(redis, queue)
        standin.control(latency=0)
        async with worker(redis, standin.url, prefix="d.0.1"):
            await until(queue, JobState.COMPLETE)
            assert {r.attempts for r in (await results(queue)).values()} == {1}


async def test_a_stalled_worker_takes_a_new_token_and_its_answers_count_once(redis: Redis) -> None:
    """Reaped while its calls were under way, a worker commits what it got; nothing is doubled or lost."""
    async with Standin(latency=0.3) as standin, worker(redis, standin.url) as one:
        queue = await sealed_job(redis, [chat(i) for i in range(60)], first_alone=0)
        await wait_until(lambda: standin.stats["in_flight"] == 32, description="its slots are full")
        [token] = await queue.tokens()
        await queue.reap(token, force=True, crashed=False)
        await until(queue, JobState.COMPLETE)
        await check_invariants(redis, queue)
        records = await results(queue)
    assert sorted(records) == list(range(60))
    assert all(s.token != token for s in one.roster.sessions.values())


async def test_indices_of_a_lost_claim_reply_come_back(redis: Redis) -> None:
    """What the store gave out and the worker never heard of is found by comparing, and run."""
    async with Standin(latency=0.02) as standin:
        queue = await sealed_job(redis, [chat(i) for i in range(40)], first_alone=0)
        lost = await queue.claim("d.0.0.0", 7, 1 << 20, 30_000, believed=False, suspects=False)
        assert len(lost.claimed) == 7
        async with worker(redis, standin.url) as one:
            await wait_until(lambda: bool(one.roster.sessions), description="the worker has joined")
            [session] = one.roster.sessions.values()
            await session.renew(queue)
            await until(queue, JobState.COMPLETE)
        await check_invariants(redis, queue)
    assert sorted(await results(queue)) == list(range(40))


async def test_cancel_keeps_what_ends_and_drops_the_rest(redis: Redis) -> None:
    """After a cancel nothing new is claimed; answers in flight are kept."""
    async with Standin(latency=0.2) as standin, worker(redis, standin.url, slots=5):
        queue = await sealed_job(redis, [chat(i) for i in range(50)], first_alone=0)
        await wait_until(lambda: standin.stats["in_flight"] == 5, description="five are in flight")
        await queue.cancel()

        async def settled() -> bool:
            return (await queue.settle()).state is JobState.CANCELLED

        await wait_until(settled, description="the job is cancelled")
        assert (await queue.snapshot()).done == 5
    assert standin.stats["requests"] == 5


async def test_a_job_of_another_pool_is_left_alone(redis: Redis) -> None:
    """A private daemon's job is not touched by others."""
    async with Standin() as standin, worker(redis, standin.url):
        theirs = await sealed_job(redis, [chat(0)], pool="private")
        ours = await sealed_job(redis, [chat(0)])
        await until(ours, JobState.COMPLETE)
        assert (await theirs.snapshot()).in_flight == 0


async def test_a_job_for_an_endpoint_we_do_not_have_says_so(redis: Redis) -> None:
    """It pauses with the names that there are; it does not wait for ever."""
    async with Standin() as standin, worker(redis, standin.url):
        queue = await sealed_job(redis, [chat(0)], endpoints=["elsewhere"])
        await until(queue, JobState.PAUSED)
    snapshot = await queue.snapshot()
    assert "elsewhere" in snapshot.detail
    assert "e0" in snapshot.detail


async def test_a_poisoned_request_is_failed_without_being_run(redis: Redis) -> None:
    """Once the queue counts it as poison it becomes a failed record."""
    queue = await sealed_job(redis, [chat(0, "kills")], first_alone=0)
    for n in range(1 + DEATHS_ALONE):
        reply = await queue.claim(f"w{n}", 1, 1 << 20, 30_000, believed=False, suspects=True)
        assert [c.index for c in reply.claimed] == [0]
        await queue.reap(f"w{n}", force=True, crashed=True)
    async with Standin() as standin, worker(redis, standin.url):
        await until(queue, JobState.COMPLETE)
        records = await results(queue)
    assert records[0].cls is FailureClass.POISON
    assert standin.stats["requests"] == 0


async def test_an_error_of_our_own_is_a_failed_attempt(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs its request an attempt, at most all of them, and no other request anything; its text is told to nobody,
    for it may hold what was in hand."""
    run, met = Caller.run, Counter[int]()

    async def faulty(self: Caller, claimed: Claimed, *rest: Any) -> Outcome:
        met[claimed.index] += 1
        if claimed.index == 3 or (claimed.index == 5 and met[5] == 1):
            raise RuntimeError("the prompt was: secret")
        return await run(self, claimed, *rest)

    monkeypatch.setattr(Caller, "run", faulty)
    async with Standin() as standin, worker(redis, standin.url):
        queue = await sealed_job(redis, [chat(i) for i in range(10)], first_alone=0, max_attempts=2)
        await until(queue, JobState.COMPLETE)
        records = await results(queue)
    assert [i for i, record in records.items() if not record.ok] == [3]
    assert (met[3], met[5]) == (2, 2)
    assert (records[3].cls, records[3].attempts) == (FailureClass.TRANSIENT, 2)
    assert records[3].detail.message == "the worker failed while running it: RuntimeError"


async def test_a_late_answer_of_another_worker_is_not_doubled(redis: Redis) -> None:
    """Somebody else answered first: this worker's own answer is counted as dup and dropped."""
    async with Standin(latency=0.3) as standin, worker(redis, standin.url):
        queue = await sealed_job(redis, [chat(0), chat(1)], first_alone=0)
        await wait_until(lambda: standin.stats["in_flight"] == 2, description="both are in flight")
        await queue.commit("zombie", [Finished(0, 0, record_of(0))], [])

        async def late() -> bool:
            return (await queue.snapshot()).dup == 1

        await wait_until(late, description="the late answer was seen")
        await until(queue, JobState.COMPLETE)
        assert (await queue.snapshot()).done == 2


@pytest.mark.parametrize("change", ["grown", "rewritten", "outside"])
async def test_a_picture_by_reference_that_is_not_what_it_was_fails_its_row(
    redis: Redis, tmp_path, change: str
) -> None:
    """Changed since it was submitted, or outside the allowed roots: bad_input naming the path, the other rows run."""
    data = saved(quarters(20, 10), "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(data)
    image = Image(digest_of(data), len(data), str(path), path.stat().st_mtime_ns)
    if change == "grown":
        path.write_bytes(data + b"x")
    elif change == "rewritten":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    roots = [str(tmp_path / "elsewhere" if change == "outside" else tmp_path)]
    request = Request(0, None, bytes(16), "/chat/completions", [b"{", b"}"], [image])
    async with Standin() as standin, worker(redis, standin.url, allowed_roots=roots):
        queue = await sealed_job(redis, [request, chat(1)], first_alone=0)
        await until(queue, JobState.COMPLETE)
        records = await results(queue)
    assert records[0].cls is FailureClass.BAD_INPUT
    assert str(path) in (records[0].detail.message or "")
    assert records[1].ok


async def test_pictures_leave_memory_once_they_are_sent(redis: Redis) -> None:
    """All requests are in flight at once although their pictures do not fit the gate together."""
    data = saved(quarters(600, 400), "PNG", compress_level=0)
    digest = digest_of(data)
    head, tail = b'{"model":"standin","messages":[{"role":"user","content":[', b'"}}]}]}'
    head += b'{"type":"image_url","image_url":{"url":"data:image/png;base64,'
    request = [
        Request(i, None, bytes(16), "/chat/completions", [head, tail], [Image(digest, len(data))]) for i in range(16)
    ]
    async with Standin(latency=1.0) as standin, worker(redis, standin.url, slots=16, picture_bytes=3 * len(data)):
        queue = await sealed_job(redis, request, images={digest: data}, first_alone=0)
        await wait_until(lambda: standin.stats["in_flight"] == 16, description="all are in flight")
        await until(queue, JobState.COMPLETE)
    assert (await queue.snapshot()).failed == 0


async def test_a_picture_that_is_gone_from_the_store_pauses_the_job(redis: Redis) -> None:
    """A damaged run is a person's business: no row is failed for it."""
    async with Standin() as standin:
        request = Request(0, None, bytes(16), "/chat/completions", [b"{", b"}"], [Image("ab" * 16, 9)])
        queue = await sealed_job(redis, [request], images={"ab" * 16: b"123456789"}, first_alone=0)
        await redis.hdel(queue.keys.payload(0), "i:" + "ab" * 16)
        async with worker(redis, standin.url):
            await until(queue, JobState.PAUSED)
    snapshot = await queue.snapshot()
    assert (snapshot.reason, snapshot.missing, snapshot.done) == (PauseReason.STORE, 1, 0)


async def test_a_job_removed_under_way_is_left_without_an_alarm(redis: Redis) -> None:
    """Its requests are dropped; nobody takes the end of the job for a store that lost its writes."""
    async with Standin(latency=0.3) as standin, worker(redis, standin.url) as one:
        queue = await sealed_job(redis, [chat(i) for i in range(40)], first_alone=0)
        await wait_until(lambda: standin.stats["in_flight"] == 32, description="its slots are full")
        [session] = one.roster.sessions.values()
        await queue.remove()
        await wait_until(lambda: not one.roster.sessions, description="the worker has left the job")
        assert not session.queue.rolled_back
