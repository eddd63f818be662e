"""Accuracy of uniform twins against depth: ``python -m notsodeep.experiments.uniform_study OUT.json``.

Homogeneous activations: certified bounds, depths 1 to 6, also beyond the contraction range. Others: norms 0.5 to 1.5,
the CK, certified for one and two layers, sampled beyond.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .._files import write_text
from ..activations import activation
from ..matching import kernel_names
from ..matching.uniform.arc import HomogeneousDEQ
from ..matching.uniform.arc_fit import Fit
from ..matching.uniform.box_certify import Candidate, certify_box
from ..matching.uniform.box_fit import BoxProblem, fit_box
from ..matching.uniform.homogeneous import candidate
from ..networks import DEQ

FRACTIONS = (0.01, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95)
BEYOND = (0.5, 1.0, 1.5, 1.9)
BOX = (0.5, 1.5)
SMOOTH = ("tanh", "erf", "arctan", "silu", "gelu", "elu", "softplus", "sigmoid", "sin", "cos")

Row = dict[str, Any]


def homogeneous_rows(
    names: Sequence[str] = ("relu", "leaky_relu"),
    kernels: Sequence[str] = ("ck", "ntk", "ntk_frozen"),
    depths: int = 6,
    fractions: Sequence[float] = FRACTIONS,
) -> Iterator[Row]:
    """Certified bounds for homogeneous DEQs: sigma_a2 as fractions of the contraction limit 0.25, then beyond it."""
    for name in names:
        phi = activation("leaky_relu", slope=0.2) if name == "leaky_relu" else activation(name)
        inside = [f * DEQ(phi, 0.1).limit for f in fractions]
        for sigma_a2 in [*inside, *(BEYOND if name == "relu" else ())]:
            reduced = HomogeneousDEQ.of(DEQ(phi, sigma_a2, 1.0))
            for kernel in kernels:
                shallow: Fit | None = None
                for depth in range(1, depths + 1):
                    found = candidate(reduced, kernel, depth, 0.0, shallow, precise=True)
                    shallow = found.fit
                    yield {
                        "activation": name,
                        "sigma_a2": sigma_a2,
                        "kernel": kernel,
                        "depth": depth,
                        "bound": found.bound,
                        "sampled": found.sampled,
                        "bends": found.fit.bends.tolist(),
                    }


def box_rows(
    names: Sequence[str] = SMOOTH, depths: int = 6, certified: int = 2, fractions: Sequence[float] = FRACTIONS
) -> Iterator[Row]:
    """Errors of the CK for norms 0.5 to 1.5; certified for the first depths."""
    for name in names:
        for fraction in fractions:
            sigma_a2 = fraction * DEQ(name, 0.01).limit
            deq = DEQ(name, sigma_a2, max(1.0 - sigma_a2, 0.5))  # the sigmoid's limit is 4
            shallow: Sequence[float] | None = None
            for depth in range(1, depths + 1):
                problem = BoxProblem(deq, kernel_names("ck"), BOX, depth)
                found = fit_box(problem, shallow)
                shallow = found.parameters.tolist()
                bound: float | None = None
                sampled = found.error
                if depth <= certified:
                    given = Candidate(deq, problem.activations(found.parameters), found.weights[0], "ck", BOX)
                    seen = certify_box(given, 64, goal=max(5e-4, found.error))
                    bound, sampled = seen.bound, seen.sampled
                yield {
                    "activation": name,
                    "sigma_a2": float(deq.sigma_a2),
                    "kernel": "ck",
                    "depth": depth,
                    "bound": bound,
                    "sampled": sampled,
                    "parameters": shallow,
                }


def study(out: Path, report: Callable[[str], None] = print) -> None:
    """Write the rows as they come, so that a long run can be read early."""
    rows: list[Row] = []
    for source in (homogeneous_rows(), box_rows()):
        for row in source:
            rows.append(row)
            report(f"{row['activation']} {row['sigma_a2']:.4g} {row['kernel']} {row['depth']}: {row['sampled']:.2e}")
            if row["depth"] == 6:
                _write(out, rows)
    _write(out, rows)


def _write(out: Path, rows: Sequence[Row]) -> None:
    document = {
        "command": "python -m notsodeep.experiments.uniform_study results/uniform/depth.json",
        "error": "sup |k_deq - k_twin| / sqrt(k_deq(x, x) k_deq(y, y))",
        "norms": {"homogeneous": "all", "others": list(BOX)},
        "rows": rows,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    study(Path(sys.argv[1]))
