"""Everything that reads a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import notsodeep as nsd
from fuzz.damage import MODEL
from notsodeep.cli.inputs import labels_from, points_from, read_twin

READERS: list[Callable[[Path], Any]] = [
    lambda path: points_from(path),
    lambda path: labels_from(path, 24),
    lambda path: read_twin(path),
    lambda path: nsd.nn.load(path),
    lambda path: nsd.nn.Replacement.load(path, MODEL),
]
