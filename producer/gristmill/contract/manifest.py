"""The manifest: what a job is, written once when the job is created and never changed.

It holds no key, no picture and no prompt but a system message that is given for all requests. What changes while the
job runs lies in the job's hash ``m``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gristmill.contract.frame import FormatError

FORMAT = 2
DEFAULT_POOL = "default"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where the requests come from, and what the input must still be when a feeder resumes.

    Attributes:
        path: absolute path of INPUT (of its spool, for a pipe).
        size: bytes.
        mtime_ns: modification time.
        head_sha256: hex, over the first 64 KiB.
    """

    path: str
    size: int
    mtime_ns: int
    head_sha256: str


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """The four clocks of one attempt, seconds."""

    connect_s: float = 10.0
    first_byte_s: float = 3600.0
    idle_s: float = 300.0
    total_s: float = 3600.0


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What a job wants of the daemons' control plane, beside being worked on.

    Attributes:
        detached: the daemon feeds it, not the command that made it.
        output: absolute path into which the daemon collects its results.
        notify: URL that is called when the job has ended.
    """

    detached: bool = False
    output: str | None = None
    notify: str | None = None

    def __bool__(self) -> bool:
        return self.detached or self.output is not None or self.notify is not None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One job.

    Attributes:
        job: the job id.
        epoch: nonce of this incarnation; every script checks it, so a token of a removed job of the same id is refused.
        name: what the user calls it.
        created_at_ms: wall clock of the producer.
        pool: which daemons may work on it; `producer run` makes a private one.
        endpoints: names or base URLs; empty means every endpoint of the daemon.
        model: what ``-m`` said, for display; the body is what counts.
        input_digest: hex over input path and all options that shape bodies: the same for the same submit.
        max_attempts: charged attempts per request.
        max_backoff_s: longest wait between two attempts of a request, unless the server asks for a longer one; 0 leaves
            it to the daemon.
        first_alone: so many requests go out alone at the start, to find a wrong setup early; 0 is off.
        on_truncated: what an answer cut by its token limit is.
        max_failures: pause after so many failed records; 0 is off.
        max_failures_percent: pause above this share of failed records (after 100 are done); 0 is off.
        max_in_flight: most requests of this job in flight over all workers; 0 is unbounded.
        payload_mark_bytes: the feeder waits above it.
        results_mark_bytes: no fresh work above it.
        block_size: indices per result block, a multiple of 8.
        deadline_ms: the store's clock after which the job expires; 0 is never.
        request_deadline_ms: a request without an answer so long after its first claim is failed; 0 is never.
        keep_ms: a job that has ended and whose results have all been collected is forgotten so long after.
        recipe: how lines become bodies (`intake.options.Recipe`), for a feeder other than whoever made the job.
        parent: of a retry, the job whose failed requests it sends again.
        wishes: see `Wishes`.
    """

    job: str
    epoch: str
    name: str
    created_at_ms: int
    format: int = FORMAT
    pool: str = DEFAULT_POOL
    endpoints: list[str] = []
    model: str | None = None
    source: Source | None = None
    input_digest: str = ""
    priority: int = 0
    weight: int = 1
    max_attempts: int = 5
    first_alone: int = 4
    timeouts: Timeouts = Timeouts()
    on_truncated: Literal["keep", "fail"] = "keep"
    max_failures: int = 0
    max_failures_percent: float = 0.0
    max_in_flight: int = 0
    payload_mark_bytes: int = 1 << 30
    results_mark_bytes: int = 512 << 20
    block_size: int = 128
    deadline_ms: int = 0
    request_deadline_ms: int = 0
    keep_ms: int = 7 * 86_400_000
    max_backoff_s: float = 0.0
    recipe: dict[str, Any] = {}
    parent: str = ""
    wishes: Wishes = Wishes()


_decoder = msgspec.json.Decoder(Manifest)


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest)


def decode(data: bytes | str) -> Manifest:
    """The manifest in `data`.

    Raises:
        FormatError: damaged, or of a format that this version does not read.
    """
    try:
        manifest = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise FormatError(f"damaged manifest: {error}") from error
    if manifest.format != FORMAT:
        raise FormatError(f"manifest format {manifest.format}, this program reads {FORMAT}: run one minor version")
    return manifest
