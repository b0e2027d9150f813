"""The client against the stand-in: every way in which a call can end is a value of its class."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import pytest
from tests.support.standin import Standin
from tests.support.wait import wait_until

from gristmill.contract.failure import FailureClass
from gristmill.contract.manifest import Timeouts
from gristmilld.config import EndpointConfig, Secret
from gristmilld.upstream.body import Body
from gristmilld.upstream.client import UpstreamClient
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.failures import looks_like_configuration
from gristmilld.upstream.outcome import Answer, Clock, FailedCall, Shape

C = FailureClass
CHAT = "/chat/completions"
SENTINEL = "zebra-4711-sentinel"
PATIENT = Timeouts(connect_s=5, first_byte_s=10, idle_s=10, total_s=20)


@pytest.fixture
async def standin() -> AsyncIterator[Standin]:
    async with Standin() as server:
        yield server


@pytest.fixture
async def client(open_client) -> AsyncIterator[UpstreamClient]:
    async with open_client(64) as opened:
        yield opened


def endpoint_of(url: str, **settings: object) -> Endpoint:
    return Endpoint(EndpointConfig(name="mill", url=url, **settings))


def chat(text: str = "hello", **fields: object) -> Body:
    return Body([json.dumps({"messages": [{"role": "user", "content": text}], **fields}).encode()])


async def send(client, standin, body=None, timeouts=PATIENT, **options) -> Answer | FailedCall:
    endpoint = endpoint_of(standin.url)
    return await client.send(endpoint, CHAT, body or chat(), timeouts, **options)


async def failure(client, standin, *args, **options) -> FailedCall:
    outcome = await send(client, standin, *args, **options)
    assert isinstance(outcome, FailedCall)
    return outcome


async def test_a_good_answer_has_everything_its_record_needs(client, standin):
    """Body, tokens, the server's request id, times and the endpoint's name."""
    standin.control(latency=0.05)
    answer = await send(client, standin)
    assert isinstance(answer, Answer)
    body = json.loads(answer.body)
    assert json.loads(body["choices"][0]["message"]["content"])["text_len"] == 5
    assert (answer.prompt_tokens, answer.completion_tokens) == (
        body["usage"]["prompt_tokens"],
        body["usage"]["completion_tokens"],
    )
    assert (answer.status_code, answer.request_id, answer.endpoint, answer.flags) == (200, "standin-1", "mill", [])
    assert 45 <= answer.first_byte_ms <= answer.latency_ms < 5_000


@pytest.mark.parametrize(
    ("fault", "cls", "shape"),
    [
        ({"kind": "status", "status": 500}, C.TRANSIENT, None),
        ({"kind": "status", "status": 503, "retry_after": 3}, C.OVERLOADED, None),
        ({"kind": "status", "status": 401}, C.CONFIG_ERROR, Shape.AUTH),
        ({"kind": "status", "status": 400}, C.BAD_REQUEST, None),
        ({"kind": "error_200"}, C.TRANSIENT, None),
        ({"kind": "garbage"}, C.TRANSIENT, None),
        ({"kind": "html"}, C.TRANSIENT, Shape.NOT_AN_ANSWER),
        ({"kind": "empty"}, C.TRANSIENT, None),
        ({"kind": "not_an_answer"}, C.TRANSIENT, Shape.NOT_AN_ANSWER),
        ({"kind": "truncated"}, C.TRANSIENT, None),
        ({"kind": "reset"}, C.TRANSIENT, None),
        ({"kind": "close"}, C.TRANSIENT, None),
        ({"kind": "redirect"}, C.CONFIG_ERROR, Shape.REDIRECT),
        ({"kind": "finish", "reason": "content_filter"}, C.CONTENT_FILTER, None),
    ],
)
async def test_each_misbehaviour_has_its_class(client, standin, fault, cls, shape):
    """On a new connection, what the server does wrong is told apart."""
    standin.control(faults=[fault])
    seen = await failure(client, standin)
    assert (seen.cls, seen.shape, seen.endpoint) == (cls, shape, "mill")


@pytest.mark.parametrize("where", ["header", "date", "body", "words"])
async def test_retry_after_is_read_wherever_it_stands(client, standin, where):
    """The wait of a 429 comes through from a real response."""
    standin.control(faults=[{"kind": "status", "status": 429, "retry_after": 7, "retry_after_in": where}])
    seen = await failure(client, standin)
    assert seen.cls is C.RATE_LIMITED
    assert seen.retry_after_s == pytest.approx(7, abs=1.1)  # a date has whole seconds


async def test_a_redirect_is_not_followed(client, standin):
    """No second request goes anywhere, so no key does either."""
    standin.control(faults=[{"kind": "redirect", "location": standin.url + CHAT, "times": 1}])
    assert "redirect" in (looks_like_configuration(await failure(client, standin)) or "")
    assert standin.stats["requests"] == 1


async def test_a_cut_answer_is_kept_and_flagged(client, standin):
    """Finish reason `length` is an answer with a flag, also when the request asked for JSON."""
    standin.control(faults=[{"kind": "finish", "reason": "length"}])
    for wants_json in (False, True):
        answer = await send(client, standin, wants_json=wants_json)
        assert isinstance(answer, Answer)
        assert answer.flags == ["truncated"]


async def test_text_where_json_was_asked_for_is_kept_as_a_failure(client, standin):
    """`invalid_output` carries the whole answer and its tokens."""
    standin.control(faults=[{"kind": "content", "body": "not json"}])
    seen = await failure(client, standin, wants_json=True)
    assert seen.cls is C.INVALID_OUTPUT
    assert json.loads(seen.body or b"")["choices"][0]["message"]["content"] == "not json"
    assert seen.prompt_tokens > 0


@pytest.mark.parametrize("kind", ["status", "error_200", "garbage", "html"])
async def test_an_echoed_prompt_stays_in_the_body(client, standin, caplog, kind):
    """The server's words are kept whole as one line of JSON, and are in no message, repr or log."""
    caplog.set_level(logging.DEBUG)
    body = (
        None
        if kind == "status"
        else f'{{"error": "your prompt was\\n {SENTINEL}' + ('"}' if kind == "error_200" else "")
    )
    standin.control(faults=[{"kind": kind, "status": 400, "echo": True, "body": body}])
    seen = await failure(client, standin, chat(SENTINEL))
    assert seen.body is not None
    assert SENTINEL in json.dumps(json.loads(seen.body))
    assert b"\n" not in seen.body
    assert "zebra" not in f"{seen.message} {seen!r} {looks_like_configuration(seen)} {caplog.text}"


