"""The command as a whole: its options, its exit codes, what it prints, and what a failure looks like.

Results go to standard output, everything else to standard error, and little of it into a pipe. Exit codes: 0 done; 1
the work failed (a damaged file, no solution, no space, interrupted); 2 the command line is wrong: an option, a name, or
a path that is not there, not allowed or of the wrong kind.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from .._files import WRONG_PATH, advice
from ..errors import InvalidInputError, NotSoDeepError


def show(thing: Any) -> None:
    """A result, for people: with colours on a terminal (not under NO_COLOR), plain and wide in a pipe."""
    from rich.console import Console

    # no fixed width on a terminal; in a pipe lines are not folded to a window that does not exist
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, soft_wrap=not sys.stdout.isatty())
    console.print(thing, markup=False) if isinstance(thing, str) else console.print(thing)


def print_json(document: Any) -> None:
    """A result, for programs."""
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


def answer(json: bool, document: Any, shown: Any) -> None:
    """A result, for programs or for people."""
    if json:
        print_json(document)
    else:
        show(shown)


def note(text: str) -> None:
    """A remark beside the result; only where somebody is watching."""
    if sys.stderr.isatty():
        _console().print(text, style="dim", markup=False, highlight=False)


def tell(text: str) -> None:
    """What a user must know although nothing failed: a choice that was made, a limit that was met."""
    complain(text, "yellow")


def complain(text: str, style: str = "red") -> None:
    """A failure or a warning, as one paragraph."""
    _console().print(f"notsodeep: {' '.join(text.split())}", style=style, markup=False, highlight=False)


def table(title: str, columns: dict[str, Any], rows: list[list[str]]) -> Any:
    """A rich table; ``columns`` maps headings to "left" or "right"."""
    from rich.table import Table

    made = Table(title=title, title_justify="left")
    for heading, justify in columns.items():
        made.add_column(heading, justify=justify)
    for row in rows:
        made.add_row(*row)
    return made


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True, width=None if sys.stderr.isatty() else 100, soft_wrap=not sys.stderr.isatty())


# ---- the command ---------------------------------------------------------------------------------------------


class Group(TyperGroup):
    """Failures that a user can cause become one paragraph and an exit code; ``--debug`` shows the trace."""

    def invoke(self, ctx: Any) -> Any:
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

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command whose flags are shown without the type that they do not take."""
        command = super().get_command(ctx, cmd_name)
        for parameter in [] if command is None else command.get_params(ctx):
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
        return command


def remark(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    """A warning as one paragraph; the line of source it came from means nothing to a user of the command."""
    complain(str(message), "yellow")


def message_of(error: BaseException) -> str:
    """One paragraph: what happened, and what to do."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; nothing was put in place, earlier output is as it was. Start the command again when ready."
    if isinstance(error, MemoryError):
        return (
            "not enough memory. Take fewer rows, give the data as float32, or write the kernel to a file: "
            "notsodeep kernel fills it block by block."
        )
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
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole trace of a failure.")] = False,
) -> None:
    """Deep equilibrium models, and the shallow explicit networks with the same kernels."""
