"""The exact one-layer twin on the unit sphere (theory, section 7).

There every kernel of a DEQ is k(rho) = sum_k k_k rho^k with k_k >= 0. One hidden layer sigma = sum_k s_k h_k has the CK
sum s_k^2 rho^k and the NTK sum (1 + k) s_k^2 rho^k; so s_k = +-sqrt(k_k), or +-sqrt(k_k / (1 + k)), has exactly the
DEQ's kernel, for every n and every dimension, centred or not. What a truncation leaves out is at most the tail sum.

At finite width a long series is evaluated as a table: cubic pieces on an even grid, one gather and three
multiplications per value.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._arguments import checked, whole
from ..activations import Activation, ActivationLike, CallableActivation, Hermite, Quadratic, activation
from ..activations.polynomial import hermite_table
from ..errors import ActivationError, InfeasibleMatchError
from ..gaussian import hermite_coefficients
from ..kernels import power_series, sphere_diagonal
from ..kernels.variance import equilibrium_variance
from ..networks import DEQ, ENN, Kernel, check_kernel
from .certificates import SphereCertificate
from .twin import Twin

Array = NDArray[Any]

_REACH = 5.0  # where tameness is judged: a standard normal hardly goes further
_SILENT = 1e-10


@checked
def match_sphere(
    deq: DEQ,
    kernel: Kernel = "ck",
    terms: int = 60,
    *,
    family: Literal["hermite", "quadratic"] = "hermite",
    dimension: int | None = None,
    normalise: bool = False,
) -> Twin:
    """The one-layer twin for inputs of norm 1; ``twin.bound`` is a proven bound on every entry of the kernel's error.

    Parameters
    ----------
    kernel : ``"ck"``, ``"ntk"`` (all weights) or ``"ntk_frozen"`` (input weights frozen, which leaves one layer its CK)
    terms : how many orders are kept; the rest sums up to ``twin.bound``
    family : ``"hermite"`` (exact), or ``"quadratic"``: the workshop paper's a x^2 + b x + c, which matches
        alpha 11' + beta S + mu I in high dimension and needs ``dimension``
    normalise : the twin divides its inputs by their norm first; for data of unequal norm

    The signs of the square roots are free. They follow those of phi's own coefficients; where phi has none, the sign is
    taken that keeps sup |sigma| on [-5, 5] smaller.

    >>> import notsodeep as nsd
    >>> twin = nsd.match_sphere(nsd.DEQ("silu", sigma_a2=0.2))
    >>> twin.depth, twin.bound < 1e-10
    (1, True)
    """
    check_kernel(deq, kernel)
    deq.check_driven()
    whole("terms", terms, 2)
    if not float(sphere_diagonal(deq, kernel)) > 0.0:
        raise InfeasibleMatchError(f"the kernel of {deq!r} is zero on the whole sphere: there is nothing to match")
    if family == "quadratic":
        return _quadratic(deq, kernel, dimension, normalise)
    layer, bound, total = _hermite(deq.detached(), kernel, terms)
    return Twin(
        deq,
        ENN([layer]),
        kernel,
        "hermite",
        SphereCertificate(bound / total, bound, normalise),
        reason=f"unit-norm inputs: one layer with the square roots of the kernel's power series, {terms} terms",
    )


@functools.lru_cache(maxsize=64)
def _hermite(deq: DEQ, kernel: Kernel, terms: int) -> tuple[Hermite, float, float]:
    """The layer, its largest error, and the kernel's diagonal."""
    series, total = np.asarray(power_series(deq, terms, kernel), dtype=float), float(sphere_diagonal(deq, kernel))
    if float(series.min()) < -1e-13 * total:
        raise InfeasibleMatchError(f"the power series of {deq!r} has a negative coefficient {series.min():.3g}")
    weights = 1.0 + np.arange(terms) if kernel == "ntk" else np.ones(terms)
    sizes = np.sqrt(np.maximum(series, 0.0) / weights)
    layer = Hermite(tuple(float(c) for c in sizes * _signs(deq, sizes)))
    # the tail, and what rounding can add to a sum of this many terms
    return layer, max(total - float(series.sum()), 0.0) + 1e-15 * terms * total, total


def _signs(deq: DEQ, sizes: Array) -> Array:
    """Phi's own signs; greedily the tamer one where phi is silent."""
    # at the variance of the pre-activations at unit norm, of phi as it is given
    q = float(equilibrium_variance(deq, torch.ones(1, dtype=torch.float64)))
    own = np.asarray(hermite_coefficients(deq.activation, q, len(sizes)))
    x = np.linspace(-_REACH, _REACH, 201)
    signs, total = np.ones(len(sizes)), np.zeros_like(x)
    points = torch.from_numpy(x)
    (table,) = hermite_table(points, torch.ones_like(points), len(sizes))
    for k, (size, here) in enumerate(zip(sizes, table.numpy(), strict=True)):
        if abs(own[k]) > _SILENT * np.abs(own).max():
            signs[k] = math.copysign(1.0, own[k])
        elif np.abs(total - size * here).max() < np.abs(total + size * here).max():
            signs[k] = -1.0
        total = total + signs[k] * size * here
    return signs


