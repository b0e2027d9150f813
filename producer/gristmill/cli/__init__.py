"""The command `producer`: one verb a file, each imported only when it is used, so that ``--help`` is quick."""

from __future__ import annotations

import importlib
import sys

import click

from gristmill import stdio
from gristmill._version import __version__

VERBS = {
    "run": "Send every request of INPUT and write the results to OUT, on this machine.",
    "submit": "Queue INPUT for the daemons of a store, and print the job's id.",
    "check": "Validate INPUT and show what would be sent, without sending.",
    "ls": "List the jobs of a store.",
    "status": "Show one job.",
    "watch": "Follow one job until it ends.",
    "top": "Watch all jobs, endpoints in trouble, daemons and the store.",
    "stragglers": "List what a job still waits for, and give it up.",
    "results": "Collect the results of a job.",
    "pause": "Hold a job back; what is in flight is finished.",
    "resume": "Let a paused job go on.",
    "cancel": "End a job; finished work is kept.",
    "retry": "Send the failed requests of a job again.",
    "rm": "Remove a job and everything it holds from the store.",
}
"""Verb -> its line in ``producer --help``; the module of each is named like the verb."""


class _Verbs(click.Group):
    """A group that knows its commands by name and imports a command's module only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"gristmill.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS and not args[0].startswith("-"):
            ctx.fail(_no_such_verb(args[0]))
        return super().resolve_command(ctx, args)


def _no_such_verb(word: str) -> str:
    import difflib

    near = difflib.get_close_matches(word, VERBS, n=1)
    return f"No such command {word!r}." + (f" Did you mean {near[0]!r}?" if near else "")


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="producer")
def group() -> None:
    """Send many prompts and pictures through OpenAI-compatible servers; bring back exactly one result for each.

    Exit codes: 0 every request ok; 1 finished with failed requests; 2 usage or input error; 3 paused, needs a person;
    4 cancelled or expired; 130 interrupted (work kept).
    """


def main() -> None:
    """Entry point of `producer`; never returns."""
    stdio.repair()
    try:
        code = group.main(prog_name="producer", standalone_mode=False)
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        with stdio.talking():
            error.show()
        code = error.exit_code
    except BrokenPipeError:  # whoever read our stdout has enough
        stdio.silence(stdio.STDOUT)
        code = 1
    except stdio.StdoutError as error:
        with stdio.talking():
            click.echo(f"Error: standard output can't be written: {error.strerror}", err=True)
        code = 3
    sys.exit(code or 0)
