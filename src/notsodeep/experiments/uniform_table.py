"""Make the table of ReLU twins that ships with the library: ``python -m notsodeep.experiments.uniform_table
OUT.json``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._files import write_text
from ..matching import kernel_names
from ..matching.arc import HomogeneousDEQ
from ..matching.arc_fit import Fit, Problem, deeper_starts, fit

LAST = 0.96  # feedback; sigma_a2 = 1.92 for ReLU


def nodes(count: int) -> list[float]:
    """Feedbacks from near 0 to LAST, closer together near 0, where the optimal rates change fastest relative to their
    size."""
    return [LAST * (1.0 - math.cos(0.5 * math.pi * (i + 1) / count)) for i in range(count)]


def branch(kernel: str, depth: int, feedbacks: Sequence[float], shallow: Sequence[Fit] | None) -> list[Fit]:
    """Fits along the nodes: continuation upwards, then downwards, keeping the better of the two at every node."""
    fits: list[Fit | None] = [None] * len(feedbacks)
    kinds = kernel_names(kernel)
    for order in (range(len(feedbacks)), range(len(feedbacks) - 1, -1, -1)):
        previous: Fit | None = None
        for i in order:
            problem = Problem(HomogeneousDEQ(feedbacks[i], 1.0, 1.0), kinds)
            here = fits[i]
            starts = [] if previous is None else [previous.bends.tolist()]
            if here is None:
                starts += deeper_starts(problem, None if shallow is None else shallow[i]) if i % 8 == 0 else []
            found = fit(problem, starts) if starts else here
            if here is None or (found is not None and found.error < 0.999 * here.error):
                fits[i] = found
            previous = fits[i]
    return repaired(kernel, [f for f in fits if f is not None], feedbacks, shallow)


def repaired(kernel: str, fits: list[Fit], feedbacks: Sequence[float], shallow: Sequence[Fit] | None) -> list[Fit]:
    """Refit nodes that stand out above their neighbours or above the shallower network, which is a special case."""
    out = list(fits)
    for _ in range(2):
        for i, here in enumerate(out):
            near = [out[k] for k in (i - 1, i + 1) if 0 <= k < len(out)]
            starts = [f.bends.tolist() for f in near]
            level = max(f.error for f in near)
            if shallow is not None:
                bends = shallow[i].bends
                starts += [np.insert(bends, k, 0.0).tolist() for k in range(len(bends) + 1)]
                level = min(level, 1.001 * shallow[i].error)
            if here.error > level:
                found = fit(Problem(HomogeneousDEQ(feedbacks[i], 1.0, 1.0), kernel_names(kernel)), starts)
                out[i] = found if found.error < here.error else here
    return out


def make(
    count: int = 120,
    depths: Sequence[int] = (1, 2, 3, 4),
    kernels: Sequence[str] = ("ck", "ntk", "ntk_frozen", "both"),
    report: Callable[[str], None] = print,
) -> dict[str, Any]:
    """The document that :mod:`notsodeep.matching.uniform` reads."""
    feedbacks = nodes(count)
    rows = []
    for kernel in kernels:
        shallow: list[Fit] | None = None
        for depth in depths:
            shallow = branch(kernel, depth, feedbacks, shallow)
            rows.append(_row(kernel, depth, shallow))
            worst = max(f.error for f in shallow)
            report(f"{kernel} {depth} layers: errors {min(f.error for f in shallow):.1e} to {worst:.1e}")
    digits = [float(f"{x:.17g}") for x in feedbacks]
    return {"table": "uniform twins of ReLU", "version": 1, "feedback": digits, "branches": rows}


def _row(kernel: str, depth: int, fits: Sequence[Fit]) -> dict[str, Any]:
    columns = len(fits[0].weights)
    return {
        "kernel": kernel,
        "depth": depth,
        "bends": _rounded(np.stack([f.bends for f in fits], axis=1)),
        "weights": [_rounded(np.stack([f.weights[i] for f in fits], axis=1)) for i in range(columns)],
        "error": [float(f"{f.error:.4g}") for f in fits],
    }


def _rounded(values: np.ndarray) -> list[list[float]]:
    return [[float(f"{x:.11g}") for x in row] for row in values]


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), json.dumps(make(), separators=(",", ":")) + "\n")