def _quadratic(deq: DEQ, kernel: Kernel, dimension: int | None, normalise: bool) -> Twin:
    """Workshop paper, Corollary 1: alpha = k(0) + k''(0)/(2d), beta = k'(0), mu = k(1) - k(0) - k'(0)."""
    size = whole("the quadratic twin depends on the dimension of the data, which", dimension)
    k0, k1, k2 = (float(v) for v in power_series(deq, 3, kernel))
    alpha, beta, mu = k0 + k2 / size, k1, float(sphere_diagonal(deq, kernel)) - k0 - k1
    if alpha < mu / size:
        raise InfeasibleMatchError(
            f"the quadratic twin needs alpha >= mu/d: alpha = {alpha:.6g} is below {mu / size:.6g} by "
            f"{mu / size - alpha:.3g}. Use family='hermite', which is exact"
        )
    full = kernel == "ntk"
    a2, a1 = math.sqrt(mu / (6.0 if full else 2.0)), math.sqrt(beta / (2.0 if full else 1.0))
    layer = Quadratic(a2, a1, math.sqrt(alpha - mu / size) - a2)
    mean, weight = layer.a + layer.c, 3.0 if full else 1.0
    got = (
        mean**2 + weight * 2.0 * layer.a**2 / size,
        (2.0 if full else 1.0) * layer.b**2,
        (6.0 if full else 2.0) * layer.a**2,
    )
    residual = max(abs(g - w) / max(abs(w), 1e-300) for g, w in zip(got, (alpha, beta, mu), strict=True))
    return Twin(
        deq,
        ENN([layer]),
        kernel,
        "quadratic",
        SphereCertificate(residual, None, normalise),
        reason=f"unit-norm inputs in dimension {size}: alpha, beta, mu of the high-dimensional equivalent",
    )


# ---- a long series as a table ----------------------------------------------------------------------------------


@checked
def tabulate(phi: ActivationLike, reach: float = 8.0, pieces: int = 2048) -> Activation:
    """The same function as a table on [-reach, reach], continued by straight lines: for use at finite width.

    The cost does not depend on phi; a sphere twin of 60 terms costs as much as one of 5. On the grid's interval the
    error is h^4 max|phi''''| / 384, h = 2 reach / pieces. Like every callable, the result pickles but is not written as
    JSON: save the exact twin and tabulate after loading.

    >>> fast = tabulate("tanh")
    >>> abs(float(fast(0.3) - activation("tanh")(0.3))) < 1e-10
    True
    """
    phi = activation(phi)
    pieces = whole("pieces", pieces, least=2)
    if not (math.isfinite(reach) and reach > 0):
        raise ActivationError(f"tabulate needs a positive reach, got {reach!r}")
    if any(abs(k) < reach for k in phi.kinks):
        raise ActivationError(f"{phi!r} has kinks in [-{reach}, {reach}]; a table is for smooth functions")
    table = CubicTable(phi, reach, pieces)
    # built directly: the checks of from_callable integrate to 1e-13, finer than a table is meant to be
    return CallableActivation(
        table,
        (-reach, reach),
        table.slope,
        table.slope_range,
        phi.parity,
        label=f"table of {type(phi).__name__}",
    )


class CubicTable:
    """Cubic Hermite interpolation of a function and its slope; once continuously differentiable everywhere."""

    def __init__(self, phi: Activation, reach: float, pieces: int) -> None:
        x = torch.linspace(-reach, reach, pieces + 1, dtype=torch.float64)
        self.reach, self.step = reach, 2.0 * reach / pieces
        y, m = phi(x), phi.derivative(x) * self.step
        rise = y[1:] - y[:-1]
        # per piece, the coefficients of 1, f, f^2, f^3 with f in [0, 1]
        self.cubics = torch.stack(
            [y[:-1], m[:-1], 3.0 * rise - 2.0 * m[:-1] - m[1:], m[:-1] + m[1:] - 2.0 * rise], dim=1
        )
        slopes = m / self.step
        self.ends = (float(slopes[0]), float(slopes[-1]))
        self.slope_range = (float(slopes.min()), float(slopes.max()))

    def _locate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        place = (x.clamp(-self.reach, self.reach) + self.reach) / self.step
        piece = place.detach().floor().clamp(0, len(self.cubics) - 1)
        rows = torch.nn.functional.embedding(piece.long(), self.cubics.to(x.device, x.dtype))
        return rows, place - piece

    def __call__(self, x: Tensor) -> Tensor:
        c, f = self._locate(x)
        inside = c[..., 0] + f * (c[..., 1] + f * (c[..., 2] + f * c[..., 3]))
        below, above = (x + self.reach).clamp(max=0.0), (x - self.reach).clamp(min=0.0)
        return inside + self.ends[0] * below + self.ends[1] * above

    def slope(self, x: Tensor) -> Tensor:
        """At the ends the cubic's slope is that of the outer line, so the clamped place is right outside as well."""
        c, f = self._locate(x)
        return (c[..., 1] + f * (2.0 * c[..., 2] + f * 3.0 * c[..., 3])) / self.step
