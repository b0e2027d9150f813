"""What a program's PIL images cost to be made fit to send: `python -m bench.clients.pil PICTURES`; one line of JSON.

In turn, round after round: Pillow alone on one core, saving 1600 x 1200 pictures as JPEG of quality 90 with full
colour into memory; and the way of the SDK, with as many threads as it likes: from messages with PIL images to encoded
requests that are ready for the store. The ratio of each round counts, so that a slow minute hits both.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from gristmill.intake.options import EncodeOptions
from gristmill.sdk.pictures import GivenPictures
from gristmill.sdk.shape import shape
from gristmill.sdk.stream import Hopper, StreamEntries, pull

ROUNDS = 5
SIZE = (1600, 1200)
ALONE_SHARE = 4
"""Pillow alone gets a quarter of the pictures: it has one core."""


def picture(seed: int) -> Image.Image:
    """As busy as a photograph, for an encoder."""
    plain = Image.linear_gradient("L").resize(SIZE).rotate(90 * seed).resize(SIZE).convert("RGB")
    return Image.blend(plain, Image.effect_noise(SIZE, 20).convert("RGB"), 0.3)


class Speed(NamedTuple):
    """Pictures per second, by the clock and by the processor time of all threads."""

    per_s: float
    per_cpu_s: float


class Stopwatch:
    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def speed(self, count: int) -> Speed:
        wall_s, cpu_s = self._began
        return Speed(count / (time.perf_counter() - wall_s), count / (time.process_time() - cpu_s))


def alone(pictures: list[Image.Image], count: int) -> Speed:
    watch = Stopwatch()
    for at in range(count):
        pictures[at % len(pictures)].save(io.BytesIO(), "JPEG", quality=90, subsampling=0)
    return watch.speed(count)


async def ours(pictures: list[Image.Image], count: int) -> Speed:
    def messages() -> Iterator[list[dict[str, Any]]]:
        for at in range(count):
            value = pictures[at % len(pictures)]
            yield [{"type": "image", "value": value}, {"type": "text", "value": str(at)}]

    options = EncodeOptions(model="bench")
    store = GivenPictures(options, "/")
    hopper = Hopper(asyncio.get_running_loop())
    entries = StreamEntries(hopper, options, store)
    watch, done = Stopwatch(), 0
    pull(messages(), hopper, shape)
    while not entries.ended:
        done += len(await entries.ready(1.0))
    speed = watch.speed(count)
    await store.close()
    if done != count:
        raise RuntimeError(f"{done} requests came of {count} messages")
    return speed


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    share = max(20, int(sys.argv[1]) // ROUNDS)
    pictures = [picture(seed) for seed in range(8)]
    asyncio.run(ours(pictures, share))  # threads, buffers and caches are there
    rounds, rss = [], [rss_mb()]
    for _ in range(ROUNDS):
        rounds.append((alone(pictures, share // ALONE_SHARE), asyncio.run(ours(pictures, share))))
        rss.append(rss_mb())
    cores = os.cpu_count() or 1
    figures = {
        "ratio": statistics.median(many.per_s / (one.per_s * cores) for one, many in rounds),
        "cpu_ratio": statistics.median(many.per_cpu_s / one.per_cpu_s for one, many in rounds),
        "alone_per_s": statistics.median(one.per_s for one, _ in rounds),
        "ours_per_s": statistics.median(many.per_s for _, many in rounds),
        "growth_mb": max(rss) - rss[0],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
