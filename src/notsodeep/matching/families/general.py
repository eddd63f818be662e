"""A user's own family: any parametrised activations, handed to the same equations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from ...activations import Activation
from ...errors import InvalidInputError, NotSoDeepError
from ...networks import ENN
from ..target import ACCEPTED, FEASIBLE, Target, network_jets
from .draft import Draft, Refusal

Array = NDArray[Any]

_PENALTY = 1e3
_DIFFERENCE = 1e-6


@dataclass(frozen=True)
class Family:
    """Activations as a function of a few parameters; the solver finds the parameters.

    Parameters
    ----------
    name : how the twin will call it
    build : parameters -> the activations, one per layer; they are centred afterwards, each at its input scale
    starts : one or more starting points
    bounds : (low, high) per parameter, or None

    >>> from notsodeep.activations import HardTanh
    >>> build = lambda p: [HardTanh(a=p[0], c=p[1])]
    >>> clipped = Family("clipped", build, starts=[(1.0, 1.0)], bounds=[(0.01, 9), (0.01, 9)])
    >>> import notsodeep as nsd
    >>> nsd.match(nsd.DEQ("tanh", sigma_a2=0.2), 1.0, family=clipped).residual < 1e-10
    True
    """

    name: str
    build: Callable[[Sequence[float]], Sequence[Activation]]
    starts: Sequence[Sequence[float]]
    bounds: Sequence[tuple[float, float]] | None = None

    def __post_init__(self) -> None:
        sizes = {len(s) for s in self.starts}
        if len(sizes) != 1 or 0 in sizes:
            raise InvalidInputError(
                f"Family {self.name!r} needs at least one start, all of one length; got {self.starts!r}"
            )
        if self.bounds is not None and len(self.bounds) not in sizes:
            raise InvalidInputError(f"Family {self.name!r}: {len(self.bounds)} bounds for {sizes.pop()} parameters")


@dataclass(frozen=True)
class _FamilySolution:
    """The best point found, with the residual of its equations and the cost of the next orders."""

    network: ENN
    residual: float
    cost: float
    conditioning: float


def solve_family(target: Target, family: Family) -> Draft | Refusal:
    """The best network of a user's family."""
    solution = _best(target, family)
    if not solution.residual <= ACCEPTED:
        return Refusal(
            f"the family {family.name!r} misses the numbers of {target.deq!r} ({target.kernel}, "
            f"tau0 = {target.tau0:.6g}) by {100 * solution.residual:.3g} % from {len(family.starts)} start(s)",
            "Add starts or parameters, or use family='auto'",
            solution.residual,
        )
    return Draft(solution.network, family.name, solution.conditioning, "the family you gave")


def _best(target: Target, family: Family) -> _FamilySolution:
    """Multi-start least squares on equations and next orders, then Newton's method on the equations alone."""
    best: _FamilySolution | None = None
    for start in family.starts:
        found = _from_start(target, family, np.array(start, dtype=float))
        if best is None or (found.residual > FEASIBLE, found.cost if found.residual <= FEASIBLE else found.residual) < (
            best.residual > FEASIBLE,
            best.cost if best.residual <= FEASIBLE else best.residual,
        ):
            best = found
    assert best is not None
    return best


def _from_start(target: Target, family: Family, start: Array) -> _FamilySolution:
    low, high = (-np.inf, np.inf) if family.bounds is None else np.array(family.bounds, dtype=float).T
    if np.any(start <= low) or np.any(start >= high):
        raise InvalidInputError(f"Family {family.name!r}: the start {tuple(start)} is not strictly inside its bounds")

    def residuals(z: Array) -> Array:
        equations, beyond = _evaluate(target, family, z)
        return np.concatenate([_PENALTY * equations, beyond])

    fit = least_squares(residuals, start, bounds=(low, high), xtol=1e-14, ftol=1e-14, gtol=1e-14, max_nfev=60)
    z, equations, by = _newton(target, family, fit.x, low, high)
    singular = np.linalg.svd(by, compute_uv=False)
    beyond = _evaluate(target, family, z)[1]
    return _FamilySolution(
        _network(target, family, z),
        float(np.abs(equations).max()),
        float(beyond @ beyond),
        float(singular[0] / max(singular[-1], 1e-300)),
    )


def _newton(target: Target, family: Family, z: Array, low: Any, high: Any) -> tuple[Array, Array, Array]:
    best, by = z, _jacobian(target, family, z)
    equations = _evaluate(target, family, z)[0]
    for _ in range(8):
        z = np.clip(z - np.linalg.lstsq(by, equations, rcond=1e-8)[0], low, high)
        there = _evaluate(target, family, z)[0]
        if not np.abs(there).max() < 0.9 * np.abs(equations).max():
            break
        best, equations = z, there
    return best, equations, by


def _jacobian(target: Target, family: Family, z: Array) -> Array:
    columns = []
    for i in range(len(z)):
        step = _DIFFERENCE * max(abs(z[i]), 1e-2) * np.eye(len(z))[i]
        ahead, behind = _evaluate(target, family, z + step)[0], _evaluate(target, family, z - step)[0]
        columns.append((ahead - behind) / (2.0 * step[i]))
    return np.stack(columns, axis=1)


def _evaluate(target: Target, family: Family, z: Array) -> tuple[Array, Array]:
    jets = network_jets(target, _network(target, family, z))
    return target.equations(jets), target.beyond(jets)


def _network(target: Target, family: Family, z: Array) -> ENN:
    parameters = [float(v) for v in z]
    try:
        layers = list(family.build(parameters))
    except NotSoDeepError as error:
        raise InvalidInputError(
            f"Family {family.name!r} refused the parameters {parameters}: {error}; give bounds"
        ) from error
    if not layers or not all(isinstance(a, Activation) for a in layers):
        raise InvalidInputError(
            f"Family {family.name!r}: build must return a non-empty list of activations, got {layers!r}"
        )
    if not all(math.isfinite(v) for v in parameters):
        raise InvalidInputError(f"Family {family.name!r}: the search left the finite numbers; give bounds")
    return ENN(layers).centred(target.tau0)
