"""What clients and the drop-in make of their arguments and of the environment."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import subprocess
import sys

import pytest
from tests.support.cli import use_bare_environment

import gristmill
from gristmill.mpopenai import MPOpenAIAPI, OpenAIAPI
from gristmill.sdk import bar as bars
from gristmill.sdk.bar import Bar
from gristmill.sdk.daemon import SPARE_FILES, fitting_concurrency
from gristmill.sdk.errors import SetupError
from gristmill.sdk.face import Face, named
from gristmill.sdk.options import ClientOptions, api_key, base_urls


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    use_bare_environment(monkeypatch)


def made(**kwargs) -> MPOpenAIAPI:
    return MPOpenAIAPI("m", **{"api_base": "http://h:1", **kwargs})


def test_the_constructor_is_the_one_that_scripts_know():
    """Names, order and defaults."""
    import inspect

    found = {n: p.default for n, p in inspect.signature(MPOpenAIAPI.__init__).parameters.items() if n != "self"}
    assert found.pop("model") is found.pop("kwargs") is inspect.Parameter.empty
    assert list(found.items()) == [
        ("key", None), ("temperature", 0.6), ("top_p", 0.95), ("top_k", 20), ("min_p", 0.0), ("presence_penalty", 1.0),
        ("repetition_penalty", 1.0), ("api_base", None), ("port", None), ("retry", 10), ("wait", 3),
        ("timeout", (30, 1800)), ("max_tokens", 16384), ("thread_num", 8192), ("return_dict", False), ("logger", None),
        ("max_connections", None), ("num_workers", None), ("worker_concurrency", None), ("enable_thinking", False),
    ]  # fmt: skip


def test_workers_and_concurrency_follow_from_each_other():
    """One worker a core, at most 8; thread_num shared among them; no more connections than asked for."""
    workers = min(os.cpu_count() or 1, 8)
    api = made()
    assert (api.num_workers, api.worker_concurrency) == (workers, 8192 // workers)
    assert api.max_connections == min(8192 // workers, 16384)
    api = made(num_workers=3, thread_num=10)
    assert (api.num_workers, api.worker_concurrency, api.max_connections) == (3, 3, 3)
    assert made(num_workers=3, thread_num=1).worker_concurrency == 1
    assert made(thread_num=100_000, num_workers=1).max_connections == 16384
    api = made(num_workers=2, worker_concurrency=50, max_connections=20)
    assert api._face.options.workers == 2
    assert api._face.options.concurrency == 20


def test_settings_become_the_body_and_the_terms_of_a_job():
    """Sampling goes into the body, with the extras of vLLM and SGLang; None leaves a key out; the call goes first."""
    api = made(stop=["x"], top_k=None, enable_thinking=True, retry=4, wait=2, timeout=(5, 60), thread_num=77)
    settings = api._settings({"temperature": 0, "seed": 3})
    assert settings.payload == {
        "model": "m", "temperature": 0, "top_p": 0.95, "min_p": 0.0, "presence_penalty": 1.0, "repetition_penalty": 1.0,
        "max_tokens": 16384, "stop": ["x"], "seed": 3, "chat_template_kwargs": {"enable_thinking": True},
    }  # fmt: skip
    options = settings.options
    assert (options.max_attempts, options.max_backoff_s, options.max_in_flight) == (4, 2.0, 77)
    assert (options.timeouts.connect_s, options.timeouts.first_byte_s, options.timeouts.idle_s) == (5, 60, 60)
    again = api._settings({"retry": 0, "wait": 0, "timeout": 9, "enable_thinking": None, "fail_msg": "f"})
    assert (again.options.max_attempts, again.fail_msg) == (1, "f")
    assert again.options.max_backoff_s > 0  # 0 would mean the daemon's own
    assert "chat_template_kwargs" not in again.payload
    assert api._settings({"chat_template_kwargs": {"a": 1}}).payload["chat_template_kwargs"] == {
        "enable_thinking": True, "a": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "port", "environment", "url"),
    [
        ("http://h", 8000, None, "http://h:8000/v1"),
        ("http://h/", "8000", None, "http://h:8000/v1"),
        ("h", 8000, None, "http://h:8000/v1"),
        ("https://h/v1", None, None, "https://h/v1"),
        ("http://h:9/v1/chat/completions", None, None, "http://h:9/v1"),
        (None, None, "http://e:7", "http://e:7/v1"),
        (None, 7, "http://e", "http://e:7/v1"),
        (None, 7, None, "http://127.0.0.1:7/v1"),
        ("", 7, None, "http://127.0.0.1:7/v1"),
        ("http://h/v1", 7, None, "http://h:7/v1"),
        ("http://h/v1/chat/completions", 7, None, "http://h:7/v1"),
        ("http://h/gate", 7, None, "http://h:7/gate/v1"),
        ("http://h:7", 7, None, "http://h:7/v1"),
        ("http://[::1]", 7, None, "http://[::1]:7/v1"),
    ],
)
def test_the_servers_address(monkeypatch, given, port, environment, url):
    """From `api_base` and `port`, or from the environment."""
    if environment:
        monkeypatch.setenv("OPENAI_API_BASE", environment)
    assert MPOpenAIAPI("m", api_base=given, port=port)._face.options.endpoints == [url]


def test_two_ports_are_one_too_many():
    """Which is meant can't be known."""
    with pytest.raises(SetupError, match="api_base names port 1, and port is 2"):
        MPOpenAIAPI("m", api_base="http://h:1", port=2)


