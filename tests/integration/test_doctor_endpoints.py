"""The doctor asks a model server as the daemon would, and no more than that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gristmilld.config import EndpointConfig, Secret
from gristmilld.doctor import endpoints
from gristmilld.doctor.finding import Finding, Level


class Server:
    """A server that answers `pages` (path -> status, body) and 404 else.

    Attributes:
        asked: path and Authorization of each request.
    """

    def __init__(self, **pages: tuple[int, bytes]) -> None:
        self.asked: list[tuple[str, str | None]] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append((self.path, self.headers["Authorization"]))
                status, body = pages.get(self.path.rpartition("/")[2], (404, b""))
                self.send_response(status)
                if status in {301, 307}:
                    self.send_header("Location", "http://elsewhere.example/v1/models")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    @contextmanager
    def running(self) -> Iterator[Server]:
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            self._http.server_close()
            thread.join()


MODELS = (200, b'{"data":[{"id":"a"},{"id":"b"},{"id":"c"},{"id":"d"}]}')


def examined(server: Server, **more: object) -> list[Finding]:
    with server.running():
        return endpoints.examine([EndpointConfig(name="e", url=server.url, key=Secret("SENTINEL"), **more)])


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ((200, b"# HELP\nvllm:num_requests_running 3\n"), "metrics (vllm) at"),
        ((200, b"llamacpp:requests 1\n"), "metrics (llama.cpp) at"),
        ((200, b"up 1\n"), "metrics (of another kind) at"),
        ((404, b""), "no metrics"),
    ],
)
def test_models_and_metrics_are_named(metrics: tuple[int, bytes], words: str):
    """A few models by name; the key goes to the list of models alone, and into no text."""
    server = Server(models=MODELS, metrics=metrics)
    (found,) = examined(server)
    assert found.level is Level.OK
    assert "serves a, b, c, ...;" in found.text
    assert words in found.text
    assert server.asked == [("/v1/models", "Bearer SENTINEL"), ("/metrics", None)]
    assert "SENTINEL" not in repr(found)


@pytest.mark.parametrize(
    ("models", "level", "words", "fix"),
    [
        ((404, b""), Level.WARN, "has no list of models", "check that the base URL is right"),
        ((401, b""), Level.FAIL, "refused the key (401)", "check the key that key_env or key_file names"),
        ((402, b""), Level.FAIL, "asks for payment", "top up the account"),
        ((307, b""), Level.FAIL, "redirects to http://elsewhere.example", "give that server's own base URL"),
    ],
)
def test_what_is_wrong_has_its_fix(models: tuple[int, bytes], level: Level, words: str, fix: str):
    """The advice is about the daemon's settings; no redirect is followed."""
    (found,) = examined(Server(models=models))
    assert found.level is level
    assert words in found.text
    assert fix in found.fix


def test_a_file_that_holds_no_certificates_is_told(tmp_path: Path):
    """Before anything is asked: with it no call could be made."""
    path = tmp_path / "ca.pem"
    path.write_text("nothing")
    server = Server(models=MODELS)
    (found,) = examined(server, ca_file=str(path))
    assert (found.level, found.fix) == (Level.FAIL, "name a PEM file as ca_file")
    assert server.asked == []


def test_a_server_that_speaks_no_tls_is_told():
    """Also where its certificate would not be checked."""
    server = Server(models=MODELS)
    with server.running():
        url = server.url.replace("http://", "https://")
        (found,) = endpoints.examine([EndpointConfig(name="e", url=url, insecure=True)])
    assert found.level is Level.FAIL
    assert "TLS with" in found.text


def test_no_endpoint_is_no_finding():
    """Their lack is an error of the settings."""
    assert endpoints.examine([]) == []
