"""`producer retry`: only the failures of a job go out again, and their answers take the failures' places."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis as SyncRedis
from tests.process.daemons import Daemon
from tests.support.cli import producer
from tests.support.desk import Desk, desk, shared_standin, standin
from tests.support.standin import StandinProcess
from tests.support.store import StoreProcess

__all__ = ["desk", "shared_standin", "standin"]

CUT = [3, 17, 40]
BAD = [5, 8]
FAULTS = [
    {"kind": "finish", "reason": "length", "text": '"max_tokens":10'},
    {"kind": "status", "status": 400, "text": "BADROW"},
]
ARGS = ("-m", "standin", "--on-truncated", "fail")


def write_input(path: Path, n: int = 60) -> Path:
    """Rows `CUT` ask for too few tokens, rows `BAD` are refused for good."""
    with path.open("w") as file:
        for i in range(n):
            text = f"BADROW {i}" if i in BAD else f"row {i}"
            more = {"max_tokens": 10} if i in CUT else {}
            file.write(
                json.dumps({"custom_id": f"c{i}", "messages": [{"role": "user", "content": text}], **more}) + "\n"
            )
    return path


@pytest.fixture
def url(shared_store: StoreProcess) -> str:
    with SyncRedis.from_url(shared_store.url) as client:
        client.flushall()
    return shared_store.url


@pytest.fixture
def working(tmp_path: Path, url: str, standin: StandinProcess) -> Iterator[StandinProcess]:
    """A daemon that works for the store, and its stand-in, which cuts and refuses rows."""
    standin.control(faults=FAULTS)
    (tmp_path / "d").mkdir()
    daemon = Daemon(tmp_path / "d", "--workers", "1", "--no-metrics", "-e", standin.url, redis=url)
    daemon.says("connected to the store")
    yield standin
    daemon.stop()


def submit(path: Path, url: str, out: Path) -> str:
    """Submit, collect, and give the job's id; five of its requests have failed."""
    done = producer("submit", path, *ARGS, "--redis", url)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    collected = producer("results", job, "-o", out, "--redis", url)
    assert collected.returncode == 1, collected.stderr
    return job


def status(job: str, url: str) -> dict[str, object]:
    told: dict[str, object] = json.loads(producer("status", job, "--json", "--redis", url).stdout)
    return told


def lines_of(out: Path) -> list[dict]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_retry_of_one_class_sends_those_alone(tmp_path: Path, url: str, working: StandinProcess):
    """With more tokens the cut answers come whole, in their places; nothing else is sent; the job stays as it was.

    The retry is not collected by itself, since its answers would be lost for the places that they belong to.
    """
    out = tmp_path / "out.jsonl"
    job = submit(write_input(tmp_path / "in.jsonl"), url, out)
    before, parent = out.read_text().splitlines(), status(job, url)
    working.reset_stats()
    made = producer("retry", job, "--class", "truncated", "--set", "max_tokens=500", "--redis", url)
    assert made.returncode == 0, made.stderr
    assert made.stdout.strip().startswith(f"{job}.r")
    alone = producer("results", made.stdout.strip(), "-o", tmp_path / "alone.jsonl", "--redis", url)
    assert (alone.returncode, f"is a retry: `producer results {job} -o OUT`" in alone.stderr) == (2, True)
    done = producer("results", job, "-o", out, "--json", "--redis", url)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert (told["job"], told["total"], told["ok"], told["failed"], told["by_class"]) == (
        job, 60, 58, 2, {"bad_request": 2},
    )  # fmt: skip
    assert working.stats["requests"] == len(CUT)
    after = out.read_text().splitlines()
    assert [i for i in range(60) if after[i] != before[i]] == CUT
    for i in CUT:
        line = json.loads(after[i])
        assert (line["custom_id"], line["gristmill"]["index"], line["gristmill"]["status"]) == (f"c{i}", i, "ok")
    assert status(job, url) == parent
    assert not list(tmp_path.glob("*.gm"))