@pytest.mark.parametrize(
    ("told", "clocks"),
    [(None, (86_400, 86_400)), ((3, None), (3, 86_400)), ([3, 4], (3, 4)), (("3", "4"), (3, 4)), (7.5, (7.5, 7.5))],
)
def test_timeouts_in_many_spellings(told, clocks):
    """None is a day: scripts mean "as long as it takes"."""
    options = made(timeout=told)._settings({}).options
    assert (options.timeouts.connect_s, options.timeouts.first_byte_s) == clocks


def test_numbers_may_be_missing_or_text():
    """As they come out of a settings file."""
    api = made(thread_num=None, num_workers="2", retry=None, wait=None, max_connections="5")
    assert (api.thread_num, api.num_workers, api.worker_concurrency, api.max_connections) == (8192, 2, 4096, 5)
    assert api._settings({}).options.max_attempts == 1
    assert api._settings({"thread_num": 7}).options.max_in_flight == 7


def test_a_copy_works_for_itself():
    """Pickled into another process or copied, it has the settings and none of the threads."""
    api = made(key="sk-x", fail_msg="none", temperature=0)
    for again in (pickle.loads(pickle.dumps(api)), copy.deepcopy(api)):
        assert again._settings({}) == api._settings({})
        assert again._face.options == api._face.options
        assert again._face is not api._face
        again.shutdown()


def test_the_key_comes_from_the_call_or_the_environment(monkeypatch):
    """And is shown by no repr; one that no header takes is refused without being repeated."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    assert made()._face.options.key == "sk-env"
    api = made(key="sk-SECRET")
    assert api._face.options.key == "sk-SECRET"
    assert "SECRET" not in repr(api) + repr(api._face.options) + repr(ClientOptions(key="SECRET"))
    with pytest.raises(SetupError, match="holds blanks") as caught:
        api_key("sk with SECRET")
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "messages", [[{"role": "user", "content": "a"}], [{"type": "text", "value": "a"}], "a", {"role": "user"}, None, 3]
)
def test_one_conversation_in_the_place_of_many_is_refused(messages):
    """It would be taken for as many requests as it has messages."""
    with pytest.raises(ValueError, match="list"):
        made().generate(messages)


def test_nothing_to_do_starts_nothing():
    """An empty list has an empty list of answers."""
    api = made()
    assert api.generate([]) == []
    assert (api.last_failures, api._face.core._daemon) == ([], None)
    api.shutdown()
    api.shutdown()


def test_both_names_are_one_class():
    """With and without MP."""
    assert issubclass(MPOpenAIAPI, OpenAIAPI)
    assert gristmill.MPOpenAIAPI is MPOpenAIAPI


def test_endpoints_are_normalised_once_each(monkeypatch):
    """Given ones before the environment's; a malformed one is a sentence."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://env:1")
    assert base_urls(None) == ["http://env:1/v1"]
    assert base_urls(["http://a", "http://a/v1", "http://b"]) == ["http://a/v1", "http://b/v1"]
    with pytest.raises(SetupError, match="starts with http"):
        base_urls("nonsense")


