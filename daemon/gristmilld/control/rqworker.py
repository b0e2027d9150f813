"""Boots one RQ worker in a child that the supervisor forked: one queue, JSON, our functions alone.

It shows up in ``rq info``, is restarted by the supervisor like any child, and ends with it. Its heartbeat to the
supervisor rides on RQ's own, which comes every few seconds also while it waits for a job, a horse or the store.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from rq import Worker
from rq.job import Job
from rq.serializers import JSONSerializer

from gristmill.queue.wishes import Wish
from gristmilld import logs
from gristmilld.config import HelperSpec
from gristmilld.control.horse import Inherited, hand_down
from gristmilld.control.rqdesk import ControlJob, queue_name
from gristmilld.control.rqstore import control_connection, control_url
from gristmilld.lifeline import beat

log = logging.getLogger(__name__)

MAINTENANCE_S = 30
_RQ_SPARE_S = 15
"""RQ waits for a job so much shorter than its worker's time to live."""
_BEAT_S = 5
_STORE_PATIENCE_S = 0.5


def run_rq_worker(spec: HelperSpec) -> int:
    """Work on one queue until told to leave; the process's exit code."""
    config, wish = spec.config, Wish(spec.wish)
    logs.set_up(f"rq-{wish}", log_format=config.log_format, level=config.log_level)
    beat(spec.heartbeat_fd)
    name = f"gristmill-{spec.daemon_id}-{wish}-{spec.generation}"
    connection = control_connection(control_url(config), name)
    if not _wait_for_store(connection, spec.heartbeat_fd):
        return 0
    hand_down(Inherited(config, spec.daemon_id, os.getpid()))
    try:
        _work(spec, wish, connection, name)
    except (RedisError, OSError) as error:  # the next one waits for the store
        log.info("the control plane's queue %s can't be reached (%s)", queue_name(wish), error)
    return 0


def _work(spec: HelperSpec, wish: Wish, connection: Redis, name: str) -> None:
    """Do one job after another, until told to leave or until the store fails."""
    beat_s = max(1, min(_BEAT_S, round(spec.config.hang_s / 4)))
    worker = BeatingWorker(
        [queue_name(wish)],
        name=name,
        connection=connection,
        job_class=ControlJob,
        serializer=JSONSerializer,
        maintenance_interval=MAINTENANCE_S,
        worker_ttl=_RQ_SPARE_S + beat_s,
        job_monitoring_interval=beat_s,
        log_job_description=False,
        work_horse_killed_handler=_tell_of_death,
    )
    worker.heartbeat_fd = spec.heartbeat_fd
    worker.work(logging_level="CRITICAL")  # outages and failures are told by us, in a sentence


def _tell_of_death(job: Job, pid: int, status: int, _usage: Any) -> None:
    code = os.waitstatus_to_exitcode(status)
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    log.warning("%s died (pid %d, %s); another attempt follows", job.description, pid, how)


def _wait_for_store(connection: Redis, heartbeat_fd: int) -> bool:
    """Return once the store answers; False when told to leave meanwhile."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _: asked.append(signum))
    while not asked:
        beat(heartbeat_fd)
        try:
            connection.ping()
        except (RedisError, OSError):
            time.sleep(_STORE_PATIENCE_S)
        else:
            return True
    return False


class Deaf:
    """An RQ worker that takes no orders by the store's channels: who may publish there could stop it or its job.

    And so it needs no thread, and forks its horses from a process that has none.
    """

    def subscribe(self) -> None:
        """There is nothing to listen to."""

    def unsubscribe(self) -> None:
        """Nothing was listened to."""


class BeatingWorker(Deaf, Worker):
    """Beats for the supervisor, and passes a stop on to its horse."""

    heartbeat_fd = -1
    max_connection_wait_time = 2.0

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        beat(self.heartbeat_fd)
        super().heartbeat(timeout, pipeline)

    def handle_warm_shutdown_request(self) -> None:
        """A horse puts its work down at once: it loses nothing by it, and the daemon wants to stop."""
        if self.horse_pid:
            try:
                os.kill(self.horse_pid, signal.SIGTERM)
            except ProcessLookupError:
                log.debug("the horse has ended by itself")
