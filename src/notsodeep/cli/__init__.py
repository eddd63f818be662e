"""The ``notsodeep`` command: the public functions of the library, from a shell.

Nothing heavy is imported until a command needs it, so that ``notsodeep --help`` answers at once.
"""

import warnings

from . import commands
from .app import app, remark

__all__ = ["app", "commands", "main"]


def main() -> None:
    """The entry point of the ``notsodeep`` command."""
    warnings.showwarning = remark
    app(prog_name="notsodeep")
