"""The words that options of several rooms take; nothing heavy is imported, so that the command has them at once."""

from __future__ import annotations

from typing import Literal

Kernel = Literal["ck", "ntk", "ntk_frozen"]
"""What is trained: the readout alone; all weights; all but the input weights (docs/theory.md, section 2)."""
Init = Literal["gaussian", "orthogonal"]
Readout = Literal["activation", "pre-activation"]
Parametrisation = Literal["ntk", "standard"]
