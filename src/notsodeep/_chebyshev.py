"""Chebyshev series: nodes, the transform to coefficients, polynomials and sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from ._arrays import Array


def nodes(size: int, low: Any = -1.0, high: Any = 1.0) -> Array:
    """Return Chebyshev points of the first kind in [low, high], increasing, without the ends."""
    return 0.5 * (high + low) + 0.5 * (high - low) * chebyshev.chebpts1(size)


def to_coefficients(size: int) -> Array:
    """Return the matrix from values at the nodes to Chebyshev coefficients."""
    angles = np.pi * (np.arange(size)[::-1] + 0.5) / size
    matrix = 2.0 / size * np.cos(np.outer(np.arange(size), angles))
    matrix[0] *= 0.5
    matrix.setflags(write=False)
    return matrix


def polynomials(size: int, x: Tensor) -> Tensor:
    """Return T_0 ... T_(size-1) at these points, along a new last dimension."""
    # the rounding of k arccos(x) meets coefficients that fall with k
    return torch.cos(torch.acos(x.clamp(-1.0, 1.0))[..., None] * torch.arange(size, dtype=x.dtype, device=x.device))


def needed(relative: Tensor, tolerance: float) -> int:
    """Return the number of leading orders (orders, ...) that hold everything above the tolerance, at least one."""
    counts = (relative.reshape(len(relative), -1)).amax(1) > tolerance
    return int(counts.nonzero().max()) + 1 if bool(counts.any()) else 1


def derived(coefficients: Tensor) -> Tensor:
    """Return the coefficients of the derivatives of series, along the first dimension."""
    return torch.from_numpy(chebyshev.chebder(coefficients.numpy(), axis=0))


class Workspace:
    """Memory that is used again: fresh pages would cost as much as the arithmetic."""

    def __init__(self) -> None:
        self._tensors: dict[object, Tensor] = {}

    def __call__(self, name: str, like: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
        """Return an uninitialised tensor like this one, which stays valid until this name is asked for again."""
        shape = like.shape if shape is None else shape
        size, key = math.prod(shape), (name, like.dtype, like.device)
        if key not in self._tensors or self._tensors[key].numel() < size:
            self._tensors[key] = torch.empty(size, dtype=like.dtype, device=like.device)
        return self._tensors[key][:size].view(shape)


def clenshaw(
    terms: int,
    less: Callable[[int, Tensor], Tensor],
    x2: Tensor,
    parity: str | None,
    workspace: Workspace | None = None,
) -> Tensor:
    """Sum c_m T_m(x) over m at ``x2`` = 2 x, where ``less(m, b)`` writes c_m - b over b.

    The result lies in the workspace, if one is given. Odd and even series hold every second order, and recur in T_2.
    """
    workspace, odd = workspace or Workspace(), parity == "odd"
    y2 = x2 if parity is None else torch.mul(x2, x2, out=workspace("y2", x2)).sub_(2.0)
    b1, b2 = less(terms - 1, workspace("b1", x2).zero_()), workspace("b2", x2).zero_()
    for m in range(terms - 2, -1, -1):
        # b_m = c_m + 2 y b_(m+1) - b_(m+2), and the sum is c_0 + y b_1 - b_2
        b1, b2 = less(m, b2).addcmul_(y2, b1, value=1.0 if m or odd else 0.5), b1
    # T_(2m+1)(x) = x W_m with W_1 = 2 T_2 - 1, so that the sum of odd orders is x (b_0 - b_1)
    return b1.sub_(b2).mul_(x2).mul_(0.5) if odd else b1


def series_sum(parts: Tensor, x2: Tensor, parity: str | None = None, workspace: Workspace | None = None) -> Tensor:
    """Sum parts_m T_m(x) over m at ``x2`` = 2 x, with the same parts for all points or with some for each."""
    return clenshaw(len(parts), lambda m, b: torch.sub(parts[m], b, out=b), x2, parity, workspace)


def power_coefficients(parts: Tensor, most: float = 1e3) -> tuple[Tensor, ...] | None:
    """Return the series as a polynomial in ``x2`` = 2 x, twice as fast; None if terms are ``most`` times its size."""
    powers = chebyshev.cheb2poly(parts.numpy())
    if float(np.abs(powers).sum()) > most * float(parts.abs().max()):
        return None
    return torch.from_numpy(powers * 0.5 ** np.arange(len(powers))).unbind()


def power_sum(powers: Sequence[Tensor], x2: Tensor, workspace: Workspace) -> Tensor:
    """Sum powers_m x2^m over m by Horner's rule; it lies in the workspace."""
    out = workspace("b1", x2).fill_(powers[-1])
    for c in reversed(powers[:-1]):
        torch.addcmul(c, out, x2, out=out)
    return out
