"""Looks whether an endpoint is there and which models it serves, before or beside the work."""

from __future__ import annotations

import msgspec

from gristmill.contract.manifest import Timeouts
from gristmilld.upstream.client import UpstreamClient
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.outcome import FailedCall

PROBE_S = 10.0


class Reached(msgspec.Struct, frozen=True):
    """The endpoint answered: the ids of its models, in its order; empty where it does not tell."""

    models: list[str]


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def probe(client: UpstreamClient, endpoint: Endpoint, *, timeout_s: float = PROBE_S) -> Reached | FailedCall:
    """Ask for ``/models``, once; a server that has no such path is reached all the same."""
    clocks = Timeouts(connect_s=timeout_s, first_byte_s=timeout_s, idle_s=timeout_s, total_s=timeout_s)
    outcome = await client.get(endpoint, "/models", clocks)
    if isinstance(outcome, FailedCall):
        return Reached([]) if outcome.status_code in {404, 405} else outcome
    try:
        return Reached([m.id for m in msgspec.json.decode(outcome.body, type=_Models).data])
    except msgspec.ValidationError:
        return Reached([])
