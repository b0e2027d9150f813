"""The drop-in class against a real server: what a script that was written for another class counts on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cli import use_bare_environment
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until_sync

import gristmill


@pytest.fixture(scope="module")
def standin() -> Iterator[StandinProcess]:
    with StandinProcess() as process:
        yield process


@pytest.fixture(autouse=True)
def clean(standin: StandinProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    use_bare_environment(monkeypatch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    standin.control(faults=[], key=None, latency=0.01, strict_model=False)


@pytest.fixture(scope="module")
def api(standin: StandinProcess) -> Iterator[gristmill.MPOpenAIAPI]:
    with gristmill.MPOpenAIAPI(
        "standin", api_base=standin.root, thread_num=64, num_workers=1, retry=2, wait=0.1
    ) as api:
        yield api


def test_the_drop_in_puts_fail_msg_in_the_place_of_failures(api, standin, caplog):
    """And keeps the reasons; one log line has the counts; the next call begins anew."""
    standin.control(faults=[{"kind": "status", "status": 500, "text": "POISON"}])
    with caplog.at_level("INFO", logger="gristmill"):
        answers = api.generate(["a", "POISON b", [{"type": "image", "value": "/missing"}], "c"], fail_msg="none")
    assert [a == "none" for a in answers] == [False, True, True, False]
    assert [(f.index, f.code) for f in api.last_failures] == [(1, "transient"), (2, "bad_image")]
    assert [r.getMessage().partition(" (")[0] for r in caplog.records if "requests:" in r.getMessage()] == [
        "4 requests: 2 succeeded, 2 failed"
    ]
    assert api.generate(["a"]) == answers[:1]
    assert api.last_failures == []
    code, answer, response = api.generate_inner("POISON")
    assert (code, answer) == (500, api.fail_msg)
    assert response
    assert api.generate_inner("a")[:2] == (0, answers[0])


@pytest.mark.parametrize(
    "told", ['"top_k":20', '"min_p":0.0', '"chat_template_kwargs":{"enable_thinking":false}', '"max_tokens":7', '"x":1']
)
def test_the_drop_in_sends_its_settings(api, standin, told):
    """Those of the constructor, those of the call, and the extras of vLLM and SGLang; alone and in a list."""
    standin.control(faults=[{"kind": "content", "body": "told", "text": told}])
    assert api.generate(["a"], max_tokens=7, x=1) == ["told"]
    assert api.generate_inner("a", max_tokens=7, x=1)[1] == "told"


def test_the_drop_in_gives_dicts_and_reasoning(api, standin):
    """`return_dict` parses; an answer without one has failed. Reasoning comes by an accessor."""
    (found,) = api.generate(["abc"], return_dict=True)
    assert found["text_len"] == 3
    assert api.generate_inner("abc", return_dict=True)[1] == found
    assert api.reasoning({"choices": [{"message": {"reasoning_content": "hm"}}]}) == "hm"
    assert api.last_reasoning == [""]
    standin.control(faults=[{"kind": "content", "body": 'So:\n```json\n{"a": [1]}\n```'}])
    assert api.generate(["abc"], return_dict=True) == [{"a": [1]}]
    standin.control(faults=[{"kind": "content", "body": "no dict at all"}])
    assert api.generate(["abc"], return_dict=True) == [api.fail_msg]
    assert api.last_failures[0].code == "invalid_output"


def test_the_drop_in_ends_when_a_person_is_needed(standin, caplog):
    """A wrong key: every answer is fail_msg, the reason is in the log, and nothing hangs."""
    standin.control(key="sk-right")
    with gristmill.OpenAIAPI("standin", key="sk-wrong", api_base=standin.root, num_workers=1) as api:
        assert api.generate(["a", "b"]) == [api.fail_msg] * 2
        assert {f.code for f in api.last_failures} == {"config_error"}
        assert "does not accept the key" in caplog.text
        assert api.generate_inner("a")[0] == -1
        standin.control(key=None)
        assert api.generate(["a"]) != [api.fail_msg]


def test_the_drop_in_ends_when_no_server_comes(monkeypatch, caplog):
    """After retry * (connect time-out + wait) seconds without any: the rest is fail_msg."""
    monkeypatch.setattr("gristmill.sdk.watch._STALLED_S", 0.3)
    with gristmill.OpenAIAPI("m", api_base="http://127.0.0.1", port=9, retry=1, wait=0.5, timeout=(0.5, 1)) as api:
        assert api.generate(["a", "b"]) == [api.fail_msg] * 2
        assert [(f.index, f.code) for f in api.last_failures] == [(0, "endpoint_down"), (1, "endpoint_down")]
        assert "refused the connection" in api.last_failures[0].message
        assert api.generate_inner("a")[:2] == (-1, api.fail_msg)
    assert "waiting: " in caplog.text


class Foreign:
    """A number of another library, as numpy's are."""

    def tolist(self) -> int:
        return 7


