"""`slices`: our rendering of what is done today with a few dozen lines of one's own.

The parent reads the whole input and makes every message, pictures decoded, converted to RGB, saved as JPEG of quality
90 and put in as base64. It forks N processes over the list, a fixed slice each. Each process makes one task a message
behind a semaphore, posts it with aiohttp's `json=` on asyncio's own loop, parses the answer and hands back its list.
The parent writes the answers in order. A process that dies takes its slice with it.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import aiohttp
from PIL import Image

Body = dict[str, Any]


def picture_part(path: str) -> Body:
    with Image.open(path) as picture:
        buffer = io.BytesIO()
        picture.convert("RGB").save(buffer, "JPEG", quality=90)
    url = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def message(line: Body) -> Body:
    content: Any = line["prompt"]
    if "image" in line:
        content = [{"type": "text", "text": content}, picture_part(line["image"])]
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


def main() -> int:
    source, out, url = Path(sys.argv[1]), Path(sys.argv[2]), f"{sys.argv[3]}/chat/completions"
    in_flight, processes = map(int, sys.argv[4:])
    with source.open(encoding="utf-8") as lines:
        bodies = [message(json.loads(line)) for line in lines]
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
