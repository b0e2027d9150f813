"""RQ's queues as the control plane uses them: each attempt once, no pickle, no function but ours."""

from __future__ import annotations

import json

import pytest
from redis import Redis
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer
from tests.support.store import StoreProcess

from gristmill.queue.wishes import Wish
from gristmilld.control import jobs
from gristmilld.control.rqdesk import ControlJob, ForeignJobError, RqDesk, job_id, queue_name
from gristmilld.control.wanting import Standing


@pytest.fixture
def connection(shared_store: StoreProcess):
    with Redis.from_url(shared_store.url) as client:
        client.flushall()
        yield client
        client.flushall()


@pytest.fixture
def desk(connection: Redis) -> RqDesk:
    return RqDesk(connection, jobs.TIMEOUTS_S)


def test_an_attempt_is_enqueued_once(desk: RqDesk, connection: Redis):
    """Two daemons that enqueue the same attempt enqueue it once; another attempt is another job."""
    first = job_id(Wish.FEED, "job.r1", "0123456789", 1)
    assert desk.standing(Wish.FEED, first) is Standing.ABSENT
    assert [desk.enqueue(Wish.FEED, "job.r1", first) for _ in range(2)] == [True, False]
    assert desk.standing(Wish.FEED, first) is Standing.WAITING
    assert desk.enqueue(Wish.FEED, "job.r1", job_id(Wish.FEED, "job.r1", "0123456789", 2))
    assert connection.llen(f"rq:queue:{queue_name(Wish.FEED)}") == 2


def test_what_lies_in_rqs_keys_is_json(desk: RqDesk, connection: Redis):
    """No pickle is ever written; the arguments are the job's id alone."""
    import zlib

    rq_id = job_id(Wish.NOTIFY, "j", "e", 1)
    desk.enqueue(Wish.NOTIFY, "j", rq_id)
    data = json.loads(zlib.decompress(connection.hget(f"rq:job:{rq_id}", "data")))
    assert data == ["gristmilld.control.jobs.notify", None, ["j"], {}]


def test_a_job_that_a_dead_worker_took_is_loose(desk: RqDesk, connection: Redis):
    """It is said to wait, and is in no queue: only time can tell it from one that was just taken."""
    rq_id = job_id(Wish.EXPORT, "j", "e", 1)
    desk.enqueue(Wish.EXPORT, "j", rq_id)
    connection.lpop(f"rq:queue:{queue_name(Wish.EXPORT)}")
    assert desk.standing(Wish.EXPORT, rq_id) is Standing.LOOSE
    connection.hset(f"rq:job:{rq_id}", "status", "failed")
    assert desk.standing(Wish.EXPORT, rq_id) is Standing.ABSENT


@pytest.mark.parametrize(
    "name", ["os.system", "gristmilld.control.jobs.horse.run", "gristmilld.control.jobs.BY_NAME.get"]
)
def test_no_function_but_ours_is_run(connection: Redis, name: str, tmp_path):
    """Whoever writes RQ's keys can name any function and callback; a worker of ours runs none of them."""
    touched = tmp_path / "touched"
    queue = Queue(queue_name(Wish.FEED), connection=connection, serializer=JSONSerializer)
    planted = queue.enqueue_call(name, args=(f"touch {touched}",), job_id="planted")
    connection.hset(planted.key, mapping={"success_callback_name": "os.system", "failure_callback_name": "os.system"})
    job = ControlJob.fetch("planted", connection=connection, serializer=JSONSerializer)
    with pytest.raises(ForeignJobError):
        _ = job.func
    assert (job.success_callback, job.failure_callback, job.stopped_callback) == (None, None, None)
    worker = SimpleWorker([queue], connection=connection, job_class=ControlJob, serializer=JSONSerializer)
    worker.work(burst=True, logging_level="CRITICAL")
    assert not touched.exists()
    assert ControlJob.fetch("planted", connection=connection, serializer=JSONSerializer).is_failed
