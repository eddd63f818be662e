"""The shipped map from sigma_a2 to the optimal ReLU twin: bends and weights on a grid of feedbacks, interpolated.

The table only *proposes* parameters; the certificate is computed for the very network that is returned, so an
interpolation error can cost accuracy but never validity.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources

import numpy as np

from ...errors import SerialisationError
from ..arc import Array, HomogeneousDEQ
from .arc_fit import Fit

TABLE = "relu.json"


@dataclass(frozen=True)
class Branch:
    """One depth of one kernel over the nodes: rows are bends, then weights (one block per kernel)."""

    nodes: Array
    bends: Array
    weights: tuple[Array, ...]
    error: Array

    def at(self, feedback: float) -> Fit:
        """Cubic interpolation through the four nearest nodes."""
        stencil, coefficients = _lagrange(self.nodes, feedback)
        bends = np.clip(self.bends[:, stencil] @ coefficients, 0.0, 2.0)
        weights = tuple(np.maximum(w[:, stencil] @ coefficients, 0.0) for w in self.weights)
        return Fit(bends, weights, float(self.error[stencil] @ coefficients))

    def beside(self, feedback: float) -> list[list[float]]:
        """The bends at the two nearest nodes, from which a fit can start where interpolation straddles a kink."""
        i = min(max(int(np.searchsorted(self.nodes, feedback)), 1), len(self.nodes) - 1)
        return [self.bends[:, k].tolist() for k in (i - 1, i)]


def _lagrange(nodes: Array, x: float) -> tuple[slice, Array]:
    first = min(max(int(np.searchsorted(nodes, x)) - 2, 0), len(nodes) - 4)
    near = nodes[first : first + 4]
    coefficients = np.array([np.prod((x - np.delete(near, i)) / (near[i] - np.delete(near, i))) for i in range(4)])
    return slice(first, first + 4), coefficients


@functools.cache
def load() -> dict[tuple[str, int], Branch]:
    """The shipped branches by (kernel, depth)."""
    text = resources.files(__package__).joinpath("tables", TABLE).read_text(encoding="utf-8")
    document = json.loads(text)
    if document.get("table") != "uniform twins of ReLU" or document.get("version") != 1:
        raise SerialisationError(f"{TABLE} is not a table of uniform twins, version 1")
    nodes = np.array(document["feedback"])
    branches = {}
    for row in document["branches"]:
        weights = tuple(np.array(w) for w in row["weights"])
        branches[row["kernel"], row["depth"]] = Branch(nodes, np.array(row["bends"]), weights, np.array(row["error"]))
    return branches


def branch_for(deq: HomogeneousDEQ, kernel: str, depth: int) -> Branch | None:
    """The part of the table that holds this DEQ's twins, or ``None`` where it does not reach."""
    if abs(deq.bend - 1.0) > 1e-14:
        return None
    branch = load().get((kernel, depth))
    return None if branch is None or deq.feedback > branch.nodes[-1] else branch
