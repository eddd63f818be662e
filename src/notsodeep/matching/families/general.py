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
from ..solver import Solved, best_of
from ..target import ACCEPTED, Target, network_jets
from .draft import Draft, Refusal

Array = NDArray[Any]

_PENALTY = 1e3  # weight of the equations


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


def solve_family(target: Target, family: Family) -> Draft | Refusal:
    """The best network of a user's family."""
    best = best_of([_from_start(target, family, np.array(start, dtype=float)) for start in family.starts])
    if not best.residual <= ACCEPTED:
        return Refusal(
            f"the family {family.name!r} misses the numbers of {target.deq!r} ({target.kernel}, "
            f"tau0 = {target.tau0:.6g}) by {100 * best.residual:.3g} % from {len(family.starts)} start(s)",
            "Add starts or parameters, or use family='auto'",
            best.residual,
        )
    return Draft(_network(target, family, best.z), family.name, best.conditioning, "the family you gave")


def _from_start(target: Target, family: Family, start: Array) -> Solved:
    """Least squares on equations and next orders, then on the equations alone."""
    low, high = (-np.inf, np.inf) if family.bounds is None else np.array(family.bounds, dtype=float).T
    if np.any(start <= low) or np.any(start >= high):
        raise InvalidInputError(f"Family {family.name!r}: the start {tuple(start)} is not strictly inside its bounds")

    def residuals(z: Array, penalty: float) -> Array:
        equations, beyond = _evaluate(target, family, z)
        return np.concatenate([_PENALTY * equations, penalty * beyond])

    def solved(begin: Array, penalty: float, jac: str) -> Any:
        return least_squares(
            residuals, begin, jac, (low, high), xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=60, args=(penalty,)
        )

    near = solved(start, 1.0, "2-point").x
    z = solved(near, 0.0, "3-point")
    equations, beyond = _evaluate(target, family, z.x)
    return Solved.at(family, z.x, equations, beyond, z.jac[: len(equations)])


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
