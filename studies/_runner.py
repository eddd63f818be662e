"""A study is computed point by point. Each result is on the disk before the next begins, and no point is repeated.

The numbers of a study lie in one JSON document, ``quick.json`` or ``full.json``. Figures are drawn from it alone.
"""

from __future__ import annotations

import functools
import importlib
import io
import json
import multiprocessing
import os
import pkgutil
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from threadpoolctl import threadpool_limits

import notsodeep
from notsodeep.errors import DataError

from ._style import adaptive_svg, figure_style

Document = dict[str, Any]
_PACKAGES = ("torch", "numpy", "scipy", "sklearn")


@dataclass(frozen=True)
class Setup:
    """How a study is run: its size, the folder of the data sets, the device for what trains, and how many processes.

    ``networks`` is a folder that keeps trained networks, and ``only`` a pattern that the keys of the points contain.
    """

    quick: bool = True
    data: str | Path | None = None
    device: str = "cpu"
    jobs: int = 1
    networks: Path | None = None
    only: str = ""

    @property
    def size(self) -> str:
        return "quick" if self.quick else "full"


QUICK = Setup()


@dataclass(frozen=True)
class Point:
    """One result: the settings that decide it, and the function that computes it.

    Where that is timed, ``prepare`` is what several processes may do before, such as training.
    """

    key: str
    settings: Mapping[str, Any]
    compute: Callable[[], Mapping[str, Any]]
    prepare: Callable[[], None] | None = None

    @staticmethod
    def of(key: str, settings: Mapping[str, Any], function: Callable[..., Any], **others: Any) -> Point:
        """Make a point whose function takes the settings as arguments; ``others`` do not change the result."""
        return Point(key, settings, functools.partial(function, **settings, **others))


@dataclass(frozen=True)
class Study:
    """What a study shows, how long it takes, which points it computes, and how they are drawn.

    ``quick`` is the time on two cores with built-in data; ``full`` that at the papers' sizes, on two cores unless
    another machine is named. ``draw`` returns figures by the suffix of their files; ``""`` stands for the only one.
    """

    shows: str
    quick: str
    full: str
    points: Callable[[Setup], Sequence[Point]]
    draw: Callable[[Document], Mapping[str, Figure]]


def names() -> tuple[str, ...]:
    """Return the names of all studies: the files of this folder without an underscore."""
    return tuple(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if not m.name.startswith("_"))


def study(name: str) -> Study:
    """Load a study by its name."""
    found: Study = importlib.import_module(f"studies.{name}").STUDY
    return found


def run(
    name: str, setup: Setup, folder: str | Path, points: Sequence[Point] | None = None, given: Study | None = None
) -> Document:
    """Compute the points that are missing in ``folder``, draw the figures, and return the document.

    A point is missing unless one of the same key and settings is stored. ``points`` and ``given`` replace the study's.
    """
    chosen_study = given or study(name)
    path = Path(folder) / f"{setup.size}.json"
    document = read_document(path) if path.exists() else _empty(name, setup)
    chosen = chosen_study.points(setup) if points is None else points
    missing = [p for p in chosen if not _finished(document, p) and re.search(setup.only, p.key)]
    console = Console(stderr=True)
    found = _computed(missing, setup)
    hidden = not console.is_terminal
    for point, record in track(found, name, len(missing), console=console, transient=True, disable=hidden):
        document["points"][point.key] = record
        document["points"] = _in_order(document["points"], chosen)
        document.pop("figures", None)
        write_document(path, document)
    if document["points"] and not _is_drawn(document, path.parent):
        document["figures"] = [figure.name for figure in draw(chosen_study, path)]
        write_document(path, document)
    return document


def compute(point: Point, setup: Setup) -> Document:
    """Return the record of a point: its numbers, how long it took, and the versions that made it."""
    started = time.perf_counter()
    numbers = dict(point.compute())
    record = {
        "settings": dict(point.settings),
        "numbers": numbers,
        "seconds": round(time.perf_counter() - started, 3),
        "made_with": _made_with(setup.device),
    }
    return json.loads(json.dumps(record, allow_nan=False))  # what a later run will read


