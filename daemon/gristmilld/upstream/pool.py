"""Which endpoint the next request goes to: the one with the fewest calls in flight among those that are ready.

Least outstanding needs no knowledge of the servers' speed: a slow one keeps its calls longer and so is given fewer.
The search starts one further each time, so that ties do not all go to the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gristmill.contract.url import normalise_base_url
from gristmilld.config import EndpointConfig
from gristmilld.upstream.endpoint import Endpoint


class EndpointPool:
    """The endpoints of one worker process."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.endpoints: tuple[Endpoint, ...] = tuple(endpoints)
        self._by_name = {e.name: e for e in self.endpoints}
        self._by_url: dict[str, list[Endpoint]] = {}
        for endpoint in self.endpoints:
            self._by_url.setdefault(endpoint.url, []).append(endpoint)
        self._chosen: dict[tuple[str, ...], tuple[Endpoint, ...]] = {}
        self._turn = 0

    def among(self, allowed: Sequence[str] | None) -> tuple[Endpoint, ...]:
        """The endpoints that a job may use: by name or base URL; all when it names none; none for unknown names.

        A base URL that is not configured is called all the same, without a key: a job can't borrow one.
        """
        if not allowed:
            return self.endpoints
        key = tuple(allowed)
        chosen = self._chosen.get(key)
        if chosen is None:
            if len(self._chosen) >= 256:
                self._chosen.clear()
            chosen = self._chosen[key] = self._choose(key)
        return chosen

    def pick(self, allowed: Sequence[str] | None = None) -> Endpoint | None:
        """The ready endpoint with the fewest calls in flight, None while none is ready. Call `begin` on it at once."""
        endpoints = self.among(allowed)
        if len(endpoints) == 1:
            return endpoints[0] if endpoints[0].ready else None
        self._turn += 1
        best: Endpoint | None = None
        for i in range(len(endpoints)):
            endpoint = endpoints[(i + self._turn) % len(endpoints)]
            if (best is None or endpoint.outstanding < best.outstanding) and endpoint.ready:
                best = endpoint
        return best

    def next_ready_in_s(self, allowed: Sequence[str] | None = None) -> float | None:
        """Seconds until time alone makes an endpoint ready; 0 when one is.

        None when none is known, or when all that time could give are full: then the end of a call in flight is what to
        wait for.
        """
        waits = [e.ready_in_s for e in self.among(allowed) if e.outstanding < e.limits.limit]
        return min(waits, default=None)

    def _choose(self, allowed: tuple[str, ...]) -> tuple[Endpoint, ...]:
        chosen: dict[str, Endpoint] = {}
        for name in allowed:
            found = [self._by_name[name]] if name in self._by_name else self._at(_base_url(name))
            chosen.update((e.name, e) for e in found)
        return tuple(chosen.values())

    def _at(self, url: str) -> list[Endpoint]:
        if url and url not in self._by_url:
            self._by_url[url] = [Endpoint(EndpointConfig(name=url, url=url))]
        return self._by_url.get(url, [])


def _base_url(text: str) -> str:
    try:
        return normalise_base_url(text)
    except ValueError:
        return ""