def test_a_retry_sends_nothing_that_was_made_good(tmp_path: Path, url: str, working: StandinProcess):
    """A second retry over all classes sends what is left; a third of an answered class is refused with a sentence."""
    out = tmp_path / "out.jsonl"
    job = submit(write_input(tmp_path / "in.jsonl"), url, out)
    done = producer("retry", job, "--class", "truncated", "--set", "max_tokens=500", "-o", out, "--redis", url)
    assert done.returncode == 1, done.stderr
    again = producer("retry", job, "--class", "truncated", "--redis", url)
    assert again.returncode == 2
    assert "answered all of these" in again.stderr
    working.control(faults=[])
    working.reset_stats()
    done = producer("retry", job, "-o", out, "--json", "--redis", url)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] == 60
    assert working.stats["requests"] == len(BAD)
    assert not out.with_name("out.jsonl.failed.jsonl").exists()


def test_a_changed_input_is_refused(tmp_path: Path, url: str, working: StandinProcess):
    """A retry reads the input again, so another one is refused, and nothing is made."""
    source = write_input(tmp_path / "in.jsonl")
    job = submit(source, url, tmp_path / "out.jsonl")
    with source.open("a") as file:
        file.write('{"prompt": "one more"}\n')
    refused = producer("retry", job, "--redis", url)
    assert refused.returncode == 2
    assert "has changed since the job was made" in refused.stderr
    assert [row["job"] for row in json.loads(producer("ls", "--json", "--redis", url).stdout)] == [job]


def test_what_cannot_be_retried_is_a_sentence(tmp_path: Path, url: str):
    """A job that runs, a class that nothing failed by, a retry of a retry: exit 2, and the way out."""
    source = write_input(tmp_path / "in.jsonl")
    job = producer("submit", source, *ARGS, "--redis", url).stdout.strip()
    runs = producer("retry", job, "--redis", url)
    assert (runs.returncode, "wait for its end" in runs.stderr) == (2, True)
    producer("cancel", job, "--redis", url)
    none = producer("retry", job, "--class", "timeout", "--redis", url)
    assert (none.returncode, "failed as timeout: nothing to retry" in none.stderr) == (2, True)
    wrong = producer("retry", job, "--class", "nonsense", "--redis", url)
    assert wrong.returncode == 2


def test_failed_requests_of_a_run_are_an_input(desk: Desk, standin: StandinProcess):
    """OUT.failed.jsonl holds the failed requests alone, bodies as sent, and can be run as it is."""
    standin.control(faults=FAULTS)
    write_input(desk.input)
    assert desk.run(*ARGS).returncode == 1
    failed = desk.out.with_name(desk.out.name + ".failed.jsonl")
    rows = [json.loads(line) for line in failed.read_text().splitlines()]
    assert [row["gristmill"]["index"] for row in rows] == sorted(CUT + BAD)
    assert all(row["body"]["model"] == "standin" and row["url"] == "/v1/chat/completions" for row in rows)
    standin.control(faults=[])
    standin.reset_stats()
    more = desk.out.with_name("more.jsonl")
    done = producer("run", failed, "-o", more, "-e", standin.url, "--state-dir", desk.state)
    assert done.returncode == 0, done.stderr
    assert [line["custom_id"] for line in lines_of(more)] == [f"c{i}" for i in sorted(CUT + BAD)]
    assert standin.stats["requests"] == 5


def test_failed_pictures_are_found_from_elsewhere(desk: Desk, standin: StandinProcess, tmp_path: Path):
    """A relative picture of INPUT is named by its whole path, so the file of failed requests may lie anywhere."""
    from PIL import Image

    Image.new("RGB", (8, 6), (250, 10, 10)).save(desk.input.parent / "red.png")
    desk.input.write_text(json.dumps({"prompt": "BADROW what is it?", "image": "red.png"}) + "\n")
    standin.control(faults=FAULTS)
    assert desk.run("-m", "standin", "--first-alone", "0").returncode == 1
    failed = desk.out.with_name(desk.out.name + ".failed.jsonl")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved = failed.rename(elsewhere / "in.jsonl")
    standin.control(faults=[])
    done = producer("run", moved, "-o", elsewhere / "o.jsonl", "-e", standin.url, "--state-dir", desk.state)
    assert done.returncode == 0, done.stderr
    seen = json.loads(lines_of(elsewhere / "o.jsonl")[0]["response"]["body"]["choices"][0]["message"]["content"])
    assert [(image["width"], image["height"]) for image in seen["images"]] == [(8, 6)]


