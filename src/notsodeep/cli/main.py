"""The entry point: the application with all its commands."""

from __future__ import annotations

import warnings

from . import commands
from .app import app, remark

__all__ = ["app", "commands", "main"]


def main() -> None:
    """The entry point of the ``notsodeep`` command."""
    warnings.showwarning = remark
    app(prog_name="notsodeep")
