"""The server's port, taken before anything is forked: a port that is in use is found at the start, with a sentence."""

from __future__ import annotations

import errno
import socket

_BACKLOG = 64


class ListenError(Exception):
    """The port can't be listened on; the message says why and how to fix it."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on `host` and `port` (0 takes any free one).

    Raises:
        ListenError: in use, not allowed, or no address of this machine.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror:
        raise ListenError(f"metrics can't be served on {host!r}: no such address here; set --metrics-host") from None
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise ListenError(_sentence(host, port, error)) from error
    return sock


def _sentence(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host}, for metrics, is in use: give another with --metrics-port PORT, "
            "or --no-metrics to go without"
        )
    return f"metrics can't be served on {host} port {port}: {error.strerror}; give another with --metrics-port PORT"
