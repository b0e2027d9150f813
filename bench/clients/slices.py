"""`slices`: our rendering of what is done today with a few dozen lines of one's own.

The parent reads the whole input and makes every message, pictures decoded, converted to RGB, saved as JPEG of quality
90 and put in as base64. It forks N processes over the list, a fixed slice each. Each process makes one task a message
behind a semaphore, posts it with aiohttp's `json=` on asyncio's own loop, parses the answer and hands back its list.
The parent writes the answers in order. A process that dies takes its slice with it.

`--as-they-are` is for what this way costs with pictures that are ready to send: their bytes are taken as they lie, each
file once, and what making the messages took is written to ``OUT.prepared``, so that it can be left out.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from PIL import Image

Body = dict[str, Any]


def encoded(path: Path) -> str:
    """A picture as it is prepared today."""
    with Image.open(path) as picture:
        buffer = io.BytesIO()
        picture.convert("RGB").save(buffer, "JPEG", quality=90)
    return as_url(buffer.getvalue())


def as_url(data: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(data).decode()


class AsTheyAre:
    """Pictures as they lie on disk; names of one file share one text."""

    def __init__(self) -> None:
        self._urls: dict[int, str] = {}

    def __call__(self, path: Path) -> str:
        inode = path.stat().st_ino
        if inode not in self._urls:
            self._urls[inode] = as_url(path.read_bytes())
        return self._urls[inode]


def message(line: Body, picture: Callable[[Path], str]) -> Body:
    content: Any = line["prompt"]
    if "image" in line:
        part = {"type": "image_url", "image_url": {"url": picture(Path(line["image"]))}}
        content = [{"type": "text", "text": content}, part]
    extra = {k: v for k, v in line.items() if k not in {"prompt", "image"}}
    return {"model": "bench", "messages": [{"role": "user", "content": content}], **extra}


async def post_slice(url: str, bodies: list[Body], in_flight: int) -> list[str]:
    semaphore = asyncio.Semaphore(in_flight)
    connector = aiohttp.TCPConnector(limit=in_flight)
    timeout = aiohttp.ClientTimeout(total=3600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def ask(body: Body) -> str:
            async with semaphore, session.post(url, json=body) as answer:
                answer.raise_for_status()
                return (await answer.json())["choices"][0]["message"]["content"]

        return await asyncio.gather(*(ask(body) for body in bodies))


def run_slice(url: str, bodies: list[Body], in_flight: int, back: Any) -> None:
    back.send(asyncio.run(post_slice(url, bodies, in_flight)))


def send_all(url: str, bodies: list[Body], in_flight: int, processes: int, out: Path) -> None:
    """Fork over the list, and write what comes back."""
    size = -(-len(bodies) // processes)
    fork = multiprocessing.get_context("fork")
    workers = []
    for at in range(0, len(bodies), size):
        receive, send = fork.Pipe(duplex=False)
        worker = fork.Process(target=run_slice, args=(url, bodies[at : at + size], in_flight // processes, send))
        worker.start()
        workers.append((worker, receive))
    with out.open("w", encoding="utf-8") as answers:
        for worker, receive in workers:
            for text in receive.recv():
                answers.write(json.dumps({"answer": text}) + "\n")
            worker.join()


def main() -> None:
    parser = argparse.ArgumentParser(prog="slices")
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("url")
    parser.add_argument("in_flight", type=int)
    parser.add_argument("processes", type=int)
    parser.add_argument("--as-they-are", action="store_true")
    options = parser.parse_args()
    cpu_s, wall_s = time.process_time(), time.monotonic()
    picture = AsTheyAre() if options.as_they_are else encoded
    with options.source.open(encoding="utf-8") as lines:
        bodies = [message(json.loads(line), picture) for line in lines]
    if options.as_they_are:
        spent = {"cpu_s": time.process_time() - cpu_s, "wall_s": time.monotonic() - wall_s}
        options.out.with_name(options.out.name + ".prepared").write_text(json.dumps(spent), encoding="utf-8")
    send_all(options.url + "/chat/completions", bodies, options.in_flight, options.processes, options.out)


if __name__ == "__main__":
    main()
