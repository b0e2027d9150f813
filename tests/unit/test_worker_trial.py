"""The first requests of a job: what they say of the setup."""

from __future__ import annotations

from gristmill.contract.failure import FailureClass
from gristmill.queue.replies import Claimed
from gristmilld.upstream.outcome import FailedCall, Shape
from gristmilld.worker.attempt import Outcome
from gristmilld.worker.trial import Trial, Verdict


def ok(index: int) -> Outcome:
    return Outcome(Claimed(index, 0, 1), b"record")


def failed(index: int, shape: Shape | None, cls: FailureClass = FailureClass.BAD_REQUEST) -> Outcome:
    return Outcome(Claimed(index, 0, 1), b"record", failure=FailedCall(cls, "refused", 404, shape=shape))


def test_one_good_answer_passes_the_trial() -> None:
    """Whatever the others say, the setup works."""
    trial = Trial(4)
    trial.expect(4)
    assert trial.add(failed(0, Shape.WRONG_URL)) is Verdict.OPEN
    assert trial.add(ok(1)) is Verdict.PASSED


def test_all_alike_in_a_configuration_shape_fails_it_with_a_diagnosis() -> None:
    """Four 404s on the path mean a wrong URL, not four bad rows."""
    trial = Trial(4)
    trial.expect(4)
    verdicts = [trial.add(failed(i, Shape.WRONG_URL)) for i in range(4)]
    assert verdicts == [Verdict.OPEN, Verdict.OPEN, Verdict.OPEN, Verdict.FAILED]
    assert trial.diagnosis()


def test_failures_of_different_shapes_pass() -> None:
    """Rows that fail each in its own way are bad rows."""
    trial = Trial(2)
    trial.expect(2)
    trial.add(failed(0, Shape.WRONG_URL))
    assert trial.add(failed(1, Shape.UNKNOWN_MODEL)) is Verdict.PASSED


def refused(index: int, body: bytes) -> Outcome:
    failure = FailedCall(FailureClass.BAD_REQUEST, "the server refused the request (400)", 400, body=body)
    return Outcome(Claimed(index, 0, 1), b"record", failure=failure)


def test_refusals_that_differ_pass() -> None:
    """A plain 400 is the row's own fault."""
    trial = Trial(2)
    trial.expect(2)
    trial.add(refused(0, b'{"error":"temperature is too high"}'))
    assert trial.add(refused(1, b'{"error":"no such voice"}')) is Verdict.PASSED


def test_refusals_in_the_same_words_fail_the_trial() -> None:
    """Ids and numbers aside, the server says the same to all: they all ask for what it won't do."""
    trial = Trial(2)
    trial.expect(2)
    trial.add(refused(0, b'{"error":"max_tokens 9000 is too large","id":"req-1a2b"}'))
    assert trial.add(refused(1, b'{"error":"max_tokens 9001 is too large","id":"req-77ff"}')) is Verdict.FAILED
    assert "--first-alone 0" in (trial.diagnosis() or "")


def test_a_trial_of_one_row_judges_the_setup_but_not_the_row() -> None:
    """A rerun sends what failed before: its first row may be bad by itself, but a wrong URL is still found."""
    for outcome in (refused(0, b'{"error":"no"}'), failed(0, Shape.CONTEXT, FailureClass.CONTEXT_LENGTH)):
        trial = Trial(1)
        trial.expect(1)
        assert trial.add(outcome) is Verdict.PASSED
    trial = Trial(1)
    trial.expect(1)
    assert trial.add(failed(0, Shape.WRONG_URL)) is Verdict.FAILED


def test_a_few_rows_refused_alike_are_no_wrong_setup() -> None:
    """A job that is smaller than the trial ends with failed rows."""
    trial = Trial(4)
    trial.expect(1)
    assert trial.add(refused(0, b'{"error":"no"}')) is Verdict.PASSED


def test_a_single_row_with_a_long_prompt_is_no_wrong_setup() -> None:
    """A job of one row whose prompt is too long ends with a failed row, not with a pause."""
    trial = Trial(4)
    trial.expect(1)
    assert trial.add(failed(0, Shape.CONTEXT, FailureClass.CONTEXT_LENGTH)) is Verdict.PASSED


def test_a_whole_trial_of_long_prompts_is_a_wrong_setup() -> None:
    """When none of the first fits, the server's context is set too small for this job."""
    trial = Trial(2)
    trial.expect(2)
    trial.add(failed(0, Shape.CONTEXT, FailureClass.CONTEXT_LENGTH))
    assert trial.add(failed(1, Shape.CONTEXT, FailureClass.CONTEXT_LENGTH)) is Verdict.FAILED
