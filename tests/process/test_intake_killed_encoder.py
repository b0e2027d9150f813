"""`producer run` with pictures that must be encoded, while encoders are killed: nothing is lost, nothing is blamed."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from PIL import Image
from tests.support.cli import Background
from tests.support.desk import Desk, desk, shared_standin, standin
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until_sync

__all__ = ["desk", "shared_standin", "standin"]

PICTURES = 40 * (os.cpu_count() or 1)
"""So many that each encoder, one a core, has long to do."""
KILLS = 3
DIGITS, STEP = 50, 5
"""Two digits of 50 in red and green, 5 apart, so that JPEG can't blur them."""
WORKED_S = 0.5
"""CPU after which an encoder has long done its first picture, which is the one that its forerunner died of."""


def encoders(running: Background) -> dict[int, float]:
    """The encoder processes of a run -> CPU that each has used, seconds."""
    found = {}
    for pid in running.descendants():
        with suppress(OSError):
            if b"encoder_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
                found[pid] = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return found


def write_pictures(folder: Path) -> None:
    """An input of small files that take long to encode, for they are palettes; the colour tells which one it is."""
    with (folder / "in.jsonl").open("w") as out:
        for i in range(PICTURES):
            picture = Image.new("P", (2400, 2000), 0)
            picture.putpalette([STEP * (i // DIGITS), STEP * (i % DIGITS), 0])
            picture.save(folder / f"{i}.png")
            out.write(json.dumps({"custom_id": f"c{i}", "prompt": "what?", "image": f"{i}.png"}) + "\n")


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_killed_encoders_cost_no_picture(desk: Desk, standin: StandinProcess) -> None:
    """Each picture reaches its own line once, though encoders die of kill -9 while they have one in hand."""
    write_pictures(desk.folder)
    with desk.start("--max-pixels", 10_000) as running:
        for _ in range(KILLS):
            wait_until_sync(
                lambda: max(encoders(running).values(), default=0) >= WORKED_S,
                description="an encoder has done some pictures",
                timeout_s=30,
            )
            working = encoders(running)
            os.kill(max(working, key=lambda pid: working[pid]), signal.SIGKILL)
        assert running.wait() == 0, running.stderr
    desk.assert_complete(PICTURES)
    for i, line in enumerate(desk.lines):
        seen = json.loads(line["response"]["body"]["choices"][0]["message"]["content"])["images"][0]["mean_rgb"]
        assert [round(colour / STEP) for colour in seen[:2]] == [i // DIGITS, i % DIGITS]
    assert standin.stats["requests"] == PICTURES
