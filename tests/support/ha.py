"""Stores that outlive a server: a primary with a replica and a sentinel, and a cluster; real processes on loopback.

Every server has its folder and its log; `kill` is kill -9. Give servers back with `close`, whatever has happened.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gristmill.contract.keys import JobKeys
from gristmill.queue.cluster import ClusterRedis
from gristmill.queue.connection import PatientRetry
from tests.support.store import server_binary

SERVICE = "mill"
DOWN_MS = int(os.environ.get("GRISTMILL_HA_DOWN_MS", "500"))
"""A server that is silent for so long counts as dead."""


def impatient(client: AsyncRedis) -> AsyncRedis:
    """The same client, which repeats nothing: for tests of what it raises in the end."""
    never = PatientRetry(NoBackoff(), 0)
    if isinstance(client, ClusterRedis):
        client._patience = never
    else:
        client.connection_pool.connection_kwargs["retry"] = never
    return client


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(fact: Callable[[], Any], what: str, timeout_s: float = 30) -> Any:
    """What `fact` gives once it is true; a store that does not answer is not there yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            found = fact()
        except (RedisError, RedisTimeoutError, OSError):
            found = None
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"it never came to this: {what}")
        time.sleep(0.05)


class Server:
    """One server on a port of loopback."""

    def __init__(self, *options: str, password: str = "") -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="gm-ha-"))
        self.port = free_port()
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.client = Redis(port=self.port, socket_timeout=5, password=password or None)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def alive(self) -> bool:
        return self.process is not None

    def start(self) -> Server:
        argv = [server_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.dir)]
        argv += ["--save", "", "--appendonly", "yes", "--repl-diskless-sync-delay", "0"]
        argv += ["--logfile", str(self.dir / "log"), *self.options]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self.client.ping, "the server answers")
        return self

    def lose_sight_of(self, primary: Server) -> None:
        """This replica gets nothing more from its primary, though it tries."""
        self.client.config_set("masterauth", "wrong")
        primary.client.execute_command("CLIENT", "KILL", "TYPE", "replica")
        until(lambda: not _follows(self), "the replica is cut off")

    def send(self, signum: int) -> None:
        assert self.process is not None
        self.process.send_signal(signum)

    def kill(self) -> None:
        if self.process is not None:
            self.send(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def close(self) -> None:
        self.kill()
        self.client.close()
        shutil.rmtree(self.dir, ignore_errors=True)


class SentinelStore:
    """A primary, its replica, and one sentinel that is enough to decide.

    Args:
        options: of both servers.
        password: of both servers; the sentinel's is PASSWORD-too.
    """

    def __init__(self, *options: str, password: str = "") -> None:
        if password:
            options = (*options, "--requirepass", password, "--masterauth", password)
        self.servers = [Server(*options, password=password), Server(*options, password=password)]
        self.sentinel = _Sentinel(password=password and f"{password}-too")
        self._password = password

    @property
    def url(self) -> str:
        where = f"127.0.0.1:{self.sentinel.port}/{SERVICE}"
        if not self._password:
            return f"redis+sentinel://{where}"
        return f"redis+sentinel://:{self._password}@{where}?sentinel_password={self._password}-too"

    def start(self) -> SentinelStore:
        primary, replica = (server.start() for server in self.servers)
        replica.client.replicaof(*primary.address)
        until(lambda: _follows(replica), "the replica follows")
        self.sentinel.watch(primary.port, self._password)
        until(lambda: self.sentinel.client.sentinel_master(SERVICE)["num-slaves"] == 1, "the sentinel knows both")
        return self

    @property
    def primary(self) -> Server:
        """The one that the sentinel names."""
        port = self.sentinel.client.sentinel_get_master_addr_by_name(SERVICE)[1]
        return next(server for server in self.servers if server.port == port)

    def server_of(self, _job: str) -> Server:
        """The primary that has the job."""
        return self.primary

    def replica_of(self, primary: Server) -> Server:
        return next(server for server in self.servers if server is not primary)

    def fail_over(self, job: str) -> Server:
        """Kill the primary that has the job; the new one, once there is one."""
        old = self.server_of(job)
        old.kill()
        new = self.replica_of(old)
        until(lambda: new.client.info("replication")["role"] == "master", "the replica takes over")
        return new

    def close(self) -> None:
        self.sentinel.close()
        for server in self.servers:
            server.close()


class _Sentinel(Server):
    def watch(self, port: int, password: str) -> None:
        file = self.dir / "sentinel.conf"
        file.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.dir}\nlogfile {self.dir}/log\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_MS}\n"
            f"sentinel failover-timeout {SERVICE} 3000\n"
            + (f"sentinel auth-pass {SERVICE} {password}\nrequirepass {password}-too\n" if password else "")
        )
        argv = [server_binary(), str(file), "--sentinel"]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self.client.ping, "the sentinel answers")


