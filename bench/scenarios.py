"""What is measured. Each scenario is one function of one shape: it takes the bench and returns its figures by name.

A ratio `A_vs_B` is A's cost divided by B's: below 1, `producer run` is the cheaper one. To add a scenario: write the
function, name its figures in `KEYS`, and put it into `SCENARIOS`.
"""

from __future__ import annotations

from collections.abc import Callable

from bench import inputs
from bench.run import Bench, Load

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
)

TEXT_REQUESTS = 60_000
PICTURE_REQUESTS = 1_000
UNEVEN_REQUESTS = 4_000


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
        "text_vs_limit": ours.cpu_s / cost["limit"].cpu_s,
        "text_vs_slices": ours.cpu_s / cost["slices"].cpu_s,
        "redis_us_per_request": ours.store_s / requests * 1e6,
    }


def pictures(bench: Bench) -> Figures:
    """A JPEG of about 300 KB a request, 32 in flight: by reference and through the store, beside today's way."""
    requests = bench.requests(PICTURE_REQUESTS)
    source = inputs.pictures(bench.folder, requests)
    by_reference = Load(source, requests, in_flight=32)
    inline = Load(source, requests, in_flight=32, extra=("--inline",))
    cost = bench.alternate(
        "pictures",
        {
            "slices": lambda: bench.slices(by_reference),
            "reference": lambda: bench.producer(by_reference),
            "inline": lambda: bench.producer(inline),
        },
    )
    return {
        "image_ref_vs_slices": cost["reference"].cpu_s / cost["slices"].cpu_s,
        "image_inline_vs_slices": cost["inline"].cpu_s / cost["slices"].cpu_s,
    }


def makespan(bench: Bench) -> Figures:
    """Wall time of an input whose last tenth takes 40 times longer, 128 in flight."""
    requests = bench.requests(UNEVEN_REQUESTS)
    load = Load(
        inputs.uneven(bench.folder, requests, short_s=0.05, long_s=2.0), requests, in_flight=128, base="/slow/v1"
    )
    cost = bench.alternate("makespan", {"slices": lambda: bench.slices(load), "producer": lambda: bench.producer(load)})
    return {"makespan_vs_slices": cost["producer"].wall_s / cost["slices"].wall_s}


def first_request(bench: Bench) -> Figures:
    """Seconds from exec to the first request at the endpoint, for inputs of 1,000 and of 1,000,000 lines."""
    figures = {}
    for name, lines in (("first_request_s_1k", 1_000), ("first_request_s_1m", 1_000_000)):
        source = inputs.text(bench.folder, lines, size=200)
        taken = sorted(bench.first_request_s(source) for _ in range(bench.runs))
        figures[name] = taken[len(taken) // 2]
    return figures


SCENARIOS: dict[str, Callable[[Bench], Figures]] = {
    "text": text,
    "pictures": pictures,
    "makespan": makespan,
    "first_request": first_request,
}
