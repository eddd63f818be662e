"""Two economies of the equilibrium solver: activations in place, and slopes read off values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..activations import Activation, Affine, Linear, ReLU, Sigmoid, Tanh

__all__ = ["in_place", "slope_of_value"]


def in_place(phi: Activation) -> Callable[[Tensor], Tensor]:
    """phi on a tensor that nobody else needs; in place where torch can."""
    if isinstance(phi, ReLU):
        return torch.relu_
    return torch.tanh_ if isinstance(phi, Tanh) else phi


def slope_of_value(phi: Activation, value: Tensor) -> Tensor | None:
    """phi'(x) from phi(x), where the value determines it: saves the product with A that recovers x.

    Not at kinks: an error of 1e-3 in the value turns units on or off, and the gradient is wrong by as much as its root.

    >>> slope_of_value(Tanh(), torch.tanh(torch.tensor([0.0])))
    tensor([1.])
    """
    if isinstance(phi, Tanh):
        return 1.0 - value * value
    if isinstance(phi, Sigmoid):
        return value * (1.0 - value)
    if isinstance(phi, Linear):
        return torch.full_like(value, phi.slope)
    # a shift moves values by a constant; a gain or a scale would multiply the slope
    if isinstance(phi, Affine) and phi.gain == phi.scale == 1.0 and phi.skip == 0.0:
        return slope_of_value(phi.base, value - phi.shift)
    return None