def test_a_store_is_named_by_argument_or_environment(monkeypatch):
    """The drop-in keeps to its private one, whatever the environment says."""
    monkeypatch.setenv("GRISTMILL_REDIS_URL", "redis://env")
    plain = {"endpoints": None, "model": None, "key": None, "pool": "p", "workers": None, "concurrency": None}
    assert Face(redis=None, state_dir=None, **plain).options.redis == "redis://env"
    assert Face(redis="redis://x", state_dir=None, **plain).options.redis == "redis://x"
    assert Face(redis=None, state_dir="/s", **plain).options.redis is None
    assert made()._face.options.private


def test_what_is_a_file_and_what_is_an_iterable():
    """A string is a path; a dict or a number is a mistake that must not be iterated over."""
    assert str(named("a.jsonl")) == "a.jsonl"
    assert named(["a"]) is None
    assert named(x for x in "ab") is None
    for wrong in ({"prompt": "a"}, 3, b"a.jsonl"):
        with pytest.raises(TypeError, match="an iterable of requests"):
            named(wrong)


def test_concurrency_keeps_within_the_limit_of_open_files(monkeypatch):
    """A daemon would refuse to start with more."""
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1000))
    assert fitting_concurrency(4096) == 1000 - SPARE_FILES
    assert fitting_concurrency(10) == 10


def test_lazy_names_are_complete():
    """`dir`, `__all__` and what can be had agree; another name is the usual error."""
    assert set(gristmill.__all__) <= set(dir(gristmill))
    for name in gristmill.__all__:
        assert getattr(gristmill, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gristmill.nonsense


def test_the_import_is_quick():
    """Under 0.15 s beyond a bare interpreter; processor time, so that a busy machine does not count."""
    code = "import time; t = time.process_time(); import gristmill; print(time.process_time() - t)"
    took = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) for _ in range(3)
    ]
    assert min(took) < 0.15


# --- the bar


class Terminal:
    def __init__(self, live: bool) -> None:
        self.text, self._live = "", live

    def isatty(self) -> bool:
        return self._live

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(bars.time, "monotonic", lambda: now[0])
    monkeypatch.setenv("TERM", "xterm")
    return now


def test_a_bar_is_redrawn_in_place_on_a_terminal(monkeypatch, clock):
    """Silent for the first moment; then count, rate, time left and failures; the end is drawn and the line left."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal(live=True))
    with Bar(1000) as bar:
        bar.show(0, 0)
        assert terminal.text == ""
        clock[0] += 10
        bar.show(500, 3)
        bar.show(501, 3)  # too soon
        clock[0] += 10
        bar.show(1000, 3, last=True)
    first, second = terminal.text.split("\r")[1:]
    assert first == "[##############..............] 500/1,000, 50.0/s, 0:10 left, 3 failed"
    assert second.rstrip() == "[############################] 1,000/1,000, 50.0/s, 3 failed"
    assert second.endswith("\n")


def test_elsewhere_a_line_now_and_then(monkeypatch, clock):
    """Without escape codes or carriage returns: logs stay readable. Short work says nothing."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal(live=False))
    with Bar(10) as bar:
        clock[0] += 9
        bar.show(1, 0)
        bar.show(2, 0, last=True)
        assert terminal.text == ""
        clock[0] += 2
        bar.show(3, 0, "waiting: x")
    assert terminal.text == "[########....................] 3/10, 0.3/s, 0:26 left, waiting: x\n"


def test_the_bar_can_be_turned_off(monkeypatch, clock):
    """And a program without stderr, or with a closed one, goes on."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal(live=True))
    monkeypatch.setenv("GRISTMILL_PROGRESS", "0")
    with Bar(10) as bar:
        clock[0] += 5
        bar.show(1, 0)
    assert terminal.text == ""
    monkeypatch.delenv("GRISTMILL_PROGRESS")
    monkeypatch.setattr(sys, "stderr", None)
    with Bar(10) as bar:
        clock[0] += 50
        bar.show(1, 0)


def test_a_logger_of_another_kind_will_do():
    """Only `info`, `warning` and `error` are called, each with one text."""

    class Plain:
        def __init__(self) -> None:
            self.said: list[str] = []

        def info(self, text: str) -> None:
            self.said.append(text)

    api = made(logger=Plain())
    assert api.logger.said == []
    assert isinstance(made().logger, logging.Logger)
    assert pickle.loads(pickle.dumps(gristmill.Result(index=1))).index == 1
