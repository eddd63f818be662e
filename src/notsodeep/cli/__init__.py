"""The ``notsodeep`` command: the main functions of the library, from a shell.

Nothing heavy is imported until a command needs it, so that ``notsodeep --help`` answers at once.
"""

import warnings

from . import design, measure  # importing them registers their commands
from .command import app, show_warning

__all__ = ["app", "design", "main", "measure"]


def main() -> None:
    """Run the ``notsodeep`` command."""
    warnings.showwarning = show_warning
    app(prog_name="notsodeep")
