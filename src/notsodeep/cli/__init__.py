"""The ``notsodeep`` command: the public functions of the library, from a shell.

Nothing heavy is imported until a command needs it, so that ``notsodeep --help`` answers at once.
"""

import warnings

from . import design, kernels, learning, runs  # importing them registers their commands
from .app import app, remark

__all__ = ["app", "design", "kernels", "learning", "main", "runs"]


def main() -> None:
    """The entry point of the ``notsodeep`` command."""
    warnings.showwarning = remark
    app(prog_name="notsodeep")
