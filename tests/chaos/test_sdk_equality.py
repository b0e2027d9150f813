"""20,000 messages of the forms that people use, 1,000 in flight: the answers are those of calls made one by one.

Also while a worker is killed under them, from a program with running threads, and in a notebook. The calls one by one
are plain HTTP and none of our code: what is compared is what a user of `http.client` would have got.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.notebook import notebook
from tests.support.programs import Program
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until_sync

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

COUNT = 20_000

# a script and a cell alike
GENERATE = """
import base64, http.client, io, json, threading, time
import gristmill
from PIL import Image

COUNT, ANSWERS = 20_000, {}

def picture(n):
    buffer = io.BytesIO()
    Image.new("RGB", (40 + n % 7, 30), (n % 256, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()

def user(content):
    return [{"role": "user", "content": content}]

def message(n):
    "What is given to `generate`, and the messages that stand in a request made by hand."
    text = f"message {n}: \\u00fc, \\u4f60\\u597d, \\U0001f9ff and {'words ' * (n % 40)}"
    if n % 100 == 7:
        url = "data:image/png;base64," + base64.b64encode(picture(n)).decode()
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
        return [{"type": "image", "value": picture(n)}, {"type": "text", "value": text}], user(parts)
    if n % 4 == 0:
        return text, user(text)
    if n % 4 == 1:
        return [{"type": "text", "value": text}], user([{"type": "text", "text": text}])
    if n % 4 == 2:
        turns = [{"role": "system", "content": "Be brief."}, *user(text)]
        return turns, turns
    turns = [*user("earlier"), {"role": "assistant", "content": "said"}, *user(text)]
    return turns, turns

given, by_hand = zip(*map(message, range(COUNT)))
spinners = [threading.Thread(target=time.sleep, args=(600,), daemon=True) for _ in range(5)]
for spinner in spinners:
    spinner.start()
api = gristmill.MPOpenAIAPI("standin", api_base=URL, num_workers=2, thread_num=1000)
print("working", flush=True)
answers = api.generate(given)
api.shutdown()
print("generated", len(answers), len(api.last_failures), flush=True)
server = http.client.HTTPConnection(URL.partition("//")[2].partition("/")[0])

def call(method, path, body=None):
    server.request(method, path, json.dumps(body))
    return json.loads(server.getresponse().read())

stats = call("GET", "/stats")
assert 800 <= stats["in_flight_max"] <= 1000, stats
assert stats["distinct"] == COUNT, stats
print("calls:", stats["requests"], flush=True)
call("POST", "/control", {"latency": 0})

def one(messages):
    body = {"model": "standin", "messages": messages, "temperature": 0.6, "max_tokens": 16384}
    return call("POST", "/v1/chat/completions", body)["choices"][0]["message"]["content"]

different = [n for n in range(COUNT) if answers[n] != one(by_hand[n])]
server.close()
print("different:", different[:10], "of", len(set(answers)), flush=True)
"""


@pytest.fixture
def standin() -> Iterator[StandinProcess]:
    with StandinProcess("--latency", "0.3") as process:
        yield process


@pytest.mark.parametrize("kill", [False, True], ids=["calm", "killed"])
@pytest.mark.parametrize("place", ["script", "notebook"])
def test_the_answers_of_calls_one_by_one(tmp_path: Path, standin: StandinProcess, place: str, kill: bool):
    """All 20,000, in order; never more than 1,000 in flight, and nearly so many at its best."""
    with _program(place, tmp_path, standin.url) as program:
        program.say("working")
        if kill:
            wait_until_sync(lambda: standin.stats["requests"] >= 4_000, description="4,000 requests", timeout_s=120)
            os.kill(program.busy_worker(), signal.SIGKILL)
        program.say(f"generated {COUNT} 0", timeout_s=300)
        calls = int(program.say("calls: ").rpartition(" ")[2])
        assert (COUNT < calls <= COUNT + 1_000) if kill else calls == COUNT
        program.say(f"different: [] of {COUNT}", timeout_s=300)
        assert program.wait() == 0, program.said
        wait_until_sync(lambda: program.left() == [], description="nothing is left")


def _program(place: str, folder: Path, url: str) -> Program:
    return notebook(folder, url, GENERATE) if place == "notebook" else Program(folder, f"URL = {url!r}\n{GENERATE}")
