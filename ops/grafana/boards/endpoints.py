"""Dashboard "Endpoints": the model servers as workers see them, and as they see themselves where scraped."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from boards.parts import ENDPOINT, HOST, Panels, Query, frame, graph, number, quantile, rate

NAME = "{{endpoint}}"
SERVER = "{{instance}} {{model_name}} {{__name__}}"
COMPLETION = 'direction="completion"'
STATE = f'gristmill_endpoint_state{{{HOST}, {ENDPOINT}, state="down"}}'


def board() -> Dashboard:
    text = "Calls in flight, latency, errors and tokens by model server, and the server's own queue and cache."
    made = frame("endpoints", "Endpoints", text, variables=["endpoint", "host"])
    for panel in (*_numbers(), *_calls(), *_latency(), *_server()):
        made.with_panel(panel)
    return made


def _numbers() -> Panels:
    yield number(
        "Endpoints down",
        "short",
        "Endpoints that at least one worker sees as down.",
        Query(f"count(sum by (endpoint) ({STATE}) > 0) or vector(0)", "endpoints"),
        width=6,
        steps=[(None, "green"), (1, "red")],
    )
    yield number(
        "Calls in flight",
        "short",
        "Calls that wait for an answer just now.",
        Query(f"sum(gristmill_endpoint_in_flight_calls{{{HOST}, {ENDPOINT}}})", "calls"),
        width=6,
    )
    yield number(
        "Calls that fail",
        "percentunit",
        "Share of the calls that end in a failure; the requests are tried again where that helps.",
        Query(f"sum({_failing()}) / (sum({rate('attempts_total', ENDPOINT, by='endpoint')}) > 0)", "share"),
        width=6,
        steps=[(None, "green"), (0.05, "orange"), (0.25, "red")],
    )
    yield number(
        "Completion tokens per second",
        "short",
        "What the servers produce, by their own count.",
        Query(f"sum({rate('tokens_total', ENDPOINT, COMPLETION, by='endpoint')})", "tokens"),
        width=6,
    )


def _failing() -> str:
    return rate("attempts_total", ENDPOINT, 'outcome!="ok"', by="endpoint")


def _calls() -> Panels:
    yield graph(
        "Calls in flight and their limit",
        "short",
        "Calls in flight, and how many the endpoint is thought to bear just now.",
        Query(f"sum by (endpoint) (gristmill_endpoint_in_flight_calls{{{HOST}, {ENDPOINT}}})", NAME + " in flight"),
        Query(f"sum by (endpoint) (gristmill_endpoint_limit_calls{{{HOST}, {ENDPOINT}}})", NAME + " limit"),
    )
    yield graph(
        "Calls by outcome",
        "reqps",
        "Calls that end, by what came back.",
        Query(rate("attempts_total", ENDPOINT, by="outcome"), "{{outcome}}"),
        stacked=True,
    )
    yield graph(
        "Failing calls",
        "percentunit",
        "Share of each endpoint's calls that end in a failure.",
        Query(f"{_failing()} / ({rate('attempts_total', ENDPOINT, by='endpoint')} > 0)", NAME),
    )
    yield graph(
        "State as workers see it",
        "short",
        "How many workers see an endpoint as ok, limited, cooling or down.",
        Query(f"sum by (endpoint, state) (gristmill_endpoint_state{{{HOST}, {ENDPOINT}}})", NAME + " {{state}}"),
        stacked=True,
    )
    yield graph(
        "Tokens per second",
        "short",
        "Tokens by the servers' own count, over all calls.",
        Query(rate("tokens_total", ENDPOINT, by="endpoint, direction"), NAME + " {{direction}}"),
    )
    yield graph(
        "Finished requests by class",
        "reqps",
        "Requests whose last call went to the endpoint, by how they ended.",
        Query(rate("requests_total", ENDPOINT, by="class"), "{{class}}"),
        stacked=True,
    )


def _latency() -> Panels:
    for title, metric, extra in (
        ("Duration of good calls", "call_duration_seconds", ('result="ok"',)),
        ("Time to the first byte", "first_byte_seconds", ()),
    ):
        queries = [
            Query(quantile(share, metric, ENDPOINT, *extra, by="endpoint"), f"{NAME} {share * 100:g} %")
            for share in (0.5, 0.95, 0.99)
        ]
        yield graph(title, "s", "Half, 95 % and 99 % of the calls take at most this long.", *queries)


def _server() -> Panels:
    """vLLM, SGLang and llama.cpp, whichever is scraped (job model-servers)."""
    yield graph(
        "The server's own queue",
        "short",
        "Requests that the servers run and keep waiting, where they are scraped.",
        _of_server("sum", "vllm:num_requests_(running|waiting)"),
        _of_server("sum", "sglang:num_(running|queue)_reqs"),
        _of_server("sum", "llamacpp:requests_(processing|deferred)"),
    )
    yield graph(
        "The server's KV cache",
        "percentunit",
        "How full the servers' caches are, where they are scraped; full means preemption.",
        _of_server("max", "vllm:(gpu|kv)_cache_usage_perc"),
        _of_server("max", "sglang:token_usage"),
        _of_server("max", "llamacpp:kv_cache_usage_ratio"),
    )


def _of_server(how: str, pattern: str) -> Query:
    """One line for each server and model, however many engines it shows (vLLM has one for each of its ranks)."""
    return Query(f'{how} by (instance, model_name, __name__) ({{__name__=~"{pattern}"}})', SERVER)
