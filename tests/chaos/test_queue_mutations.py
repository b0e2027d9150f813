"""Each likely mistake in a script, made on purpose, is caught by the tests: else the tests would prove nothing.

A mutation is one edit of one script: its old text, which must be there exactly once, and the new. The mutated script is
put in the loader's table, and the property machine or, for what it cannot see, a named story has to fail.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from redis.asyncio import Redis
from tests.support.queue_machine import QueueMachine
from tests.support.store import StoreProcess

from gristmill.queue import loader
from gristmill.queue.loader import Script

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


class Mutation(NamedTuple):
    """`story`: module and test that must fail, where the property machine is not meant to see it."""

    name: str
    script: str
    old: str
    new: str
    story: str = ""


FAULTS = "tests.integration.test_queue_known_faults"
WORKER = "tests.integration.test_queue_worker"
JOBS = "tests.integration.test_queue_jobs"

MUTATIONS = [
    Mutation("seal accepts a torn stage", "seal", "redis.call('HLEN', stage) ~= fields or ", ""),
    Mutation("seal keeps the stage's time to live", "seal", "redis.call('PERSIST', payload)\n", ""),
    Mutation("seal is not idempotent", "seal", "elseif run < sealed then status = 'DUP'", "elseif false then"),
    Mutation("seal ignores the first index", "seal", " or first ~= prod", "",
             f"{JOBS}:test_a_run_that_does_not_follow_is_a_gap"),
    Mutation("seal ignores the mark", "seal", "held + bytes > mark", "false"),
    Mutation("FULL drops the stage", "seal", "redis.call('EXPIRE', stage, 600)", "redis.call('UNLINK', stage)",
             f"{FAULTS}:test_full_keeps_the_stage_so_that_only_the_seal_is_repeated"),
    Mutation("close ignores n", "close", " or n ~= tonumber(ARGV[3])", ""),
    Mutation("close ignores the runs", "close", "runs ~= tonumber(ARGV[2]) or n ~= tonumber(ARGV[3])", "false"),
    Mutation("commit looks for waiting ones only when fewer were held than are new", "commit",
             "if mine < count then", "if mine < #fresh then",
             f"{WORKER}:test_a_late_record_leaves_waiting_whatever_else_the_batch_holds"),
    Mutation("a duplicate overwrites", "commit", "if old[i] == 0 then", "if true then"),
    Mutation("a late success leaves its index waiting", "commit", "redis.call('ZREM', waiting, unpack(fresh))", ""),
    Mutation("a late success leaves its index a suspect", "commit",
             "redis.call('ZREM', suspects, unpack(fresh))", "",
             f"{WORKER}:test_a_late_record_of_a_suspect_ends_the_suspicion"),
    Mutation("a return is accepted from who does not hold it", "commit",
             "if math.abs(value) ~= tonumber(ARGV[p + 1]) then", "if false then"),
    Mutation("a return is accepted for an older claim", "commit",
             "if math.abs(value) ~= tonumber(ARGV[p + 1]) then", "if value == 0 then",
             f"{FAULTS}:test_a_replayed_retry_does_not_take_the_index_from_its_new_claim"),
    Mutation("a return of a done index waits again", "commit",
             "if not ended and redis.call('GETBIT', done, index) == 0 then", "if not ended then",
             f"{WORKER}:test_missing_payload_of_a_done_index_is_dropped"),
    Mutation("a returned suspect is one no more", "commit", "value < 0 and suspects or waiting", "waiting"),
    Mutation("commit accepts indices beyond prod", "commit", "if tonumber(ARGV[at]) >= prod then", "if false then",
             f"{WORKER}:test_indices_that_the_store_does_not_have_are_counted_and_not_kept"),
    Mutation("frames are freed before they are done", "commit", "for _, index in ipairs(group.indices) do",
             "group.indices[#group.indices + 1] = '0'\n  for _, index in ipairs(group.indices) do"),
    Mutation("frames are kept after they are done", "commit", "  free(group)\n", ""),
    Mutation("pictures stay after the last frame", "commit", "redis.call('UNLINK', group.payload)", ""),
    Mutation("cancel drops records", "commit", "local ended = state == 'cancelled'",
             "local ended = state == 'cancelling' or state == 'cancelled'",
             f"{FAULTS}:test_cancel_keeps_the_records_of_what_was_in_flight"),
    Mutation("commit does not end the job", "commit", "state = over(meta, done, state, m[4]",
             "local _ = over(meta, done, 'none', m[4]"),
    Mutation("the history outlives the record", "commit", "redis.call('HDEL', histories, unpack(fresh))", ""),
    Mutation("bad input proves the setup", "commit", "if code ~= BAD_IMAGE and code ~= BAD_INPUT then", "do",
             f"{WORKER}:test_the_first_requests_go_alone_until_the_setup_is_proven"),
    Mutation("a committed block is not listed for the collector", "commit",
             "redis.call('SADD', unacked, group.block)", ""),
    Mutation("reap requeues done indices", "reap", "if redis.call('GETBIT', done, index) == 0 then", "do",
             f"{WORKER}:test_a_dead_workers_requests_that_others_answered_stay_done"),
    Mutation("reap forgets the counter of what is in flight", "reap", "tonumber(m[4]) - company", "tonumber(m[4])"),
    Mutation("reap keeps the lease", "reap", "redis.call('ZREM', workers, token)", ""),
    Mutation("reap does not end a job that is being cancelled", "reap", "over(meta, done, state, m[5]",
             "over(meta, done, 'none', m[5]"),
    Mutation("a crash blames nobody", "reap", "if not crashed or alone >= POISON then", "if true then"),
    Mutation("the first claim is forgotten", "reap", "index, history(attempts, crashes, cohort, alone, first, claim)",
             "index, history(attempts, crashes, cohort, alone, 0, claim)",
             f"{JOBS}:test_the_first_claim_is_remembered_whatever_happens_since"),
    Mutation("a return forgets the first claim", "commit", "cohort, alone, first, value)", "cohort, alone, 0, value)"),
    Mutation("claim ignores the deadline", "claim", "if deadline > 0 and now >= deadline then", "if false then",
             "tests.integration.test_queue_jobs:test_nothing_is_handed_out_after_the_deadline"),
    Mutation("cohorts do not halve", "reap", "math.floor(limit / 2)", "limit"),
    Mutation("poison is never found", "reap", "alone = alone + 1", "alone = alone + 0",
             f"{WORKER}:test_many_crashes_alone_make_poison_that_is_never_run"),
    Mutation("a few kills from outside make poison", "reap", "local POISON = 8", "local POISON = 7",
             f"{WORKER}:test_many_crashes_alone_make_poison_that_is_never_run"),
    Mutation("a cohort counts as one alone", "reap", "if was_suspect and company == 1 then", "if was_suspect then"),
    Mutation("claim ignores done bits after a lost suffix", "claim",
             "if redis.call('BITCOUNT', done, cur, cur + k - 1, 'BIT') == 0 then", "if true then",
             f"{WORKER}:test_a_done_index_is_never_handed_out"),
    Mutation("claim believes a reaped token", "claim",
             "if ARGV[6] == '1' and not redis.call('ZSCORE', workers, token) then", "if false then"),
    Mutation("claim hands out while paused", "claim", "if state ~= 'running' then", "if state == 'deleting' then"),
    Mutation("claim ignores the limit in flight", "claim", "if cap > 0 then", "if false then"),
    Mutation("claim ignores the first ones alone", "claim", "if first_alone > 0 and m[12] ~= '1' then",
             "if false then",
             f"{WORKER}:test_the_first_requests_go_alone_until_the_setup_is_proven"),
    Mutation("claim lets another worker in on the first ones", "claim", "if mine ~= in_flight then", "if false then",
             f"{WORKER}:test_the_first_requests_go_alone_until_the_setup_is_proven"),
    Mutation("claim ignores the results mark", "claim", "tonumber(m[9]) > tonumber(m[10])", "false",
             f"{WORKER}:test_results_above_the_mark_hold_back_fresh_work_only"),
    Mutation("claim leaves what it took in waiting", "claim",
             "if #out > 0 then redis.call('ZREM', queue, unpack(out)) end", ""),
    Mutation("suspects come in any company", "claim", "if taken + 1 > limit then return false end", "",
             f"{FAULTS}:test_one_crash_serves_its_suspects_in_halves"),
    Mutation("a token gets more while it holds suspects", "claim",
             "tonumber(redis.call('HRANDFIELD', held, 1, 'WITHVALUES')[2]) < 0", "false"),
    Mutation("suspects block other retries", "reap", "  return suspects\nend", "  return waiting\nend",
             f"{FAULTS}:test_suspects_do_not_hide_other_retries"),
    Mutation("claim numbers repeat", "claim", "math.max(tonumber(m[13]) + 1, now)", "7",
             f"{FAULTS}:test_a_replayed_retry_does_not_take_the_index_from_its_new_claim"),
    Mutation("ack frees what is not done", "ack", "if length > 0 then",
             "redis.call('SETBIT', acked, index, 1)\n    if length > 0 then",
             f"{JOBS}:test_an_ack_of_what_is_not_done_frees_nothing"),
    Mutation("ack is accepted from a second collector", "ack", "if m[4] ~= ARGV[2] then", "if false then"),
    Mutation("ack leaves empty blocks", "ack", "redis.call('UNLINK', KEYS[k])", ""),
    Mutation("ack forgets the bytes", "ack", "tonumber(m[5]) - freed", "tonumber(m[5])"),
    Mutation("resume misses completion", "ctl", "if event == 'resume' or event == 'cancel' then",
             "if event == 'cancel' then", f"{FAULTS}:test_a_resume_finds_a_job_of_which_all_is_done_complete"),
    Mutation("cancel never settles", "ctl", "if event == 'resume' or event == 'cancel' then",
             "if event == 'resume' then"),
    Mutation("settle does not wait", "ctl", "if event == 'settle' and in_flight > 0 and ARGV[5] ~= '1' then",
             "if false then",
             "tests.contract.test_queue_lifecycle:test_settle_waits_for_what_is_in_flight_unless_forced"),
    Mutation("resume forgets nothing", "ctl",
             "redis.call('HSET', meta, 'proven', ARGV[3] == 'proven' and '1' or '0', "
             "'done_base', m[7], 'failed_base', m[8])", "",
             f"{WORKER}:test_resume_asks_for_a_new_proof"),
    Mutation("the lease is given to everybody", "lease",
             "if op == 'take' and (not owner or deadline <= now or ARGV[7] == '1') then", "if op == 'take' then",
             f"{JOBS}:test_one_feeder_at_a_time"),
    Mutation("missing payload is released in silence", "commit", "missing = missing + 1", "",
             f"{WORKER}:test_missing_payload_pauses_the_job_and_is_counted"),
    Mutation("the byte budget is ignored", "claim", "math.floor((max_bytes - spent) / size)", "want",
             f"{WORKER}:test_a_byte_budget_bounds_a_claim_but_never_to_nothing"),
    Mutation("a lease that has not run out is reaped", "reap", "if ARGV[3] ~= '1' and tonumber(deadline) > now then",
             "if false then",
             f"{WORKER}:test_a_lease_runs_out_by_the_stores_clock_and_is_reaped_without_blame"),
]  # fmt: skip


@pytest.fixture
def mutate() -> Iterator[object]:
    """Puts mutants into the loader's table, and takes them out again."""
    table = loader.scripts()
    kept = dict(table)

    def put(mutation: Mutation) -> None:
        text = table[mutation.script].text
        assert text.count(mutation.old) == 1, f"{mutation.name}: its text is not once in {mutation.script}.lua"
        table[mutation.script] = Script.of(text.replace(mutation.old, mutation.new))

    yield put
    table.update(kept)


