"""What given pictures cost: little more than Pillow itself, and no memory that grows with their number."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from tests.support.programs import ROOT, Program
from tests.support.standin import StandinProcess

from gristmill.intake.options import EncodeOptions
from gristmill.sdk.pictures import GivenPicture, GivenPictures

SIZE = (1600, 1200)


def picture() -> Image.Image:
    """As busy as a photograph, for an encoder."""
    plain = Image.linear_gradient("L").resize(SIZE).convert("RGB")
    return Image.blend(plain, Image.effect_noise(SIZE, 20).convert("RGB"), 0.3)


async def test_encoding_costs_little_more_than_pillow():
    """Processor time, so that a busy machine does not count: at least 0.8 of what Pillow alone makes of it."""
    given, count = picture(), 40

    def alone() -> None:
        given.save(io.BytesIO(), "JPEG", quality=90, subsampling=0)

    async def ours(store: GivenPictures) -> None:
        ref = GivenPicture({}, "url", "x", "message 1 part 1", given)
        await store.ready(ref, await store.open(ref))

    store = GivenPictures(EncodeOptions(), "/")
    await asyncio.gather(*(ours(store) for _ in range(4)))  # threads and files are there
    ratios = []
    for _ in range(3):
        begun_s = time.process_time()
        for _ in range(count):
            alone()
        alone_s, begun_s = time.process_time() - begun_s, time.process_time()
        await asyncio.gather(*(ours(store) for _ in range(count)))
        ratios.append(alone_s / (time.process_time() - begun_s))
    await store.close()
    assert max(ratios) > 0.8, ratios


def test_the_measurement_of_encoding_has_figures():
    """`bench.clients.pil` ends with a line that holds both speeds; it raises when a picture is missing at the end."""
    argv = [sys.executable, "-m", "bench.clients.pil", "40"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    assert found["ratio"] == pytest.approx(found["ours_per_s"] / found["alone_per_s"] / os.cpu_count(), rel=1)
    assert found["cpu_ratio"] > 0.5


STREAM = """
import sys
from pathlib import Path
import gristmill
from PIL import Image

def rss_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

def pictures():
    for n in range(160):
        yield [{"type": "image", "value": Image.new("RGB", (1600, 1200), (n, 0, 0))}, {"type": "text", "value": str(n)}]

with gristmill.blocking.Client(sys.argv[1], workers=1, concurrency=8) as client:
    marks = []
    for n, result in enumerate(client.stream(pictures())):
        assert '"width":1600' in result.require().text
        if n in (60, 150):
            marks.append(rss_mb())
print(marks[1] - marks[0])
"""


def test_memory_does_not_grow_with_the_number_of_pictures(tmp_path: Path):
    """160 of them are 1.2 GB of pixels; between the 60th and the 150th, less than a tenth of that is added."""
    with StandinProcess() as standin, Program(tmp_path, STREAM, standin.url) as program:
        assert program.wait(100) == 0, program.said
        assert float(program.said) < 100
