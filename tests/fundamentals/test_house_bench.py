"""The measurements measure what they say, and never make a figure up."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench import __main__ as bench_main
from bench import inputs, report
from bench.clients import slices
from bench.run import Sample, median
from bench.scenarios import KEYS, SCENARIOS
from PIL import Image

from gristmill.intake import structure

ROOT = Path(__file__).resolve().parents[2]
BURN = "import time\nwhile time.process_time() < 0.3: pass"


def measured(result: Path, *argv: str) -> dict[str, float]:
    subprocess.run([sys.executable, "-m", "bench.reaper", str(result), "--", *argv], cwd=ROOT, check=True, timeout=60)
    return json.loads(result.read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
def test_the_cpu_of_orphans_is_counted(tmp_path: Path) -> None:
    """A process whose parent leaves at once, in a session of its own, is waited for and counted."""
    leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BURN!r}], start_new_session=True)"
    figures = measured(tmp_path / "r.json", sys.executable, "-c", leave)
    assert figures["user_s"] + figures["sys_s"] >= 0.3


def test_the_exit_code_of_a_client_is_reported(tmp_path: Path) -> None:
    """A client that fails is seen, so that its run is no figure."""
    assert measured(tmp_path / "r.json", sys.executable, "-c", "raise SystemExit(3)")["code"] == 3


def test_without_nginx_every_figure_is_null(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing measured, nothing claimed: the closing line has every key, and null for each."""

    def missing() -> None:
        raise LookupError("nginx with lua is not installed")

    monkeypatch.setattr(bench_main, "Endpoint", missing)
    monkeypatch.setattr(sys, "argv", ["bench"])
    assert bench_main.main() == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[-1]) == dict.fromkeys(KEYS)
    assert "nginx with lua is not installed" in shown.err


def test_every_figure_is_explained() -> None:
    """bench/README.md has a row for each key of the closing line, and each scenario says what it is."""
    text = (ROOT / "bench/README.md").read_text(encoding="utf-8")
    assert [key for key in KEYS if f"`{key}`" not in text] == []
    assert all(scenario.__doc__ for scenario in SCENARIOS.values())


def test_medians_are_taken_figure_by_figure() -> None:
    """One slow run moves nothing."""
    samples = [Sample(7, 1, 1, 9, 5), Sample(7, 2, 9, 2, 6), Sample(7, 9, 2, 1, 4)]
    assert median(samples) == Sample(7, 2, 2, 2, 5)