async def test_no_key_and_no_prompt_in_any_repr(client, standin):
    """Bodies, endpoints, answers and failures can be logged without harm."""
    endpoint = endpoint_of(standin.url, key=Secret("sk-sentinel-99"))
    body = chat(SENTINEL)
    answer = await client.send(endpoint, CHAT, body, PATIENT)
    standin.control(key="another")
    refused = await client.send(endpoint, CHAT, body, PATIENT)
    assert isinstance(refused, FailedCall)
    assert "sentinel" not in f"{endpoint!r} {body!r} {answer!r} {refused!r} {refused.message} {client!r}"


async def test_the_key_is_sent_as_bearer(client, standin):
    """An endpoint's key opens the door; without it the setup is wrong."""
    standin.control(key="sk-1")
    good = await client.send(endpoint_of(standin.url, key=Secret("sk-1")), CHAT, chat(), PATIENT)
    assert isinstance(good, Answer)
    assert (await failure(client, standin)).cls is C.CONFIG_ERROR


async def test_unknown_model_and_wrong_path_are_told_apart(client, standin):
    """Both are 404; the diagnosis differs."""
    standin.control(strict_model=True)
    wrong_model = await failure(client, standin, chat(model="nope"))
    assert (wrong_model.cls, wrong_model.shape) == (C.BAD_REQUEST, Shape.UNKNOWN_MODEL)
    wrong_url = await client.send(endpoint_of(standin.root + "/v2"), CHAT, chat(), PATIENT)
    assert isinstance(wrong_url, FailedCall)
    assert (wrong_url.cls, wrong_url.shape) == (C.BAD_REQUEST, Shape.WRONG_URL)


# -- the four clocks -------------------------------------------------------------------------------------------------


async def test_the_first_byte_clock(client, standin):
    """Nothing of an answer within its time."""
    standin.control(faults=[{"kind": "stall", "seconds": 5}])
    seen = await failure(client, standin, None, Timeouts(first_byte_s=0.1, idle_s=5, total_s=5))
    assert (seen.cls, seen.clock) == (C.TIMEOUT, Clock.FIRST_BYTE)
    assert "first_byte" in seen.message
    assert "0.1 s" in seen.message


async def test_the_idle_clock(client, standin):
    """The answer began, and nothing more came; the first byte's longer time no longer counts."""
    standin.control(faults=[{"kind": "stall_mid", "seconds": 5}])
    seen = await failure(client, standin, None, Timeouts(first_byte_s=5, idle_s=0.1, total_s=5))
    assert (seen.cls, seen.clock) == (C.TIMEOUT, Clock.IDLE)
    assert seen.first_byte_ms is not None


