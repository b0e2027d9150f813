"""`gristmill.MPOpenAIAPI`: the face of a class that many evaluation scripts know, over Gristmill's queue and daemon.

What such a script counts on holds: a list of messages in, a list of answers out in the same order, `fail_msg` where one
has failed. What changes behind it: requests are leased to worker processes as they have room, so no worker keeps a
slice that nobody helps with; a worker that dies loses nothing; memory stays flat; and a server that is down, busy or
limits its rate is waited for.

Where the older class gave up, so does this one, since a script must come to its end: after `retry` charged attempts of
a request; when the job needs a person (a wrong key, an unknown model); and when for ``retry * (connect time-out +
wait)`` seconds no server could be reached, or each call has failed. Then the rest gets `fail_msg`, and `last_failures`
has the reasons.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec

from gristmill.contract.failure import TABLE, FailureClass, Fault
from gristmill.sdk.bar import Bar
from gristmill.sdk.errors import ClosedError, JobPausedError
from gristmill.sdk.face import Face, foreign, submission
from gristmill.sdk.jobs import CoreJob
from gristmill.sdk.parsing import find_dict
from gristmill.sdk.result import Error, Result, reasoning_of
from gristmill.sdk.shape import shape
from gristmill.sdk.stream import pull
from gristmill.sdk.terms import Settings, Timeout, listed, server_url, settings
from gristmill.sdk.watch import Probe, Watch

FAIL_MSG = "Failed to obtain answer via API."
MAX_WORKERS = 8
MAX_CONNECTIONS = 16384
MAX_CONCURRENCY = 65_536
_THREAD_NUM = 8192
_DRAW_S = 0.1
_LOOK_S = 1.0
"""Without a bar to draw: a thousand threads may wait at once, and each look takes the interpreter's lock."""


class Failure(msgspec.Struct, frozen=True):
    """Why one message of the last `generate` has no answer: its place, the class of failure, and what was seen."""

    index: int
    code: str
    message: str


class _Tally:
    """What has come so far; written on the engine's thread, looked at by the caller's.

    `moves` counts the results that only a working server gives: answers, and refusals of what was asked.
    """

    def __init__(self) -> None:
        self.answers: dict[int, Any] = {}
        self.reasoning: dict[int, str] = {}
        self.failures: dict[int, Failure] = {}
        self.done = 0
        self.moves = 0


