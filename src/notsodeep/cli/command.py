"""The command as a whole: its exit codes, what it prints, and how a failure is shown.

Results go to standard output, everything else to standard error. Exit codes: 0 means done; 1 means that the work
failed (a damaged file, no solution, no space, an interruption); 2 means that the command line is wrong (an option, a
name, or a path that does not exist, is not allowed or is of the wrong kind).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from .. import __version__
from .._files import WRONG_PATH, advice
from ..errors import InvalidInputError, NotSoDeepError


def print_json(document: Any) -> None:
    """Print a result for programs."""
    typer.echo(json.dumps(document, indent=1, allow_nan=False))


def complain(text: str, colour: str = "red") -> None:
    """Print a failure (red) or a warning (yellow) as one paragraph."""
    typer.secho(f"notsodeep: {' '.join(text.split())}", err=True, fg=colour)


class Group(TyperGroup):
    """Show failures that a user can cause as one paragraph with an exit code; ``--debug`` shows the trace."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except (NotSoDeepError, OSError, MemoryError, KeyboardInterrupt) as error:
            if isinstance(error, BrokenPipeError):  # the reader has seen enough, as head does
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(1) from None
            if ctx.params.get("debug"):
                raise
            complain(message_of(error))
            raise typer.Exit(2 if isinstance(error, (InvalidInputError, *WRONG_PATH)) else 1) from None


def show_warning(message: Warning | str, *source: Any, **options: Any) -> None:
    """Print a warning as one paragraph, without the line of source that a user of the command does not know."""
    complain(str(message), "yellow")


def message_of(error: BaseException) -> str:
    """Return one paragraph: what happened, and what to do."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; nothing was put in place, earlier output is as it was. Start the command again when ready."
    if isinstance(error, MemoryError):
        return "not enough memory. Take fewer rows, or give the data as float32."
    if isinstance(error, OSError) and not isinstance(error, NotSoDeepError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}. {advice(error)}"
    return str(error)


app = typer.Typer(
    name="notsodeep",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: notsodeep demo, or notsodeep match relu. Each command shows examples with --help.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"notsodeep {__version__}")
        raise typer.Exit


@app.callback()
def notsodeep(
    version: Annotated[
        bool, Option("--version", "-V", callback=_version, is_eager=True, metavar="", help="Print the version.")
    ] = False,
    debug: Annotated[bool, Option("--debug", metavar="", help="Show the whole trace of a failure.")] = False,
) -> None:
    """Deep equilibrium models, and the shallow explicit networks with the same kernels."""
