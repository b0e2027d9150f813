"""What is measured. Each scenario is one function of one shape: it takes the bench and returns its figures by name.

A ratio `A_vs_B` is A's cost divided by B's: below 1, `producer run` is the cheaper one. `files_vs_slices` and
`pil_vs_cores` are ratios of requests per second, so there more is better. To add a scenario: write the function, name
its figures in `KEYS`, and put it into `SCENARIOS`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from bench import inputs
from bench.first import first_request_s, warm_daemon
from bench.run import Bench, Load, tell

Figures = dict[str, float]

KEYS = (
    "text_vs_limit",
    "text_vs_slices",
    "image_ref_vs_slices",
    "image_inline_vs_slices",
    "files_vs_slices",
    "makespan_vs_slices",
    "redis_us_per_request",
    "first_request_s_1k",
    "first_request_s_1m",
    "pil_vs_cores",
)

TEXT_REQUESTS = 200_000
PICTURE_REQUESTS = 10_000
FILE_REQUESTS = 12_000
FILE_REQUESTS_OF_SLICES = 1_500
UNEVEN_REQUESTS = 20_000
PIL_PICTURES = 2_000


def text(bench: Bench) -> Figures:
    """Text of 2 KB, 128 in flight: CPU a request beside the least possible and beside today's way."""
    requests = bench.requests(TEXT_REQUESTS)
    load = Load(inputs.text(bench.folder, requests), requests, in_flight=128)
    cost = bench.alternate(
        "text",
        {
            "limit": lambda: bench.limit(load),
            "slices": lambda: bench.slices(load),
            "producer": lambda: bench.producer(load),
        },
    )
    ours = cost["producer"]
    return {
        "text_vs_limit": ours.cpu_us / cost["limit"].cpu_us,
        "text_vs_slices": ours.cpu_us / cost["slices"].cpu_us,
        "redis_us_per_request": ours.store_us,
    }


def pictures(bench: Bench) -> Figures:
    """A JPEG of 300 KB a request that is fit to send, 32 in flight: by reference and inline, beside today's way.

    The pictures of today's way are ready before its CPU is counted.
    """
    requests = bench.requests(PICTURE_REQUESTS)
    source = inputs.pictures(bench.folder, requests)
    by_reference = Load(source, requests, in_flight=32)
    inline = Load(source, requests, in_flight=32, extra=("--inline",))
    cost = bench.alternate(
        "pictures",
        {
            "slices": lambda: bench.slices(by_reference, as_they_are=True),
            "reference": lambda: bench.producer(by_reference),
            "inline": lambda: bench.producer(inline),
        },
    )
    return {
        "image_ref_vs_slices": cost["reference"].cpu_us / cost["slices"].cpu_us,
        "image_inline_vs_slices": cost["inline"].cpu_us / cost["slices"].cpu_us,
    }


def files(bench: Bench) -> Figures:
    """JPEGs of 1600 x 1200 from disk to results, 32 in flight: requests per second beside today's way.

    Both rates hardly depend on the number of requests, so each client has as many as take it some ten seconds.
    """
    loads = {}
    for client, full in (("slices", FILE_REQUESTS_OF_SLICES), ("producer", FILE_REQUESTS)):
        requests = bench.requests(full)
        loads[client] = Load(inputs.pictures(bench.folder, requests), requests, in_flight=32)
    speed = bench.alternate(
        "files",
        {
            "slices": lambda: bench.slices(loads["slices"]),
            "producer": lambda: bench.producer(loads["producer"]),
        },
    )
    return {"files_vs_slices": speed["producer"].rate / speed["slices"].rate}


def makespan(bench: Bench) -> Figures:
    """Wall time of an input sorted by length: lognormal answers (0.4 s, sigma 0.7), 8 processes x 64 in flight."""
    requests = bench.requests(UNEVEN_REQUESTS)
    source = inputs.ascending(bench.folder, requests, median_s=0.4, sigma=0.7)
    load = Load(source, requests, in_flight=8 * 64, base="/slow/v1", processes=8)
    cost = bench.alternate("makespan", {"slices": lambda: bench.slices(load), "producer": lambda: bench.producer(load)})
    return {"makespan_vs_slices": cost["producer"].wall_s / cost["slices"].wall_s}


def first_request(bench: Bench) -> Figures:
    """Seconds from `producer submit` having its imports to the first request at the endpoint, on an idle daemon."""
    sources = {
        "first_request_s_1k": inputs.text(bench.folder, 1_000, size=200),
        "first_request_s_1m": inputs.text(bench.folder, 1_000_000, size=200),
    }
    taken: dict[str, list[float]] = {name: [] for name in sources}
    with warm_daemon(bench):
        for _ in range(bench.runs):
            for name, source in sources.items():
                taken[name].append(first_request_s(bench, source))
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def pil(bench: Bench) -> Figures:
    """PIL images of 1600 x 1200 to encoded requests on all cores: pictures per second beside cores x Pillow on one."""
    runs = []
    for number in range(bench.runs):
        found = bench.pil(bench.requests(PIL_PICTURES))
        runs.append(found["ratio"])
        tell(
            f"  pil       {number + 1}/{bench.runs}  {found['ours_per_s']:.0f} pictures/s, Pillow on one core "
            f"{found['alone_per_s']:.0f}: ratio {found['ratio']:.2f}, by CPU {found['cpu_ratio']:.2f}; "
            f"{found['growth_mb']:.0f} MB more at the end than after a fifth"
        )
    return {"pil_vs_cores": statistics.median(runs)}


SCENARIOS: dict[str, Callable[[Bench], Figures]] = {
    "text": text,
    "pictures": pictures,
    "files": files,
    "makespan": makespan,
    "first_request": first_request,
    "pil": pil,
}
