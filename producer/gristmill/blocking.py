"""`gristmill.blocking.Client`: the client for plain code, and `generate`, the one-liner.

::

    with gristmill.blocking.Client("http://localhost:8000", model="my-model") as client:
        for result in client.stream(prompts):
            print(result.index, result.text)

Same methods, same meanings as `gristmill.Client`, without `await`; to be used from any thread, in a notebook, and even
inside a running event loop (which it then blocks). Ctrl-C gets through every call.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from gristmill.intake.options import InputFormat
from gristmill.sdk.errors import ClosedError
from gristmill.sdk.face import Endpoints, Face, Request, foreign, named, submission
from gristmill.sdk.jobs import CoreJob, JobStatus
from gristmill.sdk.options import JobOptions
from gristmill.sdk.result import Result
from gristmill.sdk.shape import shape
from gristmill.sdk.stream import pull

Requests = str | os.PathLike[str] | Iterable[Request]
"""A file's path, or requests: any iterable of strings, conversations and dicts in the forms of docs/sdk.md."""


class Job:
    """One job of a client; see `gristmill.client.Job`.

    Attributes:
        id: its name in the store.
    """

    def __init__(self, face: Face, core: CoreJob) -> None:
        self._face = face
        self._core = core
        self.id = core.id

    def results(self, *, ordered: bool = True) -> Iterator[Result]:
        """The results, in the order of the requests, or as they come; each once."""
        with foreign():
            delivery = self._face.wait(self._core.deliver(ordered=ordered))
            try:
                while batch := self._face.wait(delivery.next()):
                    for result in batch:
                        delivery.handed += 1
                        yield result
            finally:
                with contextlib.suppress(ClosedError):  # the client is closed: so is this
                    self._face.wait(delivery.close())

    def status(self) -> JobStatus:
        """Where it stands."""
        with foreign():
            return self._face.wait(self._core.status())

    def pause(self) -> JobStatus:
        """Send no more requests for now; those in flight may finish."""
        with foreign():
            return self._face.wait(self._core.pause())

    def resume(self) -> JobStatus:
        """Go on after `pause`, or after what paused the job is mended."""
        with foreign():
            return self._face.wait(self._core.resume())

    def cancel(self) -> JobStatus:
        """Send no more requests at all; results that are there can still be had."""
        with foreign():
            return self._face.wait(self._core.cancel())

    def remove(self) -> None:
        """Take the job out of the store, with all its results."""
        with foreign():
            self._face.wait(self._face.core.forget(self._core))

    def __repr__(self) -> str:
        return f"Job({self.id!r})"


class Client:
    """The client for plain code; its arguments are those of `gristmill.Client`."""

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

    def __enter__(self) -> Self:
        try:
            with foreign():
                self._face.wait(self._face.core.start())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything of this client; returns when it has ended. May be called twice."""
        self._face.close()

    def submit(
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
        """Begin a job; returns at once, while the requests are being read. See `gristmill.Client.submit`."""
        face, file = self._face, named(requests)
        told = submission(requests, model, system, name, media_root, format, options, body)
        with foreign():
            if file is not None:
                return Job(face, face.wait(face.core.submit_file(file, told)))
            assert not isinstance(requests, os.PathLike)
            core, hopper = face.wait(face.core.submit_stream(told))
        pull(requests, hopper, shape)
        return Job(face, core)

    def stream(self, requests: Requests, *, ordered: bool = True, **how: Any) -> Iterator[Result]:
        """The results of `requests`, in their order or as they come; the job is removed at the end."""
        job = self.submit(requests, **how)
        try:
            yield from job.results(ordered=ordered)
        finally:
            with contextlib.suppress(ClosedError):
                job.remove()

    def generate(self, requests: Iterable[Request], **how: Any) -> list[Result]:
        """The results of `requests`, in their order, once all are there."""
        found = {result.index: result for result in self.stream(requests, ordered=False, **how)}
        return [found[index] for index in sorted(found)]

    def ask(self, request: Request, **body: Any) -> Result:
        """The result of one request; many threads may ask at once. See `gristmill.Client.ask`."""
        with foreign():
            return self._face.wait(self._face.asker.ask(shape(request, body)))

    def job(self, job: str) -> Job:
        """A job that is in the store.

        Raises:
            JobNotFoundError: it is not there.
        """
        with foreign():
            return Job(self._face, self._face.wait(self._face.core.attach(job)))

    def jobs(self) -> list[str]:
        """The ids of the jobs in the store, oldest first."""
        with foreign():
            return self._face.wait(self._face.core.job_ids())


def generate(
    messages: Iterable[Request],
    *,
    model: str | None = None,
    endpoints: Endpoints = None,
    key: str | None = None,
    workers: int | None = None,
    concurrency: int | None = None,
    **how: Any,
) -> list[Result]:
    """The results of `messages`, in their order: a client is made for this one call, and gone after it.

    Args:
        messages: prompts, conversations, or dicts in any of the input forms.
        model: for every request; without it their own, or the one that the server lists.
        endpoints, key, workers, concurrency: see `gristmill.Client`.
        how: what `submit` takes, such as ``system="..."`` or ``temperature=0``.

    Raises:
        SetupError: nothing can be sent; the message says why.
        JobPausedError: a person has to act; the results that were there are lost with the client.
    """
    with Client(endpoints, model=model, key=key, workers=workers, concurrency=concurrency) as client:
        return client.generate(messages, model=model, **how)
