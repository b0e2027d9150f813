#!/opt/gristmill/bin/python
"""The health check of a container: ``gristmill-health URL [--only-for COMMAND]``.

Exit code 0 when URL answers with 200 within 3 s, else 1 with one line that says why. With ``--only-for up`` URL is
asked only where the container's own command is ``gristmilld up``: the image also runs ``producer`` and the stand-in.
"""

from __future__ import annotations

import sys
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

TIMEOUT_S = 3
MOST_BYTES = 500


def runs(command: str) -> bool:
    """Whether the container's first process, or what its init runs, is ``gristmilld COMMAND``."""
    words = Path("/proc/1/cmdline").read_bytes().decode(errors="replace").split("\0")
    return any(Path(word).name == "gristmilld" and command in words[at + 1 :] for at, word in enumerate(words))


def trouble(url: str) -> str:
    """Why `url` is not well; "" when it is."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port or 80, timeout=TIMEOUT_S)
    try:
        connection.request("GET", parts.path or "/")
        reply = connection.getresponse()
        text = reply.read(MOST_BYTES).decode(errors="replace").strip()
    except (OSError, HTTPException) as error:
        return f"{url} does not answer: {error}"
    finally:
        connection.close()
    return "" if reply.status == 200 else f"{url} answers {reply.status}: {text}"


def main(argv: list[str]) -> int:
    url, *rest = argv
    if rest and not runs(rest[-1]):
        return 0
    said = trouble(url)
    if said:
        print(said)  # docker keeps the output of a health check
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