class OpenAIAPI:
    """Sends chat messages to an OpenAI-compatible server and gives back the answers in order.

    Worker processes start with the first call and end with `shutdown`, the end of the program, or its death. Calls may
    come from several threads; `last_failures` and `last_reasoning` then are those of the call that ended last.

    Args:
        model: what the server calls it.
        key: environment: OPENAI_API_KEY.
        temperature, top_p, presence_penalty, max_tokens: go into every request; None leaves one out.
        top_k, min_p, repetition_penalty, enable_thinking: likewise, as vLLM and SGLang read them.
        api_base: base URL or full URL (environment: OPENAI_API_BASE).
        port: with it, the URL is ``{api_base}:{port}/v1/chat/completions``.
        retry: attempts that a request may have.
        wait: the most seconds between two of them, unless the server asks for more.
        timeout: seconds to connect, and to wait for the server's next byte.
        thread_num: the most requests in flight.
        return_dict: give back a dict made of the answer; an answer that holds none counts as failed.
        logger: gets one line per `generate`.
        max_connections: the most connections of one worker.
        num_workers: worker processes; by default one per core, at most 8.
        worker_concurrency: requests in flight per worker; by default thread_num // num_workers.
        kwargs: `fail_msg`, and keys that go into every request.

    Attributes:
        fail_msg: stands in the place of a failed answer.
        last_failures: why those of the last `generate` have failed, in the order of the messages.
        last_reasoning: what the model thought for each message of the last `generate`; "" where it told nothing.
    """

    def __init__(
        self,
        model: str,
        key: str | None = None,
        temperature: float | None = 0.6,
        top_p: float | None = 0.95,
        top_k: int | None = 20,
        min_p: float | None = 0.0,
        presence_penalty: float | None = 1.0,
        repetition_penalty: float | None = 1.0,
        api_base: str | None = None,
        port: int | str | None = None,
        retry: int = 10,
        wait: float = 3,
        timeout: Timeout = (30, 1800),
        max_tokens: int | None = 16384,
        thread_num: int | None = 8192,
        return_dict: bool = False,
        logger: logging.Logger | None = None,
        max_connections: int | None = None,
        num_workers: int | None = None,
        worker_concurrency: int | None = None,
        enable_thinking: bool | None = False,
        **kwargs: Any,
    ) -> None:
        self.model = model
        self.logger = logger or logging.getLogger("gristmill")
        self.thread_num = max(1, int(_THREAD_NUM if thread_num is None else thread_num))
        self.num_workers = max(1, int(num_workers or min(os.cpu_count() or 1, MAX_WORKERS)))
        self.worker_concurrency = max(1, int(worker_concurrency or self.thread_num // self.num_workers))
        self.max_connections = max(1, int(max_connections or min(self.worker_concurrency, MAX_CONNECTIONS)))
        self.fail_msg: Any = kwargs.pop("fail_msg", FAIL_MSG)
        self.last_failures: list[Failure] = []
        self.last_reasoning: list[str] = []
        self._defaults: dict[str, Any] = {
            "retry": retry,
            "wait": wait,
            "timeout": timeout,
            "return_dict": return_dict,
            "enable_thinking": enable_thinking,
            "model": model,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "presence_penalty": presence_penalty,
            "repetition_penalty": repetition_penalty,
            "max_tokens": max_tokens,
            **kwargs,
        }
        self._url = server_url(api_base or os.environ.get("OPENAI_API_BASE"), port)
        self._key = key
        self._lock = threading.Lock()
        self._face, self._probe = self._begin()

    def _begin(self) -> tuple[Face, Probe]:
        face = Face(
            endpoints=self._url,
            model=None,
            key=self._key,
            redis=None,
            state_dir=None,
            pool="default",
            workers=self.num_workers,
            concurrency=min(self.worker_concurrency, self.max_connections, MAX_CONCURRENCY),
            preflight=False,
            private=True,
            ask_options=self._settings({}).options,
        )
        return face, Probe(face)

    def _working(self) -> tuple[Face, Probe]:
        """Those that work: new ones after `shutdown`, and in a process that was forked from the one that made us."""
        with self._lock:
            if not self._face.is_open:
                self._face, self._probe = self._begin()
            return self._face, self._probe

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which gets workers of its own."""
        return {name: value for name, value in vars(self).items() if name not in {"_lock", "_face", "_probe"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()
        self._face, self._probe = self._begin()

    # -- many

    def generate(self, messages: Iterable[Any], **kwargs: Any) -> list[Any]:
        """The answers to `messages`, in their order; `fail_msg` where one has failed.

        Args:
            messages: each a prompt, a conversation in OpenAI's form, or a list of ``{"type": "image"|"text",
                "value": ...}``; pictures as paths, URLs, bytes or PIL images.
            kwargs: over the constructor's values, for this call.

        Raises:
            ValueError: `messages` is one conversation instead of a list of them.
            TypeError: the call is told what only the constructor takes, such as a key.
            SetupError: nothing can be sent from this machine.
        """
        settings = self._settings(kwargs)
        items = listed(messages)
        tally = _Tally()
        if items:
            began_s = time.monotonic()
            self._run(items, settings, tally)
            took_s = time.monotonic() - began_s
            failed = len(tally.failures)
            self.logger.info(
                f"{len(items):,} requests: {len(items) - failed:,} succeeded, {failed:,} failed ({took_s:.1f} s)"
            )
        self.last_failures = [tally.failures[index] for index in sorted(tally.failures)]
        self.last_reasoning = [tally.reasoning.get(index, "") for index in range(len(items))]
        return [tally.answers.get(index, settings.fail_msg) for index in range(len(items))]

    def _run(self, items: Sequence[Any], settings: Settings, tally: _Tally) -> None:
        face, probe = self._working()
        told = submission(items, None, None, "generate", None, "requests", settings.options, settings.payload)
        with foreign(), Bar(len(items)) as bar:
            job, hopper = face.wait(face.core.submit_stream(told))
            try:
                pull(items, hopper, shape)
                work = face.engine.submit(_collect(job, settings, tally))
                why = self._attend(work, Watch(probe, settings.patience_s, self.logger), tally, bar)
            finally:
                hopper.close()
                face.wait(face.core.forget(job))
            bar.show(tally.done, len(tally.failures), last=True)
        for index in range(len(items)):
            if index not in tally.answers and index not in tally.failures:
                tally.failures[index] = Failure(index, why.code, why.message)

    def _attend(self, work: concurrent.futures.Future[None], watch: Watch, tally: _Tally, bar: Bar | None) -> Error:
        """Wait for the work, drawing the bar; why it ended before all answers were there, where it did."""
        try:
            while True:
                try:
                    work.result(timeout=_LOOK_S if bar is None else _DRAW_S)
                except concurrent.futures.TimeoutError:
                    if work.done():  # it was the work's own
                        raise
                    trouble = watch.look(tally.moves)
                    if trouble is not None:
                        return trouble
                    if bar is not None:
                        bar.show(tally.done, len(tally.failures), watch.note)
                else:
                    return Error("cancelled", "the job ended before this request was sent")
        except concurrent.futures.CancelledError:  # another thread has shut us down
            raise ClosedError from None
        except JobPausedError as error:
            self.logger.error(  # noqa: TRY400  a sentence for the user, not a traceback
                f"{error.detail}; the requests without an answer are failed"
            )
            return Error("config_error" if error.reason == "config" else error.reason, error.detail)
        finally:
            work.cancel()

    # -- one

    def generate_inner(self, inputs: Any, **kwargs: Any) -> tuple[int, Any, dict[str, Any]]:
        """One message's return code, answer and response; many threads may call at once.

        The code is 0 for an answer; else the server's HTTP status, or -1 where none came, and the answer is `fail_msg`.
        The response is the server's JSON; where none came, an object with `error`.
        """
        settings = self._settings(kwargs)
        face, probe = self._working()
        tally = _Tally()
        with foreign():
            asked = face.engine.submit(_ask(face, inputs, settings, tally))
            why = self._attend(asked, Watch(probe, settings.patience_s, self.logger), tally, None)
        result: Result | None = tally.answers.get(0)
        if result is None:
            return -1, settings.fail_msg, {"error": {"code": why.code, "message": why.message}}
        answer, failure = _answer(result, settings)
        if failure is None:
            return 0, answer, result.response
        status = result.status_code or -1
        code = status if not 200 <= status < 300 else -1
        told = {"error": {"code": failure.code, "message": failure.message}}
        return code, settings.fail_msg, result.response or told

    @staticmethod
    def reasoning(response: Mapping[str, Any]) -> str:
        """What the model thought, out of a response; "" where it tells nothing."""
        return reasoning_of(response)

    # -- end

    def shutdown(self) -> None:
        """End the workers and everything else; may be called twice. At the end of the program it happens by itself.

        Calls of other threads end with `ClosedError`; a later one begins anew.
        """
        self._face.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model={self.model!r})"

    def _settings(self, told: Mapping[str, Any]) -> Settings:
        return settings({**self._defaults, "fail_msg": self.fail_msg, "thread_num": self.thread_num}, told)


class MPOpenAIAPI(OpenAIAPI):
    """The same, under the name that scripts with several processes use."""


async def _collect(job: CoreJob, settings: Settings, tally: _Tally) -> None:
    """Every result of the job into the tally, as they come."""
    delivery = await job.deliver(ordered=False)
    try:
        while batch := await delivery.next():
            for result in batch:
                delivery.handed += 1
                answer, failure = _answer(result, settings)
                if failure is None:
                    tally.answers[result.index] = answer
                else:
                    tally.failures[result.index] = failure
                if result.reasoning:
                    tally.reasoning[result.index] = result.reasoning
                tally.done += 1
                tally.moves += _has_moved(result)
    finally:
        await delivery.close()


async def _ask(face: Face, inputs: Any, settings: Settings, tally: _Tally) -> None:
    tally.answers[0] = await face.asker.ask(shape(inputs, settings.payload))
    tally.done = 1


def _answer(result: Result, settings: Settings) -> tuple[Any, Failure | None]:
    """What the caller gets for a result, or why it gets nothing."""
    if result.error is not None:
        return None, Failure(result.index, result.error.code, result.error.message)
    if not settings.return_dict:
        return result.text, None
    found = find_dict(result.text)
    if found is None:
        return None, Failure(result.index, "invalid_output", "the answer holds no dict")
    return found, None


def _has_moved(result: Result) -> bool:
    """Whether only a working server gives this result."""
    return result.error is None or TABLE[FailureClass(result.error.code)].fault is not Fault.SERVER
