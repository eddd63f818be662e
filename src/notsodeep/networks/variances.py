"""The variances of pre-activations: the equation of a fixed point at one input."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._fixed_point import newton
from ..activations import Activation
from ..errors import ConvergenceError
from .nodes import Domain, LayerMaps, equation


class Squares(Domain):
    """Variances of one input: a layer maps q to E[phi(sqrt(q) xi)^2] and its derivative in q."""

    def __init__(self, square: Callable[[Activation, Any], tuple[Any, Any]]) -> None:
        self.square = square

    def layer(self, phi: Activation, points: Any) -> LayerMaps:
        """Return the map of an activation."""
        return SquareMap(functools.partial(self.square, phi))

    def through(self, phi: Activation, points: Any) -> None:
        """Return nothing: a variance is all there is."""

    def normalised(self, points: Any) -> tuple[LayerMaps, None]:
        """Return the map to a variance of one."""
        return SquareMap(lambda q: (0.0 * q + 1.0, 0.0 * q)), None


class SquareMap(LayerMaps):
    """A map of variances, with its derivative."""

    def __init__(self, function: Callable[[Any], tuple[Any, Any]]) -> None:
        self.function = function

    def both(self, q: Any) -> tuple[Any, Any]:
        """Return the variance behind the layer, and its derivative."""
        return self.function(q)


def pre_activation_variance(
    deq: Any, squares: Tensor, square: Callable[[Activation, Tensor], tuple[Tensor, Tensor]]
) -> Tensor:
    """Return the solutions q of q = sigma_a2 V(q) + drive at inputs of these squared norms.

    ``square`` maps an activation and q to E[phi(sqrt(q) xi)^2] and its derivative, or to the variance of phi if it is
    centred; V is what the layers of the cell make of q.
    """
    sigma_a2, drive = deq.variances[0], deq.drive(squares)
    cell = deq.fixed_point.maps(Squares(square), None)
    if deq.normalise:  # V is a constant
        return drive + sigma_a2 * cell.value(torch.ones_like(drive))
    if all(phi.homogeneity == 1.0 for phi in deq.activations):  # V(q) = q V(1)
        share = sigma_a2 * float(cell.value(torch.ones(1, dtype=torch.float64)))
        if share >= 1.0:
            raise ConvergenceError(
                f"the variance equation of {deq!r} has no solution: sigma_a2 E[phi(xi)^2] = {share:.4g} >= 1; "
                f"{deq.advice}"
            )
        return drive / (1.0 - share)

    def residual(q: Tensor, which: Tensor | None) -> tuple[Tensor, Tensor]:
        return equation(cell, q, sigma_a2, drive if which is None else drive[which])

    start = drive if bool((drive > 0).all()) else drive + sigma_a2 * cell.value(drive)
    far = 1e12 * (1.0 + drive)
    root = newton(residual, start, drive, torch.full_like(drive, math.inf), flattest=0.05, far=far, still=1e-8)
    if not root.converged:
        raise ConvergenceError(
            f"the variance equation of {deq!r} did not converge (relative residual {root.residual:.1e}); {deq.advice}"
        )
    return root.value