def _computed(points: Sequence[Point], setup: Setup) -> Iterator[tuple[Point, Document]]:
    """Compute points one after the other, or several at a time with one thread each, as they are finished."""
    prepared = [point.prepare for point in reversed(points) if point.prepare]  # what takes long begins first
    if setup.jobs > 1 and prepared:
        with _processes(setup) as pool:
            wait([pool.submit(prepare) for prepare in prepared])  # what fails will fail again, where it is seen
    if setup.jobs == 1 or prepared:
        yield from ((point, compute(point, setup)) for point in points)
        return
    with _processes(setup) as pool:
        futures = {pool.submit(compute, point, setup): point for point in points}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _processes(setup: Setup) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(setup.jobs, multiprocessing.get_context("spawn"), _one_thread)


def _one_thread() -> None:
    torch.set_num_threads(1)
    threadpool_limits(1)


def draw(chosen: Study, path: str | Path) -> list[Path]:
    """Draw a stored document: PNG on white, and SVG that follows the reader's colour scheme."""
    path = Path(path)
    with figure_style():
        figures = chosen.draw(read_document(path))
        made = {suffix: (adaptive_svg(figure).encode(), _png(figure)) for suffix, figure in figures.items()}
    written = []
    for suffix, contents in made.items():  # all are drawn before the first is written
        stem = f"{path.stem}_{suffix}" if suffix else path.stem
        for kind, content in zip(("svg", "png"), contents, strict=True):
            written.append(path.with_name(f"{stem}.{kind}"))
            write(written[-1], content)
    return written


def read_document(path: str | Path) -> Document:
    """Read a stored document; raise :class:`DataError` if the file is not one."""
    try:
        document = json.loads(Path(path).read_text())
        if not isinstance(document["points"], dict) or not isinstance(document["experiment"], str):
            raise TypeError("'points' must be an object")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is no result of a study ({error!r}); move it away and run again") from None
    return document


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document with each list of numbers on one line, so that differences can be read."""
    text = json.dumps(document, indent=1, allow_nan=False)
    text = re.sub(r"\[[^\[\]{}]*\n[^\[\]{}]*\]", lambda found: " ".join(found.group().split()), text) + "\n"
    write(path, text.encode())


def write(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _empty(name: str, setup: Setup) -> Document:
    options = (" --quick" if setup.quick else "") + ("" if setup.device == "cpu" else f" --device {setup.device}")
    return {"experiment": name, "size": setup.size, "command": f"python -m studies {name}{options}", "points": {}}


def _finished(document: Document, point: Point) -> bool:
    stored = document["points"].get(point.key)
    # through JSON, so that tuples equal the lists they became
    return stored is not None and stored["settings"] == json.loads(json.dumps(dict(point.settings)))


def _in_order(points: Document, chosen: Sequence[Point]) -> Document:
    """Sort stored points as the study has them; points of earlier settings come first."""
    mine = [point.key for point in chosen if point.key in points]
    return {key: points[key] for key in (*(k for k in points if k not in set(mine)), *mine)}


def _is_drawn(document: Document, folder: Path) -> bool:
    """Figures are named in the document when the last one is written; a run may end before."""
    found = document.get("figures")
    return isinstance(found, list) and all((folder / str(name)).exists() for name in found)


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110, facecolor="white")
    return stream.getvalue()


def _made_with(device: str) -> dict[str, str]:
    kind = torch.cuda.get_device_name(device) if device.startswith("cuda") else f"{torch.get_num_threads()} CPU threads"
    versions = {package: str(importlib.import_module(package).__version__) for package in _PACKAGES}
    return {"notsodeep": notsodeep.__version__, "python": platform.python_version(), **versions, "device": kind}
