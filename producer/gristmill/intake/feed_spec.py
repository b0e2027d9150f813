"""What a feeder process is told: one line of JSON on its stdin.

Apart from the feeder itself, so that those who start one need not import what it imports.
"""

from __future__ import annotations

import msgspec

from gristmill.intake.options import EncodeOptions


class FeedSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to feed.

    Attributes:
        redis_url: the store.
        job: the job, which must exist.
        token: names this feeder; a feeder that takes over has another one.
        holder: what people are told of it, e.g. ``host pid 123``.
        options: how lines become bodies.
        input: path of the input, or None: the manifest's source.
        plan_dir: work folder whose finished lines are carried, or None.
        plan_factory: ``module:callable`` that opens it: ``callable(plan_dir) -> Plan`` (and is closed when it can be).
        strict: a repeated custom_id is an input error.
        limit, sample: which lines; None is all.
        skipped: see `options.Recipe`.
        with_parent: end when the parent does.
    """

    redis_url: str
    job: str
    token: str
    holder: str
    options: EncodeOptions = EncodeOptions()
    input: str | None = None
    plan_dir: str | None = None
    plan_factory: str = "gristmill.outlet.finished:open_plan"
    strict: bool = False
    limit: int | None = None
    sample: int | None = None
    skipped: list[int] = []
    with_parent: bool = True
