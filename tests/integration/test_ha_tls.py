"""Sentinels and clusters over TLS: everything goes by it, and a certificate that is not trusted is refused."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis as SyncRedis
from tests.support.ha import SERVICE, free_port, impatient, until
from tests.support.queues import claim, collect_all, fed_job, finish

from gristmill.queue import StoreError
from gristmill.queue.store import check_store, connect
from gristmilld.control.rqstore import control_connection


class Tls:
    """Debian's server with a certificate of its own, in a folder of its own; started by `run`, ended by `close`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gm-tls-"))
        self.ca = self.folder / "cert.pem"
        self._key = self.folder / "key.pem"
        words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
        words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(self._key), "-out", str(self.ca)]
        subprocess.run(words, check=True, capture_output=True)
        self._processes: list[subprocess.Popen[bytes]] = []

    def run(self, *options: object, sentinel: str = "") -> SyncRedis:
        """A server on a free port of its own; an administrator's client of it."""
        port = free_port()
        tls = {"tls-port": port, "port": 0, "tls-cert-file": self.ca, "tls-key-file": self._key}
        tls |= {"tls-ca-cert-file": self.ca, "tls-auth-clients": "no", "tls-replication": "yes", "dir": self.folder}
        file = self.folder / f"{port}.conf"
        file.write_text("".join(f"{name} {value}\n" for name, value in tls.items()) + sentinel)
        argv = ["redis-server", file, *(["--sentinel"] if sentinel else ["--save", "", "--appendonly", "no"]), *options]
        quiet = subprocess.DEVNULL
        self._processes.append(subprocess.Popen([str(word) for word in argv], stdout=quiet, stderr=quiet))
        client = SyncRedis(port=port, host="127.0.0.1", ssl=True, ssl_ca_certs=str(self.ca))
        until(client.ping, "the server answers")
        return client

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def tls() -> Iterator[Tls]:
    if shutil.which("redis-server") is None or shutil.which("openssl") is None:
        pytest.skip("needs redis-server with TLS and openssl: apt-get install redis-server openssl")
    made = Tls()
    yield made
    made.close()


def port_of(client: SyncRedis) -> int:
    return int(client.connection_pool.connection_kwargs["port"])


async def assert_works(url: str) -> None:
    client = connect(url)
    await check_store(client)
    queue = await fed_job(client, 10)
    await finish(queue, "w.1", (await claim(queue, "w.1", 10)).claimed)
    assert len(await collect_all(queue)) == 10
    await queue.remove()
    await client.aclose()


async def assert_distrusted(url: str) -> None:
    client = impatient(connect(url.partition("?")[0]))
    with pytest.raises(StoreError, match="cannot be reached"):
        await check_store(client)
    await client.aclose()


async def test_a_cluster_over_tls(tls: Tls):
    """The nodes are found and spoken to by TLS alone."""
    options = ("--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-port", free_port())
    node = tls.run(*options)
    node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    until(lambda: "cluster_state:ok" in str(node.execute_command("CLUSTER", "INFO")), "the cluster is well")
    url = f"rediss+cluster://127.0.0.1:{port_of(node)}?ssl_ca_certs={tls.ca}"
    await assert_works(url)
    await assert_distrusted(url)


async def test_sentinels_over_tls(tls: Tls):
    """Sentinels and primary by TLS, for the queue and for RQ."""
    primary = tls.run()
    watched = f"sentinel monitor {SERVICE} 127.0.0.1 {port_of(primary)} 1\n"
    sentinel = tls.run(sentinel=watched)
    url = f"rediss+sentinel://127.0.0.1:{port_of(sentinel)}/{SERVICE}/1?ssl_ca_certs={tls.ca}"
    await assert_works(url)
    rq = control_connection(url, "rq")
    assert rq.set("rq:x", 1)
    assert primary.info("keyspace")["db1"]["keys"] >= 1
    rq.close()
    await assert_distrusted(url)
