"""Runs an experiment point by point: each result is on the disk before the next begins, and is never computed twice.

The numbers of an experiment lie in one JSON document, ``quick.json`` or ``full.json``; figures are drawn from it alone.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from .. import __version__
from .._files import atomic, write_text
from .._progress import track
from ..errors import DataError
from ..plots.style import adaptive_svg, figure_style

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


HERE = Setup()


@dataclass(frozen=True)
class Point:
    """One result: what decides it, and how it is computed."""

    key: str
    settings: Mapping[str, Any]
    compute: Callable[[], Mapping[str, Any]]

    @staticmethod
    def of(key: str, settings: Mapping[str, Any], function: Callable[..., Any], **beside: Any) -> Point:
        """By a function whose arguments are the settings, and others that decide nothing: where data is, a device."""
        return Point(key, settings, functools.partial(function, **settings, **beside))


@dataclass(frozen=True)
class Experiment:
    """A study: what it computes, and how the numbers are drawn."""

    name: str
    points: Callable[[Setup], Sequence[Point]]
    draw: Callable[[Document], Mapping[str, Figure]]
    """Figures by the suffix of their files, one message each; ``""`` for the only one."""


def run(
    experiment: Experiment,
    setup: Setup,
    folder: str | Path,
    progress: bool | None = None,
    points: Sequence[Point] | None = None,
    elsewhere: Callable[[Sequence[str]], Iterator[tuple[str, Document]]] | None = None,
) -> Document:
    """Compute what is missing in ``folder``, draw the figure, return the document.

    ``points`` replaces the experiment's own; ``elsewhere`` computes records of the experiment's points by their keys,
    in any order. A point is missing unless one of the same key and settings is stored. At the deadline the run
    stops; what is finished stays, and the next run goes on from there.
    """
    path = Path(folder) / f"{setup.size}.json"
    document = read_document(path) if path.exists() else _empty(experiment, setup)
    chosen = experiment.points(setup) if points is None else points
    missing = [p for p in chosen if not _finished(document, p)]
    with contextlib.suppress(TimeUp):
        records = _here(missing, setup) if elsewhere is None else elsewhere([point.key for point in missing])
        for key, record in track(records, len(missing), experiment.name, progress):
            document["points"][key] = record
            document["points"] = _in_order(document["points"], chosen)
            document.pop("figures", None)
            write_document(path, document)
    if document["points"] and not _is_drawn(document, path.parent):
        document["figures"] = [figure.name for figure in draw(experiment, path)]
        write_document(path, document)
    return document


def _in_order(points: Document, chosen: Sequence[Point]) -> Document:
    """As the experiment has them, whichever was finished first; others before them."""
    mine = [point.key for point in chosen if point.key in points]
    return {key: points[key] for key in (*(k for k in points if k not in set(mine)), *mine)}


def _here(points: Sequence[Point], setup: Setup) -> Iterator[tuple[str, Document]]:
    """One after the other, in this process."""
    for point in points:
        setup.check_time()
        yield point.key, compute(point, setup)


def draw(experiment: Experiment, path: str | Path) -> list[Path]:
    """The figures of a stored document beside it: PNG on white, and SVG that follows the reader's colour scheme."""
    path = Path(path)
    with figure_style():
        figures = experiment.draw(read_document(path))
        made = {suffix: (adaptive_svg(figure), _png(figure)) for suffix, figure in figures.items()}
    written = []
    for suffix, (vector, pixels) in made.items():  # all are drawn before the first is written
        target = path.with_name(f"{path.stem}_{suffix}.svg" if suffix else f"{path.stem}.svg")
        write_text(target, vector)  # the same numbers make the same file
        with atomic(target.with_suffix(".png")) as temporary:
            temporary.write_bytes(pixels)
        written += [target, target.with_suffix(".png")]
    return written


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110, facecolor="white")
    return stream.getvalue()


def _is_drawn(document: Document, folder: Path) -> bool:
    """Whether all figures of these points are there: they are named when the last is written; a run may end before."""
    names = document.get("figures")
    return isinstance(names, list) and all((folder / str(name)).exists() for name in names)


# ---- documents -----------------------------------------------------------------------------------------------


def read_document(path: str | Path) -> Document:
    """A stored document; :class:`DataError` if it is not one."""
    try:
        document = json.loads(Path(path).read_text())
        if not isinstance(document["points"], dict) or not isinstance(document["experiment"], str):
            raise TypeError("'points' must be an object")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
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
        "size": setup.size,
        "command": f"notsodeep reproduce {experiment.name}" + (" --quick" if setup.quick else ""),
        "points": {},
    }


def _finished(document: Document, point: Point) -> bool:
    stored = document["points"].get(point.key)
    # through JSON, so that tuples equal the lists they became
    return stored is not None and stored["settings"] == json.loads(json.dumps(dict(point.settings)))


def compute(point: Point, setup: Setup) -> Document:
    """A point's record: its numbers, how long it took, and what it was made with."""
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