class ClusterStore:
    """Three primaries, each with a replica.

    Args:
        options: of all servers.
    """

    def __init__(self, *options: str, replicas: bool = True) -> None:
        self.servers = [self._node(*options) for _ in range(6 if replicas else 3)]
        self.primaries = self.servers[:3]

    @staticmethod
    def _node(*options: str) -> Server:
        own = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--cluster-config-file", "nodes.conf")
        return Server(*own, "--cluster-node-timeout", str(DOWN_MS), "--cluster-replica-validity-factor", "0", *options)

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:2])

    def start(self) -> ClusterStore:
        for server in self.servers:
            server.start()
        first = self.servers[0].client
        for number, server in enumerate(self.primaries):
            low, high = 16384 * number // 3, 16384 * (number + 1) // 3 - 1
            server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", low, high)
            server.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in self.servers[1:]:
            first.execute_command("CLUSTER", "MEET", *server.address, server.options[3])
        everybody = str(len(self.servers))
        self._until_all("every node knows every other", lambda s: _info(s)["cluster_known_nodes"] == everybody)
        for primary, replica in zip(self.primaries, self.servers[3:], strict=False):
            own_id = primary.client.execute_command("CLUSTER", "MYID").decode()
            until(lambda r=replica, i=own_id: r.client.execute_command("CLUSTER", "REPLICATE", i), "a replica is one")
        self._until_all("the cluster is well", lambda s: _info(s)["cluster_state"] == "ok")
        for replica in self.servers[3:]:
            until(lambda r=replica: _follows(r), "the replica follows")
        return self

    def _until_all(self, what: str, fact: Callable[[Server], bool]) -> None:
        for server in self.servers:
            until(lambda s=server: fact(s), what)

    def owner(self, key: str) -> Server:
        """The primary that has `key`, as a node that lives says."""
        asked = next(server for server in self.servers if server.alive)
        slot = int(asked.client.execute_command("CLUSTER", "KEYSLOT", key))
        for low, high, (_, port, *_), *_ in asked.client.execute_command("CLUSTER", "SLOTS"):
            if low <= slot <= high:
                return next(server for server in self.servers if server.port == port)
        raise AssertionError("nobody has it")

    def server_of(self, job: str) -> Server:
        """The primary that has the job."""
        return self.owner(JobKeys(job).meta)

    def replica_of(self, primary: Server) -> Server:
        return self.servers[self.primaries.index(primary) + 3]

    def fail_over(self, job: str) -> Server:
        """Kill the primary that has the job; the new one, once there is one."""
        old = self.server_of(job)
        old.kill()
        return until(lambda: (now := self.server_of(job)) is not old and now, "the replica takes over")

    def close(self) -> None:
        for server in self.servers:
            server.close()


StoreT = TypeVar("StoreT", SentinelStore, ClusterStore)


@contextmanager
def running(store: StoreT) -> Iterator[StoreT]:
    """The store, started, and given back whatever happens."""
    try:
        yield store.start()
    finally:
        store.close()


def _info(server: Server) -> dict[str, str]:
    text = server.client.execute_command("CLUSTER", "INFO")
    if isinstance(text, dict):
        return text
    return dict(line.split(":", 1) for line in text.decode().split())


def _follows(replica: Server) -> bool:
    """It has all that was written before it came, and gets what comes."""
    return replica.client.info("replication").get("master_link_status") == "up"