def test_retry_of_a_runs_file_puts_answers_in_place(desk: Desk, standin: StandinProcess):
    """`retry OUT` sends the lines of one class, puts their answers in place, and the same run sends only the rest."""
    standin.control(faults=FAULTS)
    write_input(desk.input)
    assert desk.run(*ARGS).returncode == 1
    before = desk.out.read_text().splitlines()
    standin.reset_stats()
    words = ("retry", desk.out, "--class", "truncated", "--set", "max_tokens=500", "-e", standin.url)
    done = producer(*words, "--state-dir", desk.state, "--json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert (told["total"], told["ok"], told["failed"]) == (60, 58, 2)
    assert standin.stats["requests"] == len(CUT)
    after = desk.out.read_text().splitlines()
    assert [i for i in range(60) if after[i] != before[i]] == CUT
    failed = desk.out.with_name(desk.out.name + ".failed.jsonl")
    assert [json.loads(row)["gristmill"]["index"] for row in failed.read_text().splitlines()] == BAD
    assert not list(desk.out.parent.glob("*.gm"))
    standin.control(faults=[])
    standin.reset_stats()
    assert desk.run(*ARGS).returncode == 0
    assert standin.stats["requests"] == len(BAD)
    assert not failed.exists()


def skewed_input(path: Path) -> Path:
    """The rows of `write_input` between lines that are no requests."""
    rows = write_input(path).read_text().splitlines()
    path.write_text("".join("no request\n" * (i % 3) + f"{row}\n" for i, row in enumerate(rows)))
    return path


def test_lines_that_were_left_out_do_not_move_the_others(tmp_path: Path, url: str, working: StandinProcess):
    """A job that skipped bad lines is retried like any other: the right requests go out, and land in their places."""
    out, source = tmp_path / "out.jsonl", skewed_input(tmp_path / "in.jsonl")
    done = producer("submit", source, *ARGS, "--on-bad-line", "skip", "--redis", url)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    assert producer("results", job, "-o", out, "--redis", url).returncode == 1
    before = lines_of(out)
    failed = lines_of(tmp_path / "out.jsonl.failed.jsonl")
    assert [line["custom_id"] for line in failed] == [f"c{i}" for i in sorted(CUT + BAD)]
    working.control(faults=[])
    working.reset_stats()
    done = producer("retry", job, "-o", out, "--json", "--redis", url)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] == 60
    assert working.stats["requests"] == len(CUT + BAD)
    after = lines_of(out)
    assert [line["custom_id"] for line in after] == [f"c{i}" for i in range(60)]
    for old, new in zip(before, after, strict=True):
        assert new["gristmill"]["status"] == "ok"
        assert new["gristmill"]["fingerprint"] == old["gristmill"]["fingerprint"]
    assert not out.with_name("out.jsonl.failed.jsonl").exists()


def test_a_run_that_left_lines_out_keeps_its_failed_ones(desk: Desk, standin: StandinProcess):
    """`OUT.failed.jsonl` has the right requests, though bad lines lie between them; `retry OUT` takes it."""
    standin.control(faults=FAULTS)
    skewed_input(desk.input)
    assert desk.run(*ARGS, "--on-bad-line", "skip").returncode == 1
    rows = lines_of(desk.out.with_name(desk.out.name + ".failed.jsonl"))
    assert [(row["custom_id"], row["gristmill"]["index"]) for row in rows] == [(f"c{i}", i) for i in sorted(CUT + BAD)]
    standin.control(faults=[])
    done = producer("retry", desk.out, "-e", standin.url, "--state-dir", desk.state, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] == 60
