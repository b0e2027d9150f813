"""The client against a real daemon, a real store and the stand-in: both faces, jobs, failures, and what goes wrong."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import pictures
from tests.support.cli import use_bare_environment
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until_sync

import gristmill
from gristmill import blocking


@pytest.fixture(scope="module")
def standin() -> Iterator[StandinProcess]:
    with StandinProcess("--latency", "0.01") as process:
        yield process


@pytest.fixture(scope="module")
def client(standin: StandinProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[blocking.Client]:
    """One client, so one daemon, for all tests that do not hurt it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with blocking.Client(standin.url, workers=2, concurrency=64) as client:
            yield client


@pytest.fixture(autouse=True)
def clean(standin: StandinProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    use_bare_environment(monkeypatch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    standin.control(faults=[], key=None, latency=0.01)


def right(result: gristmill.Result, prompt: str) -> bool:
    """Whether it is what the stand-in answers to `prompt`."""
    return json.loads(result.require().text)["text_sha256"] == hashlib.sha256(prompt.encode()).hexdigest()


def test_results_come_in_order_and_are_those_of_each_call_alone(client):
    """A list, a stream in order, and single questions agree."""
    prompts = [f"prompt {n}" for n in range(500)]
    results = client.generate(prompts)
    assert [r.index for r in results] == list(range(500))
    assert all(right(r, p) for r, p in zip(results, prompts, strict=True))
    assert [r.text for r in client.stream(iter(prompts))] == [r.text for r in results]
    assert client.ask(prompts[7]).text == results[7].text
    assert client.jobs() == [j for j in client.jobs() if j]  # the streams' jobs are gone
    assert len(client.jobs()) <= 1  # but for the one in which is asked


def test_keys_of_the_call_reach_the_body(client, standin):
    """Model, system message and sampling, over the requests' own; `ask` takes them, too."""
    how = {"model": "other", "system": "be brief", "seed": 2}
    for told in ('"model":"other"', '"seed":2', '"content":"be brief"'):
        standin.control(faults=[{"kind": "content", "body": "told", "text": told}])
        job = client.submit([{"prompt": "a", "seed": 1}], **how)
        assert [r.text for r in job.results()] == ["told"]
        job.remove()
    assert client.ask({"prompt": "a", "seed": 1}).text != "told"
    standin.control(faults=[{"kind": "content", "body": "told", "text": '"seed":3'}])
    assert client.ask({"prompt": "a", "seed": 1}, seed=3).text == "told"


def test_a_file_and_its_job(client, tmp_path):
    """Submitted, paused, looked at, resumed, read to the end, removed."""
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"custom_id": f"c{n}", "prompt": f"p{n}"}) + "\n" for n in range(300)))
    job = client.submit(path, options=gristmill.JobOptions(max_in_flight=5))
    assert job.pause().reason == "user"
    assert job.resume().state in {"running", "complete"}
    results = list(job.results())
    assert [r.custom_id for r in results] == [f"c{n}" for n in range(300)]
    assert all(right(r, f"p{n}") for n, r in enumerate(results))
    status = job.status()
    assert (status.state, status.total, status.ok, status.failed, status.handed) == ("complete", 300, 300, 0, 300)
    assert status.ended
    assert list(job.results()) == []
    assert client.job(job.id).status().total == 300
    job.remove()
    with pytest.raises(gristmill.JobNotFoundError):
        job.status()


def test_a_data_set_of_conversations(client, tmp_path):
    """One JSON array; placeholders become pictures, a row whose counts differ fails alone."""
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "p.png").write_bytes(pictures.saved(pictures.quarters(), "PNG"))
    said = [{"from": "human", "value": "<image>\nwhat?"}, {"from": "gpt", "value": "left off"}]
    rows = [{"id": "a", "image": "p.png", "conversations": said}, {"id": "b", "conversations": said}]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows, indent=1))
    job = client.submit(path, format="conversations", media_root=tmp_path / "media")
    good, bad = job.results()
    assert json.loads(good.require().text)["images"][0]["width"] == pictures.quarters().width
    assert right(good, "what?")
    assert (bad.custom_id, bad.error and bad.error.code) == ("b", "bad_input")
    job.remove()


def test_an_iteration_that_stops_leaves_the_rest(client):
    """And another one goes on from there, in order."""
    job = client.submit([f"p{n}" for n in range(100)])
    first = [r.index for r in itertools.islice(job.results(), 30)]
    assert first == list(range(30))
    assert [r.index for r in job.results()] == list(range(30, 100))
    job.remove()


def test_failures_are_values_in_their_places(client, standin):
    """A refused request, a missing picture and nonsense fail alone."""
    standin.control(faults=[{"kind": "status", "status": 400, "text": "POISON"}])
    requests = ["a", "POISON", {"prompt": "b", "image": "/missing.jpg"}, 17, {"nothing": 1}, "c"]
    results = client.generate(requests)
    assert [r.error and r.error.code for r in results] == [
        None, "bad_request", "bad_image", "bad_input", "bad_input", None,
    ]  # fmt: skip
    assert results[1].status_code == 400
    with pytest.raises(gristmill.RequestFailedError, match=r"request 1 failed \(bad_request\)"):
        results[1].require()
    assert "request 3 is a int: give a string" in results[3].error.message


