"""The entry point: the application with all its commands."""

from __future__ import annotations

import os

from . import commands
from .app import app

__all__ = ["app", "commands", "main"]


def main() -> None:
    """The entry point of the ``notsodeep`` command."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's memory profiler talks on standard error otherwise
    app(prog_name="notsodeep")