def test_numbers_of_other_libraries_are_numbers(api, standin):
    """Alone and in a list."""
    standin.control(faults=[{"kind": "content", "body": "told", "text": '"max_tokens":7,'}])
    assert api.generate(["a"], max_tokens=Foreign()) == ["told"]
    assert api.generate_inner("a", max_tokens=Foreign())[1] == "told"


def test_a_call_takes_nothing_that_must_not_leave_the_machine(api, standin):
    """A key that is given to a call would become a part of the body; its value is not repeated."""
    before = standin.stats["requests"]
    for call in (api.generate, api.generate_inner):
        with pytest.raises(TypeError, match="key belongs to the constructor") as caught:
            call(["a"], key="sk-SECRET")
        assert "SECRET" not in str(caught.value)
    assert standin.stats["requests"] == before


def test_bad_first_messages_do_not_take_the_others_with_them(standin):
    """An input sorted by length begins with what is too long. A wrong model is found with the first all the same."""
    standin.control(faults=[{"kind": "status", "status": 400, "text": "POISON"}])
    with gristmill.MPOpenAIAPI("standin", api_base=standin.root, num_workers=1) as api:
        answers = api.generate([*[f"POISON {n}" for n in range(10)], "a", "b"])
        assert [a == api.fail_msg for a in answers] == [True] * 10 + [False] * 2
    standin.control(faults=[], strict_model=True)
    before = standin.stats["requests"]
    with gristmill.MPOpenAIAPI("other", api_base=standin.root, num_workers=1) as api:
        assert api.generate(["a"] * 20) == [api.fail_msg] * 20
        assert {f.code for f in api.last_failures} == {"config_error"}
    assert standin.stats["requests"] <= before + 4


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_that_fails_every_call_is_given_up(monkeypatch, caplog, standin, status):
    """It answers, so it can be reached, and its breaker lets hardly a call through: that must not take for ever."""
    monkeypatch.setattr("gristmill.sdk.watch._STALLED_S", 0.3)
    standin.control(faults=[{"kind": "status", "status": status}])
    with gristmill.MPOpenAIAPI(
        "standin", api_base=standin.root, num_workers=1, retry=2, wait=0.5, timeout=(1, 30)
    ) as api:
        assert api.generate(["a"] * 300) == [api.fail_msg] * 300
        assert [f.index for f in api.last_failures] == list(range(300))
        assert "fails every call" in api.last_failures[-1].message
        assert "fails every call, for 3 s; the requests without an answer are failed" in caplog.text
        standin.control(faults=[])
        assert api.fail_msg not in api.generate(["a"] * 3)


def test_a_slow_server_is_not_given_up(monkeypatch, standin):
    """However long an answer takes beyond the patience with a dead one."""
    monkeypatch.setattr("gristmill.sdk.watch._STALLED_S", 0.1)
    standin.control(latency=0.8)
    with gristmill.MPOpenAIAPI(
        "standin", api_base=standin.root, num_workers=1, retry=1, wait=0, timeout=(0.3, 30)
    ) as api:
        assert api.fail_msg not in api.generate(["a"] * 3)
        assert api.generate_inner("a")[0] == 0


def test_after_shutdown_a_call_begins_anew(standin):
    """One that another thread's shutdown interrupts says so instead of hanging or giving half of it."""
    standin.control(latency=5)
    with gristmill.MPOpenAIAPI("standin", api_base=standin.root, num_workers=1) as api:
        outcomes: list[object] = []

        def call() -> None:
            try:
                outcomes.append(api.generate(["a"]))
            except gristmill.ClosedError as error:
                outcomes.append(error)

        before = standin.stats["requests"]
        thread = threading.Thread(target=call)
        thread.start()
        wait_until_sync(lambda: standin.stats["requests"] > before, description="it is sent")
        api.shutdown()
        thread.join(20)
        assert [type(outcome) for outcome in outcomes] == [gristmill.ClosedError]
        standin.control(latency=0)
        assert api.fail_msg not in api.generate(["a", "b"])
        assert api.generate_inner("a")[0] == 0