def test_what_the_iterable_raises_comes_out_as_it_is(client):
    """After the results of what it gave before; the job is cancelled, so it ends."""

    class PlannedError(Exception):
        pass

    def broken() -> Iterator[str]:
        yield from (f"p{n}" for n in range(5))
        raise PlannedError

    job = client.submit(broken())
    found = []
    with pytest.raises(PlannedError):
        found.extend(r.index for r in job.results())
    assert found == [n for n in range(5) if n in found]
    wait_until_sync(lambda: job.status().state == "cancelled", description="it is cancelled")
    job.remove()


def test_a_cancelled_job_keeps_what_is_finished(client, standin):
    """Nothing more is sent, and what was fed and not sent has no result."""
    standin.control(latency=0.2)
    job = client.submit(f"p{n}" for n in itertools.count())
    wait_until_sync(lambda: job.status().done > 3, description="some are done")
    assert job.cancel().state in {"cancelling", "cancelled"}
    found = list(job.results())
    status = job.status()
    assert status.state == "cancelled"
    assert len(found) == status.done < status.fed
    job.remove()


def test_a_job_that_needs_a_person_says_so_and_goes_on(standin, tmp_path):
    """A key that is refused pauses the job; nothing is burnt, and after `resume` every request is answered."""
    with blocking.Client(standin.url, key="sk-wrong", workers=1) as client:
        standin.control(key="sk-right")
        job = client.submit(["a", "b"])
        with pytest.raises(gristmill.JobPausedError, match="does not accept the key"):
            list(job.results())
        assert job.status().reason == "config"
        with pytest.raises(gristmill.JobPausedError):
            client.ask("c")
        standin.control(key=None)
        job.resume()
        assert [r.ok for r in job.results()] == [True, True]
        assert client.ask("c").ok


def test_nothing_can_be_sent_without_a_server(standin, tmp_path):
    """No endpoint, one that refuses the connection, a store that is none: said at once, and nothing is left."""
    with pytest.raises(gristmill.SetupError, match="no endpoint is given"), blocking.Client():
        pass
    with pytest.raises(gristmill.SetupError, match="refused the connection"), blocking.Client("http://127.0.0.1:9"):
        pass
    with (
        pytest.raises(gristmill.GristmillError, match="the store cannot be reached"),
        blocking.Client(standin.url, redis=f"unix://{tmp_path}/none"),
    ):
        pass
    assert list((tmp_path / "state").rglob("private-*")) == []


def test_a_closed_client_says_so(standin):
    """Instead of hanging; closing twice is fine."""
    client = blocking.Client(standin.url, workers=1)
    assert client.ask("a").ok
    job = client.submit(["x"])
    client.close()
    client.close()
    with pytest.raises(gristmill.ClosedError):
        client.ask("b")
    with pytest.raises(gristmill.ClosedError):
        job.status()


async def test_the_async_face(standin):
    """Lists, async iterables that fail, many questions, early ends: as the blocking one."""

    async def numbers(fails: bool = False):
        for n in range(200):
            yield f"p{n}"
        if fails:
            raise RuntimeError("planned")

    async with gristmill.Client(standin.url, workers=1) as client:
        assert [r.index async for r in client.stream(numbers())] == list(range(200))
        with pytest.raises(RuntimeError, match="planned"):
            await client.generate(numbers(fails=True))
        job = await client.submit(numbers())
        async for result in job.results():
            if result.index == 50:
                break
        assert [r.index async for r in job.results()] == list(range(51, 200))
        assert (await job.status()).state == "complete"
        assert (await (await client.job(job.id)).status()).done == 200
        await job.remove()
        with pytest.raises(gristmill.JobNotFoundError):
            await client.job(job.id)
    with pytest.raises(gristmill.ClosedError):
        await client.ask("x")


def test_a_killed_store_loses_nothing(standin, tmp_path):
    """kill -9 of the private server in mid-stream: it is started again from its log, and every result comes, once."""
    standin.control(latency=0.05)
    with blocking.Client(standin.url, workers=1, concurrency=32) as client:
        seen = []
        killed = False
        for result in client.stream((f"p{n}" for n in range(1500)), ordered=False):
            seen.append(result.index)
            assert right(result, f"p{result.index}")
            if len(seen) == 300 and not killed:
                killed = True
                os.kill(_server_pid(tmp_path), signal.SIGKILL)
        assert sorted(seen) == list(range(1500))


def _server_pid(folder: Path) -> int:
    """The store that works beneath `folder`; it has its own idea of its command line."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "exe").resolve().name.endswith("-server") and folder in (entry / "cwd").resolve().parents:
                return int(entry.name)
    raise AssertionError(f"no server beneath {folder}")


def test_jobs_of_a_shared_store_outlive_the_client(standin, tmp_path):
    """Another client finds them by id, with what was not handed over; one that was not fed to its end is cancelled."""
    state = tmp_path / "shared"
    daemon = subprocess.Popen(
        [sys.executable, "-m", "gristmilld", "up", "-e", standin.url, "--workers", "1", "--no-metrics",
         "--state-dir", str(state)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with blocking.Client(state_dir=state) as client:
            job = client.submit([f"p{n}" for n in range(50)], model="standin")
            endless = client.submit((f"p{n}" for n in itertools.count()), model="standin")
            assert [r.index for r in itertools.islice(job.results(), 20)] == list(range(20))
        with blocking.Client(state_dir=state) as client:
            assert set(client.jobs()) == {job.id, endless.id}
            assert [r.index for r in client.job(job.id).results()] == list(range(20, 50))
            assert client.job(endless.id).status().state in {"cancelling", "cancelled"}
            for name in client.jobs():
                client.job(name).remove()
    finally:
        daemon.terminate()
        daemon.wait(30)
