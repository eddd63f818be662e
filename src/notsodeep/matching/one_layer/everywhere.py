"""One layer for inputs of every norm, 0 to infinity: units of the DEQ with a Gaussian in the place of the feedback.

The pre-activation of a unit phi(P w.x + R w'.x + C w''.x + b beta) has the variance of the DEQ's at every norm. What
all inputs share of it (b, times a factor that is searched) and what is linear in the input (R) are read off the
DEQ's covariance (docs/one_layer.md, "All norms").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._chebyshev import nodes as chebyshev_nodes
from ..._chebyshev import to_coefficients
from ..._progress import track
from ...errors import InfeasibleMatchError
from ...kernels import diagonal, pairwise
from ...kernels.expectations import Layer
from ...kernels.pointwise import equilibrium_variance
from ...networks import DEQ, ENN, Kernel
from ...units import Feedback
from .._limits import LIMITS
from ..certificates import Supremum, Tried
from .bound import LayerDesign
from .covering import prove
from .orders import Array, vanishes_at_zero

FAMILY = "feedback"
_SPAN = 1e-3, 1e3  # norms: beyond them kernels are at their limits
_NORMS = (1.0 + chebyshev_nodes(65)) / (1.0 - chebyshev_nodes(65))
_SEARCHED = "no pair of inputs is more than a tenth worse than the worst that a search over norms and angles found"


def design(deq: Any, kernel: Kernel) -> LayerDesign:
    """Find the units whose largest error over a grid of norms and angles is smallest, and what a search says of them.

    The trained weights of the units bring Lambda Phidot to an NTK, where those of the DEQ bring the sum of a geometric
    series, Lambda Phidot / (1 - sigma_a2 Phidot). A learning rate and a factor of the norm make up for most of it.
    """
    if not deq.plain or deq.readout != "activation":
        raise InfeasibleMatchError(
            f"norms=(0, inf) is offered for a DEQ with one layer whose readout sees its activations, got {deq!r}. "
            "Give a range of norms that ends (matching.norm_range reads one off data)"
        )
    norms, angles = np.geomspace(*_SPAN, 13), np.linspace(0.0, np.pi, 7)
    place = np.stack([v.ravel() for v in np.meshgrid(norms, norms, angles, indexing="ij")])
    grid, shown = _Pairs(deq, kernel, place[:, place[0] <= place[1]]), "units for all norms"
    shares = (1.0,) if deq.odd else (1.0, 1.1, 1.15, 1.2, 1.25)  # odd activations have nothing to share but a bias
    rates = np.linspace(*LIMITS.rates, 17).round(2).tolist() if kernel == "ntk" else [0.0]
    layers = {share: _layer(deq, share) for share in shares}
    tried = [
        (error, share, rate)
        for share in track(shares, len(shares), shown)
        for error, rate in zip(grid.scaled_errors(layers[share], rates), rates, strict=True)
    ]
    _, share, rate = min(tried)
    layer = layers[share] if kernel == "ck" else _with_diagonal(grid, layers[share], rate)
    proof = _proof(grid, layer, rate)
    reason = "one kind of units for all norms: those of the DEQ with a Gaussian in the place of the feedback"
    return LayerDesign(layer, proof, (Tried(1, proof.bound, FAMILY),), reason, (rate, 1.0) if rate else None)


def _with_diagonal(grid: _Pairs, layer: Feedback, rate: float) -> Feedback:
    """Give the units the factor of the norm with which their kernel has the DEQ's diagonal."""
    squares = torch.from_numpy(_NORMS**2)
    readout, hidden = _shares(diagonal, layer, bool(rate), squares)
    (gain,) = _series((grid.diagonal(squares) / (readout + rate * hidden)).sqrt().numpy()[None], 1e-7)
    return replace(layer, gain=tuple(gain.tolist()))


def _series(values: Array, least: float) -> Array:
    """Return Chebyshev coefficients in (s - 1)/(s + 1) of rows of values at ``_NORMS``, to the last above ``least``."""
    coefficients = values @ to_coefficients(len(_NORMS)).T
    return np.asarray(coefficients[:, : int(np.flatnonzero(np.abs(coefficients).max(0) > least)[-1]) + 1])


def _proof(grid: _Pairs, layer: Feedback, rate: float) -> Supremum:
    """Return the bound that boxes prove, or what a search finds where they prove none."""
    errors = grid.errors(layer, rate)
    worst = int(np.argmax(errors))
    bound = prove(grid.deq, layer, float(errors[worst])) if grid.kernel == "ck" else math.inf
    if not math.isfinite(bound):
        return _search(grid, layer, rate)
    return Supremum(bound, float(errors[worst]), float(np.cos(grid.place[2, worst])))


