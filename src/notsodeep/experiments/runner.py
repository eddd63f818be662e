"""Runs an experiment point by point: each result is on the disk before the next begins, and is never computed twice.

The numbers of an experiment lie in one JSON document, ``quick.json`` or ``full.json``; figures are drawn from it alone.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from .. import __version__
from .._files import atomic, write_text
from .._progress import track
from ..errors import DataError

__all__ = ["Experiment", "Point", "Setup", "TimeUp", "draw", "read_document", "run"]

Document = dict[str, Any]
_PACKAGES = ("torch", "numpy", "scipy", "sklearn")


class TimeUp(Exception):
    """The time limit of a run has passed; finished points are on the disk."""


@dataclass(frozen=True)
class Setup:
    """How an experiment is run: its size, where the data is, and on what device."""

    quick: bool = True
    data: str | Path | None = None
    """The folder of the data sets; see :func:`notsodeep.datasets.load`."""
    device: str = "cpu"
    deadline: float | None = None
    """Of ``time.monotonic()``."""

    @property
    def size(self) -> str:
        return "quick" if self.quick else "full"

    def check_time(self) -> None:
        """Raise :class:`TimeUp` after the deadline; long points ask between their steps."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise TimeUp


@dataclass(frozen=True)
class Point:
    """One result: what decides it, and how it is computed."""

    key: str
    settings: Mapping[str, Any]
    compute: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True)
class Experiment:
    """A published figure."""

    name: str
    title: str
    points: Callable[[Setup], Sequence[Point]]
    draw: Callable[[Document], Figure]


def run(
    experiment: Experiment,
    setup: Setup,
    folder: str | Path,
    progress: bool | None = None,
    points: Sequence[Point] | None = None,
) -> Document:
    """Compute what is missing in ``folder``, draw the figure, return the document.

    ``points`` replaces the experiment's own. A point is missing unless one of the same key and settings is stored. At
    the deadline the run stops; what is finished stays, and the next run goes on from there.
    """
    path = Path(folder) / f"{setup.size}.json"
    document = read_document(path) if path.exists() else _empty(experiment, setup)
    chosen = experiment.points(setup) if points is None else points
    missing = [p for p in chosen if not _finished(document, p)]
    with contextlib.suppress(TimeUp):
        for point in track(missing, len(missing), experiment.name, progress):
            setup.check_time()
            document["points"][point.key] = _compute(point, setup)
            write_document(path, document)
    if document["points"] and (missing or not _is_drawn(path)):
        draw(experiment, path)
    return document


def draw(experiment: Experiment, path: str | Path) -> list[Path]:
    """The figure of a stored document, as PNG and SVG beside it."""
    path = Path(path)
    figure = experiment.draw(read_document(path))
    written = [path.with_suffix(".png"), path.with_suffix(".svg")]
    for target in written:
        metadata = {"Date": None} if target.suffix == ".svg" else None  # the same numbers make the same file
        with atomic(target) as temporary:
            figure.savefig(temporary, format=target.suffix[1:], dpi=130, metadata=metadata)
    return written


def _is_drawn(path: Path) -> bool:
    """Whether both figures are there and not older than their document: a run may end between the two."""
    made = path.stat().st_mtime_ns
    figures = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    return all(figure.exists() and figure.stat().st_mtime_ns >= made for figure in figures)


# ---- documents -----------------------------------------------------------------------------------------------


def read_document(path: str | Path) -> Document:
    """A stored document; :class:`DataError` if it is not one."""
    try:
        document = json.loads(Path(path).read_text())
        if not isinstance(document["points"], dict) or not isinstance(document["experiment"], str):
            raise TypeError("'points' must be an object")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no result of an experiment ({error!r}); move it away and run again") from None
    return document


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, allow_nan=False)
    # lists of numbers on one line each: a tenth of the lines, and differences that can be read
    text = re.sub(r"\[[^\[\]{}]*\n[^\[\]{}]*\]", lambda found: " ".join(found.group().split()), text) + "\n"
    write_text(path, text)


def _empty(experiment: Experiment, setup: Setup) -> Document:
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "size": setup.size,
        "command": f"notsodeep reproduce {experiment.name}" + (" --quick" if setup.quick else ""),
        "points": {},
    }


def _finished(document: Document, point: Point) -> bool:
    stored = document["points"].get(point.key)
    # through JSON, so that tuples equal the lists they became
    return stored is not None and stored["settings"] == json.loads(json.dumps(dict(point.settings)))


def _compute(point: Point, setup: Setup) -> Document:
    started = time.perf_counter()
    numbers = dict(point.compute())
    record = {
        "settings": dict(point.settings),
        "numbers": numbers,
        "seconds": round(time.perf_counter() - started, 3),
        "made_with": _made_with(setup.device),
    }
    return json.loads(json.dumps(record, allow_nan=False))  # what a later run will read


def _made_with(device: str) -> dict[str, str]:
    kind = torch.cuda.get_device_name(device) if device.startswith("cuda") else f"{torch.get_num_threads()} CPU threads"
    versions = {package: str(importlib.import_module(package).__version__) for package in _PACKAGES}
    return {"notsodeep": __version__, "python": platform.python_version(), **versions, "device": kind}
