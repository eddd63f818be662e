"""Every study as one function and one name: ``experiments.reproduce("sphere", quick=True)``."""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._arguments import checked
from .._files import WRONG_PATH, advice
from ..errors import DataError, InvalidInputError


@dataclass(frozen=True)
class Study:
    """An entry of the list: the file that holds it among its ``EXPERIMENTS``, what it shows, how long it takes."""

    module: str
    shows: str
    quick: str
    """On two cores, with built-in data."""
    full: str
    """At the papers' sizes; on two cores unless another machine is named."""


STUDIES = {
    "equivalents_error": Study(
        "equivalents_error", "the equivalents' error falls with the number of points (slides)", "5 s", "6 min"
    ),
    "mixtures_error": Study(
        "equivalents_error", "the same on three mixtures, one with full covariances", "2 s", "30 min"
    ),
    "rejected_variants": Study("equivalents_error", "printed formulas that stall, beside those kept", "1 s", "1 min"),
    "eigenvalues": Study(
        "kernel_figures", "eigenvalues of exact kernels and equivalents (preprint, figure 1)", "2 s", "10 min"
    ),
    "kernels": Study("kernel_figures", "kernels of DEQ and twin as images (preprint, figure 2)", "2 s", "8 min"),
    "sphere": Study(
        "kernel_figures", "a ReLU DEQ and one quadratic layer on the unit sphere (workshop)", "1 s", "10 s"
    ),
    "accuracy": Study(
        "accuracy", "test accuracy against width: DEQ, twin, plain (preprint, figure 3)", "20 s", "40 min, H200"
    ),
    "plain_depth": Study("accuracy", "what depth and weights of a plain network change", "10 s", "30 min, H200"),
    "three_routes": Study("three_routes", "three routes to a twin on the same data", "15 s", "6 min"),
    "learning": Study("learning", "learning predicted before training, against exact kernels", "30 s", "30 min"),
    "one_layer": Study("one_layer", "one layer: proven bounds beside errors of random pairs", "20 s", "3 h"),
    "one_layer_width": Study("one_layer", "one layer: errors of kernels at finite width", "10 s", "3 min, H200"),
    "one_layer_accuracy": Study(
        "accuracy", "one layer: test accuracy against width, readouts trained", "30 s", "15 min, H200"
    ),
    "one_layer_lazy": Study("lazy", "one layer's readout trained beside a whole DEQ", "20 s", "10 min, H200"),
    "distil": Study("distilling", "what can stand in for a trained DEQ", "10 s", "4 min, H200"),
}


def names() -> tuple[str, ...]:
    """The studies that :func:`reproduce` knows.

    >>> names()[:4]
    ('equivalents_error', 'mixtures_error', 'rejected_variants', 'eigenvalues')
    """
    return tuple(STUDIES)


@checked
def reproduce(
    name: str,
    quick: bool = True,
    folder: str | Path = "results",
    data: str | Path | None = None,
    device: str = "cpu",
    progress: bool | None = None,
    time_limit: float | None = None,
    client: Any = None,
) -> dict[str, Any]:
    """Run a study, or go on where it stopped, and return its document.

    Parameters
    ----------
    name : one of :func:`names`
    quick : under a minute on a CPU with built-in data; otherwise the papers' sizes and data
    folder : numbers and figures go to its subfolder ``name``: quick.json, quick*.png, quick*.svg, or full.*
    data : folder of the data sets (default: the environment's NOTSODEEP_DATA, else the user's cache)
    time_limit : seconds after which the run stops; finished points are kept
    client : a ``dask.distributed.Client``: points are computed by the workers of its cluster, which read the data sets
        from the same folder and give the same numbers
    """
    if name not in STUDIES:
        raise InvalidInputError(f"unknown experiment {name!r}; known: {', '.join(STUDIES)}")
    from .._arrays import as_device
    from .runner import run  # the list alone must not load everything

    as_device(device)
    deadline = None if time_limit is None else time.monotonic() + time_limit
    experiment, setup = _study(name, quick, data, device, deadline)
    elsewhere = None if client is None else functools.partial(_on_workers, client, name, quick, data, device, deadline)
    try:
        return run(experiment, setup, Path(folder) / name, progress, elsewhere=elsewhere)
    except OSError as error:
        kind = InvalidInputError if isinstance(error, WRONG_PATH) else DataError
        raise kind(f"results cannot be kept in {folder}: {error.strerror or error}. {advice(error)}") from error


def _study(name: str, quick: bool, data: Any, device: str, deadline: float | None) -> tuple[Any, Any]:
    from .runner import Setup

    known = importlib.import_module(f"{__name__}.{STUDIES[name].module}").EXPERIMENTS
    return next(found for found in known if found.name == name), Setup(quick, data, device, deadline)


def compute_point(name: str, quick: bool, data: str | None, device: str, seconds: float | None, key: str) -> Any:
    """One point of a study by its name, on a worker: the record of it, or None where the time was up."""
    from .runner import TimeUp, compute

    deadline = None if seconds is None else time.monotonic() + seconds
    experiment, setup = _study(name, quick, data, device, deadline)
    point = next(p for p in experiment.points(setup) if p.key == key)
    try:
        setup.check_time()
        return compute(point, setup)
    except TimeUp:
        return None


def _on_workers(
    client: Any, name: str, quick: bool, data: Any, device: str, deadline: float | None, keys: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    """(key, record) as workers finish them; names and numbers are sent, no code."""
    from distributed import as_completed

    place = None if data is None else str(Path(data).absolute())
    seconds = None if deadline is None else deadline - time.monotonic()
    futures = {client.submit(compute_point, name, quick, place, device, seconds, key, pure=False): key for key in keys}
    for future in as_completed(futures):
        record = future.result()
        if record is not None:
            yield futures[future], record
