"""RQ as we use it: one queue per wish, JSON, ids that carry our attempt number, nothing kept of what has ended.

RQ refuses a second job of an id while the first one's hash exists (`unique`), so two daemons that enqueue the same
attempt enqueue it once, and a new attempt needs a new id. A control job names a function of `gristmilld.control.jobs`
and a job; whoever can write RQ's keys can write any function's name there, so `ControlJob` knows no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis import Redis
from rq import Queue
from rq.exceptions import DuplicateJobError, NoSuchJobError
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from gristmill.queue.wishes import Wish
from gristmilld.control.wanting import Standing

JOBS = "gristmilld.control.jobs."
FAILURE_TTL_S = 60
_ENDED = {JobStatus.FINISHED, JobStatus.FAILED, JobStatus.STOPPED, JobStatus.CANCELED}


class ForeignJobError(Exception):
    """A job in RQ's keys that asks for something other than our functions."""


class ControlJob(Job):
    """Runs the functions of `gristmilld.control.jobs` and nothing else, without callbacks."""

    @property
    def func(self) -> Callable[..., Any]:
        """
        Raises:
            ForeignJobError: it asks for another function.
        """
        from gristmilld.control import jobs

        found = jobs.BY_NAME.get(str(self.func_name))
        if found is None or self.instance:
            raise ForeignJobError("a control job asks for a function that is none of ours; it is not run")
        return found

    def restore(self, raw_data: dict[str, bytes]) -> None:
        super().restore(raw_data)
        self.webhooks = []

    @property
    def success_callback(self) -> None:
        return None

    @property
    def failure_callback(self) -> None:
        return None

    @property
    def stopped_callback(self) -> None:
        return None


def queue_name(wish: Wish) -> str:
    """What ``rq info`` calls the queue."""
    return f"gristmill-{wish}"


def job_id(wish: Wish, job: str, epoch: str, attempt: int) -> str:
    """RQ's id of one attempt; RQ takes no dots."""
    return f"{wish}-{job.replace('.', '_')}-{epoch[:8]}-{attempt}"


class RqDesk:
    """The queues of control jobs; every call blocks on the store.

    Args:
        connection: of the store that RQ's keys lie in.
        timeouts_s: after so long RQ ends a job of each wish by force.
    """

    def __init__(self, connection: Redis, timeouts_s: dict[Wish, int]) -> None:
        self._connection = connection
        self._timeouts_s = timeouts_s
        self._queues = {
            wish: Queue(queue_name(wish), connection=connection, serializer=JSONSerializer, job_class=ControlJob)
            for wish in Wish
        }

    def standing(self, wish: Wish, rq_id: str) -> Standing:
        """Where an attempt stands."""
        try:
            job = ControlJob.fetch(rq_id, connection=self._connection, serializer=JSONSerializer)
        except NoSuchJobError:
            return Standing.ABSENT
        if job.get_status(refresh=False) in _ENDED:
            return Standing.ABSENT
        if self._queues[wish].get_job_position(rq_id) is not None:
            return Standing.WAITING
        return Standing.LOOSE

    def enqueue(self, wish: Wish, job: str, rq_id: str) -> bool:
        """Enqueue an attempt; False when it is in the queue already."""
        try:
            self._queues[wish].enqueue_call(
                JOBS + wish,
                args=(job,),
                timeout=self._timeouts_s[wish],
                result_ttl=0,
                failure_ttl=FAILURE_TTL_S,
                job_id=rq_id,
                description=f"{wish} {job}",
                unique=True,
            )
        except DuplicateJobError:
            return False
        return True

    def close(self) -> None:
        self._connection.close()
