"""Every figure of the papers as one function and one name: ``experiments.reproduce("sphere", quick=True)``."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

from ..errors import InvalidInputError

__all__ = ["names", "reproduce"]

# name -> the module that holds it, imported when it is asked for
_FIGURES = {
    "equivalents_error": "error_figure",
    "eigenvalues": "eigenvalues",
    "kernels": "kernel_images",
    "sphere": "sphere",
    "accuracy": "accuracy",
    "plain_depth": "plain_depth",
    "three_routes": "three_routes",
}


def names() -> tuple[str, ...]:
    """The experiments that :func:`reproduce` knows.

    >>> names()
    ('equivalents_error', 'eigenvalues', 'kernels', 'sphere', 'accuracy', 'plain_depth', 'three_routes')
    """
    return tuple(_FIGURES)


def reproduce(
    name: str,
    quick: bool = True,
    folder: str | Path = "results",
    data: str | Path | None = None,
    device: str = "cpu",
    progress: bool | None = None,
    time_limit: float | None = None,
) -> dict[str, Any]:
    """Run an experiment, or go on where it stopped, and return its document.

    Parameters
    ----------
    name : one of :func:`names`
    quick : under a minute on a CPU with built-in data; otherwise the papers' sizes and data
    folder : numbers and figures go to its subfolder ``name``: quick.json, quick.png, quick.svg, or full.*
    data : folder of the data sets (default: the environment's NOTSODEEP_DATA, else the user's cache)
    time_limit : seconds after which the run stops; finished points are kept
    """
    if name not in _FIGURES:
        raise InvalidInputError(f"unknown experiment {name!r}; known: {', '.join(_FIGURES)}")
    from .runner import Setup, run  # what `plots` needs of this package must not load everything

    deadline = None if time_limit is None else time.monotonic() + time_limit
    experiment = importlib.import_module(f"{__name__}.{_FIGURES[name]}").EXPERIMENT
    return run(experiment, Setup(quick, data, device, deadline), Path(folder) / name, progress)