def _layer(deq: DEQ, shared: float) -> Feedback:
    """Return the units with this factor of the shared part.

    Of the feedback, the part that is linear in the input has a direction of its own, and so has the rest.
    """
    s, squares = _NORMS, torch.from_numpy(_NORMS**2)
    q = equilibrium_variance(deq, squares)
    zero = torch.zeros_like(squares)
    apart = pairwise(deq, squares, squares, zero, ("ck",), check=False)["ck"]
    sigma_a2, sigma_b2, _ = deq.variances
    drive = sigma_b2 * squares
    common = torch.minimum(shared**2 * (sigma_a2 * apart + deq.drive(zero)), (q - drive).clamp_min(0.0))
    slope = sigma_a2 * Layer(deq.activation, q, q).both(common)[1]
    linear = torch.minimum(drive * slope / (1.0 - slope), q - drive - common).clamp_min(0.0)
    curved = (q - drive - common - linear).clamp_min(0.0)
    offset = 0.0 if vanishes_at_zero(deq) else 1.0
    rows = [linear.sqrt().numpy() / s, curved.sqrt().numpy() / s, common.sqrt().numpy() / (s + offset)]
    coefficients = _series(np.stack(rows if common.max() > 1e-12 * q.max() else rows[:2]), 1e-13)
    ends = coefficients.sum(1)
    coefficients[:, 0] -= np.where(np.abs(ends) < 1e-6, ends, 0.0)  # those of bounded activations vanish at infinity
    return Feedback(deq.activation, tuple(map(tuple, coefficients.tolist())), math.sqrt(sigma_b2), offset)


# ---- errors --------------------------------------------------------------------------------------------------


class _Pairs:
    """Pairs of inputs, given by both norms and the angle, with their exact kernels."""

    def __init__(self, deq: DEQ, kernel: Kernel, place: Array) -> None:
        self.deq, self.kernel, self.place = deq, kernel, place
        s, t, angle = place
        x, y, inner = (torch.from_numpy(v) for v in (s * s, t * t, s * t * np.cos(angle)))
        self.pairs = x, y, inner
        self.truth = pairwise(deq, x, y, inner, (kernel,), check=False)[kernel]
        self.scale = self.diagonal(torch.stack(self.pairs[:2])).prod(0).sqrt()

    def diagonal(self, squares: Tensor) -> Tensor:
        """Return k(x, x) at squared norms."""
        return diagonal(self.deq, squares, (self.kernel,), check=False)[self.kernel]

    def errors(self, layer: Feedback, rate: float = 0.0) -> Array:
        """Return |k - k_layer| / sqrt(k(x, x) k(y, y))."""
        readout, hidden = _shares(pairwise, layer, bool(rate), *self.pairs)
        return np.asarray((readout + rate * hidden - self.truth).abs() / self.scale)

    def scaled_errors(self, layer: Feedback, rates: Sequence[float]) -> list[float]:
        """Return the largest error at each rate, with a factor of the norm that gives the layer the diagonal."""
        readout, hidden = _shares(pairwise, layer, any(rates), *self.pairs)
        steady, moving = _shares(diagonal, layer, any(rates), torch.stack(self.pairs[:2]))
        scaled = [(readout + rate * hidden) / (steady + rate * moving).prod(0).sqrt() for rate in rates]
        return [float((kernel - self.truth / self.scale).abs().max()) for kernel in scaled]


def _shares(evaluate: Any, layer: Feedback, tangent: bool, *places: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shares of the readout and of the hidden weights in the kernel of a layer."""
    names = ("ck", "ntk") if tangent else ("ck",)
    kernels = evaluate(ENN([layer]), *places, names, check=False)
    return kernels["ck"], kernels[names[-1]] - kernels["ck"]


def _search(pairs: _Pairs, layer: Feedback, rate: float = 0.0) -> Supremum:
    """Search for the largest error, and return it with its cosine: pairs ever nearer to the worst."""
    rng = np.random.default_rng(0)
    errors = pairs.errors(layer, rate)
    for width in track((0.5, 0.15, 0.05), 3, "the worst pair of inputs"):
        near = np.repeat(pairs.place[:, np.argsort(errors)[-6:]], 8, axis=1)
        moves = width * rng.standard_normal(near.shape) * (np.arange(near.shape[1]) % 8 > 0)  # each stays once
        norms, angle = np.clip(near[:2] * np.exp(moves[:2]), *_SPAN), np.clip(near[2:] + moves[2:], 0.0, np.pi)
        pairs = _Pairs(pairs.deq, pairs.kernel, np.concatenate([norms, angle]))
        errors = pairs.errors(layer, rate)
    worst = int(np.argmax(errors))
    seen = float(errors[worst])
    return Supremum(1.1 * seen, seen, float(np.cos(pairs.place[2, worst])), _SEARCHED)
