"""The ``notsodeep`` command: the public functions of the library, from a shell.

Nothing heavy is imported until a command needs it, so that ``notsodeep --help`` answers at once.
"""

from .main import app, main

__all__ = ["app", "main"]