def test_a_sample_tells_figures_of_one_request() -> None:
    """CPU in microseconds each, and requests per second."""
    sample = Sample(requests=1000, cpu_s=0.2, store_s=0.02, endpoint_s=0, wall_s=4)
    assert (sample.cpu_us, sample.store_us, sample.rate) == pytest.approx((200, 20, 250))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What 402 requests for pictures name."""
    source = inputs.pictures(tmp_path_factory.mktemp("pictures"), inputs.PICTURES + 2)
    return [Path(json.loads(line)["image"]) for line in source.read_text().splitlines()]


def test_pictures_are_told_apart_by_name_and_bytes(pictures: list[Path]) -> None:
    """No name comes twice, equal bytes only far apart, and each is of about 300 KB: no client gains by a memory."""
    assert len(set(pictures)) == inputs.PICTURES + 2
    data = [path.read_bytes() for path in pictures]
    assert len(set(data)) == inputs.PICTURES
    assert data[0] == data[inputs.PICTURES]
    assert all(250_000 < len(d) < 350_000 for d in data)


def test_pictures_need_no_encoding(pictures: list[Path]) -> None:
    """They can be sent as they lie."""
    looks = [structure.look(path.read_bytes()) for path in pictures[:3]]
    assert [(look.verdict, look.width, look.height) for look in looks] == [(structure.Verdict.PLAIN, 1600, 1200)] * 3


def test_answers_take_longer_towards_the_end(tmp_path: Path) -> None:
    """The times are lognormal around 0.4 s and ascend through the file."""
    lines = inputs.ascending(tmp_path, 1001, median_s=0.4, sigma=0.7).read_text().splitlines()
    delays_s = [json.loads(line)["delay_s"] for line in lines]
    assert delays_s == sorted(delays_s)
    assert statistics.median(delays_s) == pytest.approx(0.4)
    assert statistics.stdev(map(math.log, delays_s)) == pytest.approx(0.7, rel=0.02)


def test_slices_encodes_a_picture_as_is_done_today(pictures: list[Path]) -> None:
    """Decoded, RGB, JPEG of quality 90, base64; or, on demand, the bytes as they lie."""
    line = {"prompt": "what?", "image": str(pictures[0])}
    urls = [
        slices.message(line, how)["messages"][0]["content"][1]["image_url"]["url"]
        for how in (slices.encoded, slices.AsTheyAre())
    ]
    anew, as_it_is = (base64.b64decode(url.removeprefix("data:image/jpeg;base64,"), validate=True) for url in urls)
    assert as_it_is == pictures[0].read_bytes()
    assert anew != as_it_is
    with Image.open(io.BytesIO(anew)) as picture:
        assert (picture.format, picture.mode, picture.size) == ("JPEG", "RGB", (1600, 1200))


def refused_submit(folder: Path) -> None:
    """`bench.clients.submit` on an input that is not there, from and to the files in `folder`."""
    argv = [sys.executable, "-m", "bench.clients.submit", str(folder / "modules.json"), str(folder / "mark.json"), "--"]
    nowhere = [str(folder / "no.jsonl"), "-m", "bench", "--redis", "redis://127.0.0.1:1"]
    env = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run([*argv, *nowhere], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr


def test_submit_tells_what_it_imported(tmp_path: Path) -> None:
    """The first run, which has no list of modules, writes one at its end."""
    refused_submit(tmp_path)
    assert "gristmill.cli._submitting" in json.loads((tmp_path / "modules.json").read_text())


def test_submit_has_its_imports_before_the_clock_starts(tmp_path: Path) -> None:
    """A module of the list is imported before `ready_s` is taken, and the time it takes is told."""
    (tmp_path / "watch.py").write_text(
        "import pathlib, time\n"
        "here = pathlib.Path(__file__).parent\n"
        "(here / 'seen').write_text(str((here / 'mark.json').exists()))\n"
        "time.sleep(0.2)  # what importing it takes\n"
    )
    (tmp_path / "modules.json").write_text('["watch", "no_such_module"]')
    refused_submit(tmp_path)
    told = json.loads((tmp_path / "mark.json").read_text())
    assert (tmp_path / "seen").read_text() == "False"
    assert told["imports_s"] >= 0.2
    assert abs(told["ready_s"] - time.time()) < 60


def test_the_table_shows_what_was_measured_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--table` prints the last measurement as Markdown; a figure that is not there is not made up."""
    monkeypatch.setattr(report, "LAST", tmp_path / "out/last.json")
    monkeypatch.setattr(sys, "argv", ["bench", "--table"])
    assert bench_main.main() == 2
    log = {"text producer": [Sample(100, 0.01, 0.002, 0, 2)]}
    report.keep({"text_vs_limit": 1.25}, log, 1, quick=False, took_s=60)
    assert bench_main.main() == 0
    rows = capsys.readouterr().out.splitlines()
    assert "| `text_vs_limit` | 1.25 |" in rows
    assert sum("not measured" in row for row in rows) == len(KEYS) - 1
    assert "| text producer | 100 | 100 | 20 | 50 |" in rows


def test_a_smoke_test_is_called_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures of `--quick` come with a warning, so that nobody quotes them unawares."""
    monkeypatch.setattr(report, "LAST", tmp_path / "last.json")
    report.keep({}, {}, 1, quick=True, took_s=1)
    assert report.table() == 0
    assert "no figure to quote" in capsys.readouterr().err
