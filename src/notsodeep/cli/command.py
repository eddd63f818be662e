"""The command as a whole: its exit codes, what it prints, and how a failure is shown.

Results go to standard output, everything else to standard error. Exit codes: 0 means done; 1 means that the work
failed (no solution, no space, no memory); 2 means that an option, a path or the data are wrong; 130 means that it was
interrupted.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_type_hints

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup

from .. import __version__
from ..errors import DataError, InvalidInputError, NotSoDeepError

_WRONG_PATH = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)


def as_json(document: Any) -> str:
    """Return a result for programs."""
    return json.dumps(document, indent=1, allow_nan=False)


def complain(text: str, colour: str = "red") -> None:
    """Print a failure (red) or a warning (yellow) as one paragraph."""
    typer.secho(f"notsodeep: {' '.join(text.split())}", err=True, fg=colour)


class _Flags:
    """A mixin whose help shows flags without a type, since they take no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for flag in parameters:
            flag.metavar = "" if getattr(flag, "is_flag", False) else flag.metavar
        return parameters


class _Command(_Flags, TyperCommand):
    """A command of this program."""


class Group(_Flags, TyperGroup):
    """Show failures that a user can cause as one paragraph with an exit code; ``--debug`` shows the trace."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Read the options; the help and the version are printed here."""
        with _in_words("--debug" in args):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _in_words(ctx.params.get("debug", False)):
            return super().invoke(ctx)


@contextlib.contextmanager
def _in_words(debug: bool) -> Iterator[None]:
    """End a command that fails, with its exit code."""
    if sys.stdout is None:  # closed by the shell, as by >&-
        complain("standard output is closed, where results go. Open it, or send them to /dev/null.")
        raise typer.Exit(1)
    try:
        yield
    except BrokenPipeError:  # the reader has seen enough, as head does; the parser ends the command
        raise
    except (NotSoDeepError, OSError, MemoryError, KeyboardInterrupt) as error:
        if debug:
            raise
        code, text = explained(error)
        complain(text)
        raise typer.Exit(code) from None


def explained(error: BaseException) -> tuple[int, str]:
    """Return the exit code, and one paragraph: what happened, and what to do."""
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted; nothing of this run was kept, and files of earlier runs are as they were."
    if isinstance(error, MemoryError):
        return 1, "not enough memory. Take fewer rows, or give the data as float32."
    if isinstance(error, NotSoDeepError):
        return 2 if isinstance(error, InvalidInputError | DataError) else 1, str(error)
    name, what = getattr(error, "filename", None), getattr(error, "strerror", None) or error
    advice = "Check the path, its permissions and the free space; earlier output is as it was."
    return 2 if isinstance(error, _WRONG_PATH) else 1, f"{f'{name}: ' if name else ''}{what}. {advice}"


def show_warning(message: Warning | str, *source: Any, **options: Any) -> None:
    """Print a warning as one paragraph, without the line of source that a user of the command does not know."""
    complain(str(message), "yellow")


app = typer.Typer(
    name="notsodeep",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: notsodeep demo, or notsodeep match relu. Each command shows examples with --help.",
)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Register a command; the examples in its docstring keep their lines, which a backspace asks of the parser."""
    text = inspect.getdoc(function) or ""
    return app.command(cls=_Command, help=text.replace("\nExamples\n--------", "\n\b\nExamples:"))(_spread(function))


def _spread(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command with one option for each field of its parameters that are named tuples."""
    groups: dict[str, Any] = {}
    spread = []
    for one in inspect.signature(function, eval_str=True).parameters.values():
        parts = [one]
        if hasattr(group := one.annotation, "_fields"):
            groups[one.name], notes = group, get_type_hints(group, include_extras=True)
            parts = [part.replace(annotation=notes[part.name]) for part in inspect.signature(group).parameters.values()]
        spread += [part.replace(kind=one.KEYWORD_ONLY) for part in parts]

    @functools.wraps(function)
    def spread_out(**options: Any) -> None:
        made = {name: group(*(options.pop(field) for field in group._fields)) for name, group in groups.items()}
        function(**options, **made)

    spread_out.__dict__["__signature__"] = inspect.Signature(spread)
    spread_out.__annotations__ = {one.name: one.annotation for one in spread}
    return spread_out


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"notsodeep {__version__}")
        raise typer.Exit


@app.callback()
def notsodeep(
    version: Annotated[
        bool, Option("--version", "-V", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, Option("--debug", help="Show the full traceback of an error.")] = False,
) -> None:
    """Deep equilibrium models, and the shallow explicit networks with the same kernels."""
