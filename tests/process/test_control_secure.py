"""A store with TLS, passwords and a user for each role, by URL alone: whole jobs with the users of examples/users.acl.

Debian's ``redis-server`` is used where it is installed, since the embedded store has no TLS; users are tested without.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis as SyncRedis
from redis.exceptions import RedisError
from tests.process.daemons import Daemon
from tests.support.cli import producer, write_requests
from tests.support.roles import NEWER
from tests.support.standin import StandinProcess
from tests.support.store import server_binary
from tests.support.wait import wait_until_sync

USERS = Path(__file__).resolve().parents[2] / "examples/users.acl"
ADMIN = "user admin on >ADMIN ~* &* +@all\nuser default off\n"


class SecureStore:
    """A server with the users of the example, on a unix socket, or by TLS on the loopback.

    Attributes:
        ca: file of the authority that has signed its certificate; None without TLS.
    """

    def __init__(self, binary: str, *, tls: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gm-secure-"))
        self.socket = self.folder / "s.sock"
        self.ca: Path | None = None
        options = ["--port", "0", "--dir", self.folder, "--save", "", "--appendonly", "yes", "--daemonize", "no"]
        acl = self.folder / "users.acl"
        acl.write_text(USERS.read_text() + ADMIN)
        options += ["--aclfile", acl, "--unixsocket", self.socket]
        if tls:
            options += self._tls()
        self._process = subprocess.Popen(
            [binary, *map(str, options)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until_sync(self._answers, description="the store answers")

    def _tls(self) -> list[object]:
        key, self.ca = self.folder / "key.pem", self.folder / "cert.pem"
        words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
        words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(self.ca)]
        subprocess.run(words, check=True, capture_output=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        files = ["--tls-cert-file", self.ca, "--tls-key-file", key, "--tls-ca-cert-file", self.ca]
        return ["--tls-port", self._port, "--tls-auth-clients", "no", *files]

    def url(self, user: str, password: str = "CHANGE-ME", *, ca: bool = True) -> str:
        if self.ca is None:
            return f"unix://{user}:{password}@{self.socket}"
        trust = f"?ssl_ca_certs={self.ca}" if ca else ""
        return f"rediss://{user}:{password}@127.0.0.1:{self._port}/0{trust}"

    def denied(self) -> list[str]:
        """What the store has refused to its users."""
        with SyncRedis.from_url(f"unix://admin:ADMIN@{self.socket}") as admin:
            entries = [(e["username"], f"{e['reason']} {e['object']}") for e in admin.acl_log()]
        return [f"{user}: {what}" for user, what in entries if what not in NEWER]

    def _answers(self) -> bool:
        try:
            with SyncRedis.from_url(f"unix://admin:ADMIN@{self.socket}") as admin:
                return bool(admin.ping())
        except (RedisError, OSError):
            return False

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(params=["unix", "tls"])
def store(request: pytest.FixtureRequest) -> Iterator[SecureStore]:
    binary = server_binary()
    if request.param == "tls":
        found = shutil.which("redis-server")
        if found is None or shutil.which("openssl") is None:
            pytest.skip("needs redis-server with TLS and openssl: apt-get install redis-server openssl")
        binary = found
    made = SecureStore(binary, tls=request.param == "tls")
    yield made
    made.close()


@pytest.fixture(scope="module")
def standin() -> Iterator[StandinProcess]:
    with StandinProcess() as process:
        yield process


def test_each_role_by_its_own_user(tmp_path: Path, store: SecureStore, standin: StandinProcess):
    """Submit, detached and not, work, control plane, export, results, retry, steering: nothing is denied to anybody."""
    standin.control(faults=[{"kind": "status", "status": 400, "text": "BADROW"}])
    folder = tmp_path / "daemon"
    folder.mkdir()
    words = ["--workers", "1", "--no-metrics", "-e", standin.url, "--allow-root", str(tmp_path)]
    daemon = Daemon(folder, *words, redis=store.url("control"), GRISTMILL_CONTROL_REDIS_URL=store.url("rq"))
    try:
        daemon.says("connected to the store")
        mine, theirs = ("--redis", store.url("producer")), ("--redis", store.url("collector"))
        out = tmp_path / "out.jsonl"
        source = write_requests(tmp_path / "in.jsonl", 50)
        left = producer("submit", source, "-m", "standin", "--detach", "--output", out, *mine)
        assert left.returncode == 0, (left.stderr, store.denied())
        wait_until_sync(lambda: out.exists() and len(out.read_text().splitlines()) == 50, description="it is exported")
        bad = tmp_path / "bad.jsonl"
        bad.write_text('{"prompt": "BADROW"}\n{"prompt": "good"}\n')
        job = producer("submit", bad, "-m", "standin", "--first-alone", "0", *mine).stdout.strip()
        assert producer("results", job, "-o", tmp_path / "two.jsonl", *theirs).returncode == 1
        standin.control(faults=[])
        assert producer("retry", job, *mine).returncode == 0
        assert producer("results", job, "-o", tmp_path / "two.jsonl", *theirs).returncode == 0
        for verb in ("ls", ("status", job), ("watch", job), ("rm", job)):
            done = producer(*([verb] if isinstance(verb, str) else verb), *mine)
            assert done.returncode in {0, 1}, done.stderr  # the job itself keeps its failed request
        assert len(json.loads(producer("ls", "--json", *mine).stdout)) == 2
        wait_until_sync(lambda: not Path(f"{out}.gm").exists(), description="the export has ended")
        assert store.denied() == []
    finally:
        assert daemon.stop() == 0, daemon.log[-2000:]
    assert store.denied() == []
    assert "CHANGE-ME" not in daemon.log


def test_a_wrong_password_or_authority_is_a_sentence(store: SecureStore):
    """Neither is waited for, and no password is shown."""
    wrong = producer("ls", "--redis", store.url("producer", "not-it"))
    assert (wrong.returncode, "give user and password in the URL" in wrong.stderr) == (2, True)
    assert "not-it" not in wrong.stderr
    if store.ca is not None:
        strange = producer("ls", "--redis", store.url("producer", ca=False))
        assert strange.returncode == 2
        assert "cannot be reached" in strange.stderr
        assert "CHANGE-ME" not in strange.stderr
