"""Uniform twins of DEQs whose activation is not homogeneous: a range of norms, all angles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...activations import Activation
from ...errors import InvalidInputError
from ...networks import DEQ, ENN
from ..certificates import Location, Tried, UniformCertificate
from ..names import MatchKernel, kernel_names
from ..twin import Twin
from . import minimax
from .box import Pairs, deq_at
from .box_certify import BoxSupremum, certify_box, relative_error
from .box_certify import Candidate as Compared
from .box_fit import BoxProblem, fit_box
from .record import Certified

MAX_LAYERS = 3
_FAMILY = "affine"
_TERMS = (24, 40, 64, 100, 160)


@dataclass(frozen=True)
class Candidate(Certified):
    """A fit on the box with its certificates, one per kernel."""

    solution: minimax.Solution
    activations: tuple[Activation, ...]
    suprema: tuple[BoxSupremum, ...]

    def row(self) -> Tried:
        return Tried(len(self.activations), self.bound, self.sampled, _FAMILY)


def candidate(
    deq: DEQ, kernel: str, norms: tuple[float, float], depth: int, tol: float, shallow: Sequence[float] | None
) -> Candidate:
    """The best network of a depth: fitted on a coarse grid, certified by branch and bound."""
    if depth > MAX_LAYERS:
        raise InvalidInputError(
            f"a DEQ with {deq.activation!r} is matched with up to {MAX_LAYERS} layers, got layers={depth}"
        )
    box = _widened(norms)
    kinds = kernel_names(kernel)
    problem = BoxProblem(deq, kinds, box, depth)
    solution = fit_box(problem, shallow)
    activations = tuple(problem.activations(solution.parameters))
    suprema = []
    for kind, weights in zip(kinds, solution.weights, strict=True):
        given = Compared(deq, activations, weights, kind, box)
        goal = max(0.5 * tol, solution.error)
        suprema.append(certify_box(given, _terms(given, goal), goal=goal))
    return Candidate(solution, activations, tuple(suprema))


def _widened(norms: tuple[float, float]) -> tuple[float, float]:
    """A box of positive width: a single norm is a thin shell."""
    low, high = norms
    return (low, high) if high > low * (1.0 + 1e-6) else (low * (1.0 - 1e-6), high * (1.0 + 1e-6))


def _terms(given: Compared, goal: float) -> int:
    """The shortest Hermite series whose truncation is negligible against the goal."""
    index = np.arange(2)
    pairs = Pairs(np.array(given.norms), index, index, np.ones(2))
    least = float(deq_at(given.deq, pairs, 8, (given.kind,)).diagonals[given.kind].min())
    for terms in _TERMS:
        if relative_error(given, pairs, terms)[1] <= 0.05 * goal * least:
            return terms
    return _TERMS[-1]


def twin(
    deq: DEQ, kernel: MatchKernel, norms: tuple[float, float], best: Candidate, tried: Sequence[Candidate]
) -> Twin:
    """The record for the chosen candidate."""
    kinds = kernel_names(kernel)
    where = best.suprema[best.worst]
    network, rates = _finish(kinds, best)
    top = Pairs(np.array([norms[1]]), np.zeros(1, dtype=np.intp), np.zeros(1, dtype=np.intp), np.ones(1))
    ends = deq_at(deq, top, 24, kinds).diagonals
    proof = UniformCertificate(
        residual=best.sampled,
        bound=best.bound,
        norms=norms,
        location=Location(where.norm_x, where.norm_y, where.rho, kinds[best.worst]),
        table=tuple(c.row() for c in tried),
        diagonals=tuple((kind, float(ends[kind][-1])) for kind in kinds),
    )
    return Twin(
        deq=deq,
        network=network,
        kernel=kernel,
        family=_FAMILY,
        certificate=proof,
        learning_rates=rates,
        reason="the DEQ's own activation with affine skips, fitted in the maximum norm over the range of norms",
    )


def _finish(kinds: tuple[str, ...], best: Candidate) -> tuple[ENN, tuple[float, ...] | None]:
    """Put the CK's weight into the last layer and the NTK's weights into learning rates."""
    factor = float(best.solution.weights[kinds.index("ck")][0]) if "ck" in kinds else 1.0
    last = best.activations[-1].affine(gain=float(np.sqrt(factor)))
    rates: tuple[float, ...] | None = None
    for kind, weights in zip(kinds, best.solution.weights, strict=True):
        if kind != "ck":
            values = [float(w) / factor for w in weights]
            rates = tuple([0.0, *values] if kind == "ntk_frozen" else values)
    return ENN([*best.activations[:-1], last]), rates
