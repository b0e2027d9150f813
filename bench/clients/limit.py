"""`limit`: as little as a client in this language can do.

One process a core, each with uvloop and one aiohttp session; every request is the same bytes, made once; the answer is
read and dropped. Nothing is parsed, ordered, kept or survived.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys

import aiohttp
import uvloop


async def post_all(url: str, body: bytes, requests: int, in_flight: int) -> None:
    headers = {"Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=in_flight)
    skip = ("User-Agent", "Accept", "Accept-Encoding")
    numbers = itertools.count()
    async with aiohttp.ClientSession(connector=connector, skip_auto_headers=skip, auto_decompress=False) as session:

        async def lane() -> None:
            while next(numbers) < requests:
                async with session.post(url, data=body, headers=headers) as answer:
                    await answer.read()
                    if answer.status != 200:
                        raise RuntimeError(f"the endpoint answered {answer.status}")

        await asyncio.gather(*(lane() for _ in range(in_flight)))


def main() -> int:
    url, size, requests, in_flight, processes = sys.argv[1], *map(int, sys.argv[2:])
    head, tail = b'{"model":"bench","messages":[{"role":"user","content":"', b'"}]}'
    body = head + b"x" * max(0, size - len(head) - len(tail)) + tail
    children = []
    for _ in range(processes):
        pid = os.fork()
        if pid == 0:
            uvloop.run(post_all(f"{url}/chat/completions", body, requests // processes, in_flight // processes))
            os._exit(0)
        children.append(pid)
    return int(any(os.waitpid(pid, 0)[1] for pid in children))


if __name__ == "__main__":
    sys.exit(main())
