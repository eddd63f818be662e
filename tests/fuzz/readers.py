"""Everything that reads a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import notsodeep as nsd
from notsodeep.cli.files import labels_from, points_from, read_json, read_rows
from notsodeep.estimators import load_estimator

READERS: list[Callable[[Path], Any]] = [
    lambda path: read_rows(str(path)),
    lambda path: nsd.nn.load(path),
    lambda path: load_estimator(path),
    lambda path: points_from(str(path), as_is=True),
    lambda path: labels_from(str(path), 24),
    lambda path: nsd.Twin.from_dict(read_json(str(path))),
    lambda path: nsd.network_from_dict(read_json(str(path))),
]
