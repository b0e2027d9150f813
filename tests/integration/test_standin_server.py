"""The stand-in over HTTP: it sees what it is sent, counts what it did, and misbehaves as told."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from PIL import Image
from tests.support.standin import Standin
from tests.support.wait import wait_until


@pytest.fixture
async def standin() -> AsyncIterator[Standin]:
    async with Standin() as server:
        yield server


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def photo(size: tuple[int, int], color: str, kind: str, orientation: int | None = None) -> str:
    """A data URL; with an EXIF orientation if told."""
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    out = io.BytesIO()
    Image.new("RGB", size, color).save(out, kind, exif=exif, **({"quality": 95} if kind == "JPEG" else {}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(out.getvalue()).decode()}"


def picture(url: str) -> dict:
    return {"type": "image_url", "image_url": {"url": url}}


async def ask(http, standin, body: dict, path: str = "/chat/completions") -> tuple[int, dict]:
    async with http.post(standin.url + path, json=body) as response:
        return response.status, await response.json(content_type=None)


async def seen(http, standin, content) -> dict:
    status, answer = await ask(http, standin, {"messages": [{"role": "user", "content": content}]})
    assert status == 200
    assert answer["model"] == "standin"
    return json.loads(answer["choices"][0]["message"]["content"])


async def test_text_is_counted_and_hashed(http, standin):
    """All text parts of all messages, joined by newlines, in characters."""
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "grüße"}, {"type": "text", "text": "🌍"}]},
    ]
    _, answer = await ask(http, standin, {"messages": messages})
    content = json.loads(answer["choices"][0]["message"]["content"])
    text = "be brief\ngrüße\n🌍"
    assert content == {"text_len": len(text), "text_sha256": hashlib.sha256(text.encode()).hexdigest(), "images": []}
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
async def test_pictures_are_decoded_upright(http, standin, kind):
    """Format, mean colour, and the size after EXIF orientation, in order."""
    parts = [picture(photo((40, 20), "red", kind, 6)), picture(photo((30, 10), "blue", kind))]
    images = (await seen(http, standin, parts))["images"]
    assert [(i["format"], i["width"], i["height"]) for i in images] == [(kind, 20, 40), (kind, 30, 10)]
    assert images[0]["mean_rgb"] == pytest.approx([254, 0, 0], abs=2)
    assert images[1]["mean_rgb"] == pytest.approx([0, 0, 254], abs=2)
    assert standin.stats["images"] == 2


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": [picture("data:image/png;base64,AAAA")]}]},
        {"messages": [{"role": "user", "content": [picture("https://example.com/a.png")]}]},
        {"messages": [{"role": "user", "content": [picture("data:image/png;base64,A*A=")]}]},
        {"messages": [{"role": "user", "content": [{"type": "audio"}]}]},
        {"messages": []},
        {},
        [],
    ],
)
async def test_what_cannot_be_read_is_refused(http, standin, body):
    """400 with an error, as a model server would."""
    status, answer = await ask(http, standin, body)
    assert status == 400
    assert answer["error"]["type"] == "BadRequestError"


async def test_the_other_calls(http, standin):
    """Completions, embeddings and responses have the answers of their kind."""
    status, answer = await ask(http, standin, {"prompt": "hello", "n": 2}, "/completions")
    assert status == 200
    assert [json.loads(c["text"])["text_len"] for c in answer["choices"]] == [5, 5]
    _, answer = await ask(http, standin, {"input": ["a", "b"]}, "/embeddings")
    assert [d["index"] for d in answer["data"]] == [0, 1]
    parts = [{"type": "input_text", "text": "hello"}, {"type": "input_image", "image_url": photo((4, 2), "red", "PNG")}]
    _, answer = await ask(http, standin, {"input": [{"role": "user", "content": parts}]}, "/responses")
    content = json.loads(answer["output"][0]["content"][0]["text"])
    assert (content["text_len"], content["images"][0]["width"]) == (5, 4)


async def test_it_streams_when_asked(http, standin):
    """The chunks make the same content, with usage when asked for, and an end."""
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with http.post(standin.url + "/chat/completions", json=body) as response:
        assert response.content_type == "text/event-stream"
        lines = [line.removeprefix("data: ") for line in (await response.text()).split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert json.loads(text)["text_len"] == 5
    assert chunks[-1]["usage"]["prompt_tokens"] > 0


async def test_no_two_answers_have_one_id(http, standin):
    """Also of requests that are answered at once, and after the counters were set back."""
    standin.control(latency=0.05)
    body = {"messages": [{"role": "user", "content": "x"}]}
    first = await asyncio.gather(*(ask(http, standin, body) for _ in range(10)))
    standin.reset_stats()
    then = await asyncio.gather(*(ask(http, standin, body) for _ in range(10)))
    assert len({answer["id"] for _, answer in (*first, *then)}) == 20


async def test_models_health_and_unknown_paths(http, standin):
    """It is honest about its one model; other paths and methods are refused."""
    async with http.get(standin.url + "/models") as response:
        assert [m["id"] for m in (await response.json())["data"]] == ["standin"]
    async with http.get(standin.root + "/health") as response:
        assert response.status == 200
    async with http.get(standin.root + "/v2/models") as response:
        assert response.status == 404
    async with http.get(standin.url + "/chat/completions") as response:
        assert response.status == 405


async def test_the_key_guards_models_and_calls(http, standin):
    """Without it 401; control and stats stay open to the test."""
    standin.control(key="k")
    assert (await ask(http, standin, {"prompt": "x"}, "/completions"))[0] == 401
    async with http.get(standin.url + "/models") as response:
        assert response.status == 401
    async with http.get(standin.url + "/models", headers={"Authorization": "Bearer k"}) as response:
        assert response.status == 200
    async with http.get(standin.root + "/stats") as response:
        assert (await response.json())["by_status"] == {"401": 1}


async def test_stats_count_bodies_and_statuses(http, standin):
    """The same body twice is one distinct body; a cut one is counted as cut and as planted; a reset starts anew."""
    for text in ("a", "b", "b"):
        await ask(http, standin, {"prompt": text}, "/completions")
    standin.control(faults=[{"kind": "reset"}])
    with pytest.raises(aiohttp.ClientError):
        await ask(http, standin, {"prompt": "c"}, "/completions")
    stats = standin.stats
    assert (stats["requests"], stats["distinct"], stats["by_status"]) == (4, 3, {"200": 3, "cut": 1})
    assert stats["faulted"] == {"reset": 1}
    async with http.post(standin.root + "/stats/reset") as response:
        assert response.status == 200
    assert standin.stats == {
        "requests": 0, "distinct": 0, "images": 0, "in_flight": 0, "in_flight_max": 0, "by_status": {}, "faulted": {},
    }  # fmt: skip


async def test_its_concurrency_is_limited_when_told(http, standin):
    """So many are worked on, the rest wait; metrics and stats say so."""
    standin.control(concurrency=2, faults=[{"kind": "stall", "text": "slow"}])

    def call(text: str) -> asyncio.Task:
        return asyncio.create_task(ask(http, standin, {"prompt": text}, "/completions"))

    slow = [call("slow") for _ in range(2)]
    await wait_until(lambda: standin.stats["in_flight"] == 2, description="two are worked on")
    quick = [call("quick") for _ in range(3)]
    await wait_until(lambda: standin.stats["in_flight"] == 5, description="three wait")
    async with http.get(standin.root + "/metrics") as response:
        text = await response.text()
    assert 'vllm:num_requests_running{model_name="standin"} 2.0' in text
    assert 'vllm:num_requests_waiting{model_name="standin"} 3.0' in text
    for stalled in slow:
        stalled.cancel()
    assert [status for status, _ in await asyncio.gather(*quick)] == [200, 200, 200]
    await wait_until(lambda: standin.stats["in_flight"] == 0, description="all are gone")
    assert standin.stats["in_flight_max"] == 5


async def test_poison_and_slow_rows_can_be_planted(http, standin):
    """A fault for a text hits that request alone."""
    standin.control(faults=[{"kind": "status", "status": 500, "text": "POISON"}, {"kind": "reset", "text": "CRASH"}])
    statuses = [(await ask(http, standin, {"prompt": t}, "/completions"))[0] for t in ("fine", "a POISON b", "fine")]
    assert statuses == [200, 500, 200]


async def test_control_over_http(http, standin):
    """What the command line's users have; nonsense is refused and changes nothing."""
    async with http.post(standin.root + "/control", json={"faults": [{"kind": "status", "status": 418}]}) as response:
        assert response.status == 200
    assert (await ask(http, standin, {"prompt": "x"}, "/completions"))[0] == 418
    for wrong in ({"lag": 1}, {"latency": "slow"}):
        async with http.post(standin.root + "/control", json=wrong) as response:
            assert response.status == 400
    assert (await ask(http, standin, {"prompt": "x"}, "/completions"))[0] == 418


async def test_another_model_is_unknown_when_strict(http, standin):
    """By default any model's name is taken, and the answer says ``standin`` all the same."""
    assert (await ask(http, standin, {"prompt": "x", "model": "other"}, "/completions"))[0] == 200
    standin.control(strict_model=True)
    assert (await ask(http, standin, {"prompt": "x", "model": "other"}, "/completions"))[0] == 404
    assert (await ask(http, standin, {"prompt": "x", "model": "standin"}, "/completions"))[0] == 200


async def test_a_large_body_is_taken(http, standin):
    """Pictures of many megabytes are no problem of the stand-in's."""
    body = io.BytesIO(json.dumps({"prompt": "x" * 20_000_000}).encode())
    async with http.post(standin.url + "/completions", data=body) as response:
        answer = await response.json()
    assert json.loads(answer["choices"][0]["text"])["text_len"] == 20_000_000
