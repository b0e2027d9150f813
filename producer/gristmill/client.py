"""`gristmill.Client`, for asyncio: submit, stream, ask, steer.

::

    async with gristmill.Client("http://localhost:8000", model="my-model") as client:
        async for result in client.stream(prompts):
            print(result.index, result.text)

Each method is a hop to the client's engine (`gristmill.sdk`), a thread in which the work goes on however busy the
caller's loop is. `gristmill.blocking` has the same for plain code.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from types import TracebackType
from typing import Any, Self

from gristmill.intake.options import InputFormat
from gristmill.sdk.errors import ClosedError, FeedingError
from gristmill.sdk.face import Endpoints, Face, Request, foreign, named, submission
from gristmill.sdk.jobs import CoreJob, JobStatus
from gristmill.sdk.options import JobOptions
from gristmill.sdk.result import Result
from gristmill.sdk.shape import shape
from gristmill.sdk.stream import Hopper, pull

Requests = str | os.PathLike[str] | Iterable[Request] | AsyncIterable[Request]
"""A file's path, or requests: any iterable of strings, conversations and dicts in the forms of docs/sdk.md."""


class Job:
    """One job of a client.

    Attributes:
        id: its name in the store.
    """

    def __init__(self, face: Face, core: CoreJob, pump: asyncio.Task[None] | None = None) -> None:
        self._face = face
        self._core = core
        self._pump = pump
        self.id = core.id

    async def results(self, *, ordered: bool = True) -> AsyncGenerator[Result, None]:
        """The results, in the order of the requests, or as they come.

        Each is handed over once, and freed in the store when the next one is asked for. An iteration that stops early
        leaves the rest in the store; another one goes on from there.

        Raises:
            JobPausedError: the job waits for a person.
            FeedingError: the input can't be read to its end; what the caller's own iterable raises comes as it is.
            DaemonError: the private daemon died again and again.
        """
        with foreign():
            delivery = await self._face.call(self._core.deliver(ordered=ordered))
            try:
                while batch := await self._face.call(delivery.next()):
                    for result in batch:
                        delivery.handed += 1
                        yield result
            finally:
                with contextlib.suppress(ClosedError):  # the client is closed: so is this
                    await self._face.call(delivery.close())

    async def status(self) -> JobStatus:
        """Where it stands."""
        with foreign():
            return await self._face.call(self._core.status())

    async def pause(self) -> JobStatus:
        """Send no more requests for now; those in flight may finish."""
        with foreign():
            return await self._face.call(self._core.pause())

    async def resume(self) -> JobStatus:
        """Go on after `pause`, or after what paused the job is mended."""
        with foreign():
            return await self._face.call(self._core.resume())

    async def cancel(self) -> JobStatus:
        """Send no more requests at all; results that are there can still be had."""
        self._stop_pump()
        with foreign():
            return await self._face.call(self._core.cancel())

    async def remove(self) -> None:
        """Take the job out of the store, with all its results."""
        self._stop_pump()
        with foreign():
            await self._face.call(self._face.core.forget(self._core))

    def _stop_pump(self) -> None:
        if self._pump is not None:
            self._pump.cancel()

    def __repr__(self) -> str:
        return f"Job({self.id!r})"


