"""Preflight against real sockets: each way of not being an endpoint has its own sentence."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gristmill.preflight import Unusable, Usable, preflight, probe, wait_for_endpoint

Answer = Callable[[BaseHTTPRequestHandler], tuple[int, dict[str, str], bytes]]
KEY = "sk-sentinel-3141"


class Endpoint:
    """An HTTP server that gives one prepared answer and remembers what it was asked."""

    def __init__(self, status: int, body: bytes = b"{}", **headers: str) -> None:
        seen = self.seen = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append((self.path, self.headers.get("Authorization")))
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[..., Endpoint]]:
    opened: list[Endpoint] = []

    def start(*args: object, **headers: str) -> Endpoint:
        opened.append(Endpoint(*args, **headers))
        return opened[-1]

    yield start
    for endpoint in opened:
        endpoint.close()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_models_are_listed_and_the_key_is_sent(serve):
    """A model list makes the endpoint usable and names its models; the key goes along as a bearer token."""
    endpoint = serve(200, json.dumps({"object": "list", "data": [{"id": "a", "x": 1}, {"id": "b"}]}).encode())
    assert probe(endpoint.url, KEY) == Usable(endpoint.url, ["a", "b"])
    assert endpoint.seen == [("/v1/models", f"Bearer {KEY}")]
    probe(endpoint.url, None)
    assert endpoint.seen[1] == ("/v1/models", None)


@pytest.mark.parametrize(
    ("status", "body"), [(404, b"{}"), (405, b""), (500, b"oops"), (503, b""), (429, b""), (200, b"hi")]
)
def test_reachable_without_a_list(serve, status: int, body: bytes):
    """Whatever answers without refusing us is reachable with unknown models: the first requests decide."""
    endpoint = serve(status, body)
    assert probe(endpoint.url, None) == Usable(endpoint.url, None)


@pytest.mark.parametrize(
    ("status", "key", "expected"),
    [
        (401, KEY, "refused the key (401): check the key in OPENAI_API_KEY"),
        (403, KEY, "refused the key (403)"),
        (401, None, "refused the request without a key (401): set OPENAI_API_KEY"),
        (402, KEY, "asks for payment (402)"),
    ],
)
def test_refusals_name_the_key_but_never_show_it(serve, status: int, key: str | None, expected: str):
    """A refused key makes an endpoint unusable; the sentence says which variable to look at, without its value."""
    endpoint = serve(status, b'{"error": "sk-sentinel-3141"}')
    verdict = probe(endpoint.url, key)
    assert isinstance(verdict, Unusable)
    assert expected in verdict.message
    assert endpoint.url in verdict.message
    assert KEY not in verdict.message


def test_redirect_is_not_followed(serve):
    """The key does not travel to where a redirect points."""
    target = serve(200)
    endpoint = serve(307, b"", Location=f"{target.url}/models?token=x")
    verdict = probe(endpoint.url, KEY)
    assert isinstance(verdict, Unusable)
    assert f"redirects to {target.url}/models (307)" in verdict.message
    assert target.seen == []


def test_refused_connection_names_the_way_out():
    """Nobody listens: the sentence names the URL, the likely fix and the option that waits."""
    url = f"http://127.0.0.1:{free_port()}/v1"
    verdict = probe(url, None)
    assert isinstance(verdict, Unusable)
    assert verdict.message.startswith(f"{url} refused the connection")
    assert "--wait-for-endpoint" in verdict.message


def test_unknown_host_is_called_so():
    """A name that does not resolve is a spelling or DNS matter."""
    verdict = probe("http://no-such-host.invalid/v1", None)
    assert isinstance(verdict, Unusable)
    assert "cannot be resolved" in verdict.message


def test_https_to_a_plain_server_says_so(serve):
    """TLS against a server that speaks plain HTTP suggests http://."""
    endpoint = serve(200)
    verdict = probe(endpoint.url.replace("http:", "https:"), None)
    assert isinstance(verdict, Unusable)
    assert "TLS" in verdict.message
    assert "http://" in verdict.message


def test_something_else_on_the_port_is_not_an_endpoint():
    """A server of another protocol is named as such."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve_other() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=serve_other)
        thread.start()
        verdict = probe(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", None)
        thread.join()
    assert isinstance(verdict, Unusable)
    assert "does not answer as an HTTP server" in verdict.message


def test_silent_server_costs_the_time_limit_once():
    """Endpoints that accept and say nothing are probed in parallel and given up after the limit."""
    with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
        urls = [f"http://127.0.0.1:{s.getsockname()[1]}/v1" for s in (a, b)]
        began = time.monotonic()
        verdicts = preflight(urls, None, timeout_s=0.3)
        assert time.monotonic() - began < 1.5
    assert [v.url for v in verdicts] == urls
    assert all(isinstance(v, Unusable) and "no answer within 0.3 s" in v.message for v in verdicts)


def test_verdicts_keep_the_order_of_the_urls(serve):
    """One dead endpoint among live ones keeps its place."""
    live = serve(404)
    dead = f"http://127.0.0.1:{free_port()}/v1"
    first, second = preflight([dead, live.url], None)
    assert isinstance(first, Unusable)
    assert second == Usable(live.url, None)


def test_waiting_ends_when_the_endpoint_comes_up(serve):
    """`wait_for_endpoint` reports each vain round and returns as soon as a server is there."""
    port = free_port()
    started: list[Endpoint] = []
    rounds: list[int] = []

    def waiting(verdicts: list[object]) -> None:
        rounds.append(len(verdicts))
        if not started:
            started.append(serve(404))
            urls[0] = started[0].url

    urls = [f"http://127.0.0.1:{port}/v1"]
    verdicts = wait_for_endpoint(urls, None, 20, waiting)
    assert verdicts == [Usable(started[0].url, None)]
    assert rounds == [1]


def test_waiting_is_bounded():
    """When nothing comes up within the patience, the last verdicts are returned."""
    (verdict,) = wait_for_endpoint([f"http://127.0.0.1:{free_port()}/v1"], None, 0.2)
    assert isinstance(verdict, Unusable)