async def test_a_slow_first_byte_is_not_idle(client, standin):
    """Waiting longer for the answer to begin than the idle clock allows is fine."""
    standin.control(latency=0.3)
    assert isinstance(await send(client, standin, None, Timeouts(first_byte_s=5, idle_s=0.1, total_s=5)), Answer)


@pytest.mark.parametrize("kind", ["stall", "stall_mid"])
async def test_the_total_clock(client, standin, kind):
    """All together took too long, before or after the answer began."""
    standin.control(faults=[{"kind": kind, "seconds": 5}])
    seen = await failure(client, standin, None, Timeouts(first_byte_s=5, idle_s=5, total_s=0.1))
    assert (seen.cls, seen.clock) == (C.TIMEOUT, Clock.TOTAL)


async def test_a_pause_shorter_than_the_idle_clock_is_fine(client, standin):
    """An answer in two halves is one answer."""
    standin.control(faults=[{"kind": "stall_mid", "seconds": 0.05}])
    assert isinstance(await send(client, standin), Answer)


async def test_cancelling_a_call_ends_it_at_the_server(client, standin):
    """A cancelled call raises, leaves no connection behind and frees the server."""
    standin.control(faults=[{"kind": "stall", "times": 1}])
    call = asyncio.create_task(send(client, standin))
    await wait_until(lambda: standin.stats["in_flight"] == 1, description="the call is in flight")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await wait_until(lambda: standin.stats["in_flight"] == 0, description="the server has noticed")
    assert isinstance(await send(client, standin), Answer)


# -- connections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["reset", "close"])
async def test_a_reused_connection_that_ends_is_stale(client, standin, kind):
    """Cut on a connection that carried a call before: stale. A fresh call uses a new one; there a cut is transient."""
    standin.control(faults=[{"kind": kind, "reused": True}])
    assert isinstance(await send(client, standin), Answer)
    assert (await failure(client, standin)).cls is C.STALE_CONNECTION
    assert isinstance(await send(client, standin, fresh=True), Answer)
    standin.control(faults=[{"kind": kind}])
    assert (await failure(client, standin, fresh=True)).cls is C.TRANSIENT


async def test_a_fresh_call_never_meets_an_idle_connection(client, standin):
    """However many idle connections the pool holds."""
    standin.control(latency=0.05)
    await asyncio.gather(*(send(client, standin) for _ in range(8)))
    standin.control(faults=[{"kind": "close", "reused": True}])
    outcomes = await asyncio.gather(*(send(client, standin, fresh=True) for _ in range(16)))
    assert all(isinstance(o, Answer) for o in outcomes)


async def test_an_idle_connection_that_the_server_closed_is_not_used(client, standin):
    """When the end is seen before the next call, there is nothing to retry."""
    standin.control(faults=[{"kind": "idle_cut", "seconds": 0.0, "times": 1}])
    assert isinstance(await send(client, standin), Answer)
    await asyncio.sleep(0.05)  # the end of the connection is not ours to wait for
    assert isinstance(await send(client, standin), Answer)


async def test_as_many_calls_are_in_flight_as_concurrency_says(standin, open_client):
    """No hidden limit of the pool below, none missing above."""
    standin.control(latency=0.2)
    async with open_client(150) as client:
        await asyncio.gather(*(send(client, standin) for _ in range(300)))
    assert standin.stats["in_flight_max"] == 150


async def test_an_answer_above_the_cap_is_refused(standin, open_client):
    """The body is dropped while it comes, and the request is not sent again."""
    standin.control(faults=[{"kind": "content", "body": "x" * 3_000_000}])
    async with open_client(1, max_body_bytes=1 << 20) as client:
        seen = await failure(client, standin)
        assert (seen.cls, seen.status_code, seen.body) == (C.BAD_REQUEST, 200, None)
        standin.control(faults=[])
        assert isinstance(await send(client, standin), Answer)


async def test_a_large_answer_comes_whole(client, standin):
    """An answer of many reads is put together."""
    standin.control(faults=[{"kind": "content", "body": "ä" * 2_000_000}])
    answer = await send(client, standin)
    assert isinstance(answer, Answer)
    assert json.loads(answer.body)["choices"][0]["message"]["content"] == "ä" * 2_000_000


async def test_closing_twice_and_before_opening_is_fine(standin, open_client):
    """Stop is safe at any time."""
    client = open_client(1)
    await client.__aexit__(None, None, None)
    async with client:
        assert isinstance(await send(client, standin), Answer)
    await client.__aexit__(None, None, None)
    await client.__aexit__(None, None, None)