class Client:
    """Sends requests to model servers through a queue, and brings back one result for each.

    Without `redis` and `state_dir` it has a private store and a daemon of its own, started with the first use and gone
    with the client, also when its process is killed.

    Args:
        endpoints: base URL of a model server, or several (environment: OPENAI_BASE_URL, OPENAI_API_BASE).
        model: for requests that name none. Without it, the one model that the server lists.
        key: sent to these endpoints alone (environment: OPENAI_API_KEY).
        redis: a store to use instead, ``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://`` or
            ``redis+cluster://``; its daemons send the requests.
        state_dir: the embedded store of this folder instead, as commands with ``--state-dir`` use it.
        pool: which daemons of such a store may work on the jobs.
        workers: worker processes of the private daemon; one per core by default, at most 8.
        concurrency: requests in flight per worker; 256 by default.
        wait_for_endpoint_s: wait so long for a first endpoint to come up.
    """

    def __init__(
        self,
        endpoints: Endpoints = None,
        *,
        model: str | None = None,
        key: str | None = None,
        redis: str | None = None,
        state_dir: str | os.PathLike[str] | None = None,
        pool: str = "default",
        workers: int | None = None,
        concurrency: int | None = None,
        wait_for_endpoint_s: float = 0.0,
    ) -> None:
        self._face = Face(
            endpoints=endpoints,
            model=model,
            key=key,
            redis=redis,
            state_dir=state_dir,
            pool=pool,
            workers=workers,
            concurrency=concurrency,
            wait_for_endpoint_s=wait_for_endpoint_s,
        )

    async def __aenter__(self) -> Self:
        try:
            with foreign():
                await self._face.call(self._face.core.start())
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop everything of this client; returns when it has ended. May be called twice.

        In a store of its own nothing is left. In another store, jobs that were fed to their end go on without it.
        """
        await asyncio.to_thread(self._face.close)

    async def submit(
        self,
        requests: Requests,
        *,
        model: str | None = None,
        system: str | None = None,
        name: str | None = None,
        media_root: str | os.PathLike[str] | None = None,
        format: InputFormat = "requests",  # noqa: A002  the name that the command line has, too
        options: JobOptions = JobOptions(),
        **body: Any,
    ) -> Job:
        """Begin a job; returns at once, while the requests are being read.

        An iterable is read in a thread of its own (an async one on this loop), only as fast as the store takes it.

        Args:
            requests: a file's path, or an iterable; see `Requests`.
            model: for every request, over its own.
            system: a system message for every request that has none.
            name: what the job is called.
            media_root: folder of relative picture paths; by default that of the file, or the current one.
            format: what a line of the file is; ``conversations`` for rows with turns of human and gpt.
            options: attempts, time-outs, limits, pictures.
            body: keys put into the body of every request, over its own: ``temperature=0``.

        Raises:
            SetupError: nothing can be sent; the message says why.
            FeedingError: the file can't be read.
        """
        face, file = self._face, named(requests)
        told = submission(requests, model, system, name, media_root, format, options, body)
        with foreign():
            if file is not None:
                return Job(face, await face.call(face.core.submit_file(file, told)))
            core, hopper = await face.call(face.core.submit_stream(told))
        if isinstance(requests, AsyncIterable):
            return Job(face, core, asyncio.create_task(_pump(requests, hopper)))
        assert isinstance(requests, Iterable)
        pull(requests, hopper, shape)
        return Job(face, core)

    async def stream(self, requests: Requests, *, ordered: bool = True, **how: Any) -> AsyncGenerator[Result, None]:
        """The results of `requests`, in their order or as they come; the job is removed at the end.

        `how` is what `submit` takes.
        """
        job = await self.submit(requests, **how)
        try:
            async with contextlib.aclosing(job.results(ordered=ordered)) as results:
                async for result in results:
                    yield result
        finally:
            with contextlib.suppress(ClosedError):
                await job.remove()

    async def generate(self, requests: Iterable[Request] | AsyncIterable[Request], **how: Any) -> list[Result]:
        """The results of `requests`, in their order, once all are there. `how` is what `submit` takes."""
        found = {result.index: result async for result in self.stream(requests, ordered=False, **how)}
        return [found[index] for index in sorted(found)]

    async def ask(self, request: Request, **body: Any) -> Result:
        """The result of one request; many may be asked at once.

        Requests that are asked share one standing job, so each costs no more than one of many. `body` is put into the
        request's body, over its own keys.

        Raises:
            JobPausedError: a person has to act: a key, a model.
            SetupError: nothing can be sent.
        """
        with foreign():
            return await self._face.call(self._face.asker.ask(shape(request, body)))

    async def job(self, job: str) -> Job:
        """A job that is in the store, for example one that another program has submitted.

        Raises:
            JobNotFoundError: it is not there.
        """
        with foreign():
            return Job(self._face, await self._face.call(self._face.core.attach(job)))

    async def jobs(self) -> list[str]:
        """The ids of the jobs in the store, oldest first."""
        with foreign():
            return await self._face.call(self._face.core.job_ids())


async def _pump(requests: AsyncIterable[Request], hopper: Hopper) -> None:
    """Fill the hopper from an async iterable, on the caller's loop."""
    try:
        async for request in requests:
            await hopper.put_when_room(shape(request))
    except asyncio.CancelledError:
        hopper.end(FeedingError("the loop that gave the requests has ended"))
        raise
    except Exception as error:  # noqa: BLE001  it is raised again where the results are read
        hopper.end(error)
    else:
        hopper.end()
