"""Every Redis key of Gristmill, in one place.

All keys of one job carry the hash tag ``{job}``: each Lua script is single-slot, so a Cluster can run it.

=========  =======  =====================================================================================
suffix     type     content
=========  =======  =====================================================================================
m          hash     the job's counters, marks, state and the feeder's and collector's leases
spec       string   the manifest, JSON, immutable
s:<ptok>   hash     a feeder's stage for one run (TTL 600 s until sealed)
p:<run>    hash     payload run: index -> frame, ``i:<digest>`` -> image bytes, ``#`` -> bytes held, ``#n`` -> frames
x          zset     "run,average bytes per request" -> its first index
d          bitmap   done bit per index
k          bitmap   acked bit per index
w          zset     worker token -> lease deadline, ms of the store's clock
h:<tok>    hash     index -> claim number (negative: as a suspect): what that token holds
q          zset     waiting index -> ready-at ms
qs         zset     waiting suspect index -> ready-at ms
a          hash     index -> "attempts,crashes,cohort,crashes alone,first claim ms"; only with history
r:<block>  hash     result block: index -> record, ``#`` -> bytes held
u          set      blocks that hold records not yet acked
f          string   a byte per index: class code of a failed record, 0 for any other; only as long as it must be
o          bitmap   of a retry: the ordinals of its parent that it sends
c          hash     of a job with wishes: how far the control plane has come (`gristmill.queue.wishes`)
=========  =======  =====================================================================================

Global keys are advisory and touched by plain commands only, never by a script.
"""

from __future__ import annotations

JOBS = "gm:jobs"
"""zset: every job -> the ms at which it may be forgotten (``inf`` while it must be kept)."""

RUNNABLE = "gm:run"
"""zset: jobs that workers should look at -> priority (higher first)."""

DAEMONS = "gm:daemons"
"""zset: daemon id -> the ms at which it counts as gone."""


DUE = "gm:due"
"""set: jobs with a wish that the control plane has not fulfilled."""


def daemon(daemon_id: str) -> str:
    """Hash: what one live daemon says of itself (host, pid, version, pool, workers, slots); has a TTL."""
    return f"gm:daemon:{daemon_id}"


def board(pool: str) -> str:
    """Hash: worker -> the endpoints of `pool` that it can't call just now (`gristmill.queue.board`); has a TTL."""
    return f"gm:ep:{pool}"


def feed(job: str) -> str:
    """String: what the job's feeder says of its work (`gristmill.queue.feedstats`); has a TTL."""
    return f"gm:feed:{job}"


class JobKeys:
    """The keys of one job; see the table above.

    Raises:
        ValueError: the id holds characters that would break a key or its hash tag.
    """

    __slots__ = ("_prefix", "acked", "chosen", "control", "done", "failures", "history", "job", "meta", "runs", "spec",
                 "suspects", "unacked", "waiting", "workers")  # fmt: skip

    def __init__(self, job: str) -> None:
        if not job or not all(c.isalnum() or c in "-_." for c in job):
            raise ValueError(f"a job id has letters, digits, '-', '_' and '.', not {job!r}")
        self.job = job
        self._prefix = prefix = f"gm:{{{job}}}:"
        self.meta = prefix + "m"
        self.spec = prefix + "spec"
        self.runs = prefix + "x"
        self.done = prefix + "d"
        self.acked = prefix + "k"
        self.workers = prefix + "w"
        self.waiting = prefix + "q"
        self.suspects = prefix + "qs"
        self.history = prefix + "a"
        self.unacked = prefix + "u"
        self.failures = prefix + "f"
        self.chosen = prefix + "o"
        self.control = prefix + "c"

    def stage(self, producer_token: str) -> str:
        return f"{self._prefix}s:{producer_token}"

    def payload(self, run: int) -> str:
        return f"{self._prefix}p:{run}"

    def held(self, worker_token: str) -> str:
        return f"{self._prefix}h:{worker_token}"

    def block(self, block: int) -> str:
        return f"{self._prefix}r:{block}"

    @property
    def pattern(self) -> str:
        """A SCAN pattern that matches every key of the job and of no other (job ids hold no glob characters)."""
        return self._prefix + "*"


def image_field(digest: str) -> str:
    """The field of a payload run that holds one picture's bytes."""
    return "i:" + digest