def machine_fails(url: str) -> bool:
    """Whether stories of the property machine find something; no shrinking, the first one will do."""
    calm = settings(
        max_examples=200,
        stateful_step_count=80,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        print_blob=False,
        report_multiple_bugs=False,
    )
    try:
        run_state_machine_as_test(QueueMachine.for_store(url), settings=calm)
    except Exception:  # noqa: BLE001 - whatever breaks, a wrong reply or an error of the script, has caught the mutant
        return True
    return False


@pytest.mark.parametrize("mutation", [m for m in MUTATIONS if not m.story], ids=lambda m: m.name)
def test_the_property_machine_catches(mutation: Mutation, mutate, shared_store: StoreProcess):
    """Random stories find the mistake."""
    mutate(mutation)
    assert machine_fails(shared_store.url), f"nobody noticed: {mutation.name}"


@pytest.mark.parametrize("mutation", [m for m in MUTATIONS if m.story], ids=lambda m: m.name)
async def test_its_story_catches(mutation: Mutation, mutate, redis: Redis):
    """The test that was written for the behaviour fails without it."""
    module, _, name = mutation.story.partition(":")
    story = getattr(importlib.import_module(module), name)
    await story(redis)
    await redis.flushall()
    mutate(mutation)
    with pytest.raises(Exception):  # noqa: B017 - an assertion, or an error of the script
        await story(redis)
