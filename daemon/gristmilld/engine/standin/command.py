"""``gristmilld standin``: a stand-in endpoint on the command line."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import click

from gristmill import loops


def _latency(_context: click.Context, _param: click.Parameter, text: str) -> str:
    from gristmilld.engine.standin.latency import parse_latency

    try:
        parse_latency(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


def _faults(_context: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> list[Any]:
    from gristmilld.engine.standin.faults import parse_fault

    try:
        return [parse_fault(text) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("standin")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free port.")
@click.option("--latency", default="0", callback=_latency, metavar="SECONDS",
              help="How long an answer takes: 0.4, uniform:0.1:2, exp:0.5 or lognormal:0.4:0.7.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(0), default=0, help="Requests worked on at once; 0 is unbounded.")
@click.option("--fail", "faults", multiple=True, callback=_faults, metavar="KIND[=VALUE][@RATE]",
              help="Misbehave: 429=2@0.1 (with Retry-After 2), 503@0.05, stall=3@0.01, reset@0.01 ...")  # fmt: skip
@click.option("--key", envvar="GRISTMILL_STANDIN_KEY", help="Ask for this bearer token.")
@click.option("--strict-model", is_flag=True, help="Refuse other models than `standin`.")
@click.option("--seed", type=int, help="Make latencies and faults repeatable.")
def standin_command(
    host: str, port: int, latency: str, concurrency: int, faults: list[Any], key: str | None, strict_model: bool,
    seed: int | None,
) -> None:  # fmt: skip
    """Serve a stand-in for an OpenAI-compatible model server.

    It really decodes what it gets and answers with what it saw; its model is called `standin`. While it runs,
    POST /control changes how it behaves and GET /stats counts what it was asked.
    """
    from gristmilld.engine.standin.settings import Control

    control = Control(latency=latency, concurrency=concurrency, key=key, strict_model=strict_model, faults=faults)
    sys.exit(_run(host, port, control, seed))


def _run(host: str, port: int, control: Any, seed: int | None) -> int:
    return loops.run(_serve(host, port, control, seed))


async def _serve(host: str, port: int, control: Any, seed: int | None) -> int:
    from gristmilld.engine.standin.server import StandIn

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = StandIn(control, seed=seed)
    try:
        await server.start(host, port)
    except OSError:
        await server.close()
        click.echo(f"can't listen on {host}:{port}: choose a free port with --port, or 0 for any", err=True)
        return 2
    click.echo(f"listening on http://{f'[{host}]' if ':' in host else host}:{server.port}/v1")
    sys.stdout.flush()
    await stopped.wait()
    await server.close()
    return 0
