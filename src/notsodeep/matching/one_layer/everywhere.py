"""One layer for inputs of every norm, 0 to infinity: units of the DEQ with a Gaussian in the place of the feedback.

The pre-activation of a DEQ has the covariance Lambda(s, t, rho). That of a unit phi(P w.x + R w'.x + b beta) has the
same variance at every norm; what all inputs share of it (b) and how far the rest turns between two norms (P against R)
are read off Lambda, each times a factor near one that is searched (docs/one_layer.md, "All norms").
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..._chebyshev import nodes as chebyshev_nodes
from ..._chebyshev import to_coefficients
from ..._progress import track
from ...activations import Feedback
from ...kernels import diagonal, pairwise
from ...kernels.pointwise import equilibrium_variance
from ...networks import DEQ, ENN
from ..certificates import Proof, Tried
from .bound import LayerDesign
from .orders import Array, vanishes_at_zero

FAMILY = "feedback"
_SEARCHED = "no pair of inputs is more than a tenth worse than the worst that a search over norms and angles found"


def design(deq: DEQ) -> LayerDesign:
    """The units whose largest error over a grid of norms and angles is smallest, with what a search finds of them."""
    norms, angles = np.geomspace(1e-3, 1e3, 13), np.linspace(0.0, np.pi, 7)
    s, t, angle = (v.ravel() for v in np.meshgrid(norms, norms, angles, indexing="ij"))
    grid = _Pairs(deq, *(v[s <= t] for v in (s, t, angle)))
    shares = (1.0,) if deq.odd else (1.0, 1.1, 1.2, 1.35)  # odd activations have nothing to share but a bias
    shown = "units for all norms"
    share = min(track(shares, len(shares), shown), key=lambda f: float(grid.errors(_layer(deq, f, 1.0)).max()))
    turn = min(track((0.95, 1.0, 1.05), 3, shown), key=lambda f: float(grid.errors(_layer(deq, share, f)).max()))
    layer = _layer(deq, share, turn)
    seen, at = _search(grid, layer)
    proof = Proof(1.1 * seen, seen, at, _SEARCHED)
    reason = "one kind of units for all norms: those of the DEQ with a Gaussian in the place of the feedback"
    return LayerDesign(layer, proof, (Tried(1, proof.bound, FAMILY),), reason)


def _layer(deq: DEQ, shared: float, turn: float) -> Feedback:
    """The units with these factors of the shared part and of the angle between drive and feedback."""
    x = chebyshev_nodes(33)
    s = (1.0 + x) / (1.0 - x)
    squares = torch.from_numpy(s**2)
    q = equilibrium_variance(deq, squares).numpy()
    zero = torch.zeros_like(squares)
    apart = pairwise(deq, squares, squares, zero, ("ck",), check=False)["ck"]
    sigma_a2, sigma_b2, _ = deq.variances
    drive = sigma_b2 * s**2
    common = np.clip(shared**2 * (sigma_a2 * apart + deq.drive(zero)).numpy(), 0.0, np.maximum(q - drive, 0.0))
    angle = turn * np.arctan2(np.sqrt(np.maximum(q - drive - common, 0.0)), np.sqrt(drive))
    offset = 0.0 if vanishes_at_zero(deq) else 1.0
    size = np.sqrt(q - common) / s
    rows = [size * np.cos(angle), size * np.sin(angle), np.sqrt(common) / (s + offset)]
    found = np.stack(rows if common.max() > 1e-12 * q.max() else rows[:2]) @ to_coefficients(len(x)).T
    found[np.abs(found) < 1e-14] = 0.0
    return Feedback(deq.activation, tuple(map(tuple, found.tolist())), offset)


# ---- errors --------------------------------------------------------------------------------------------------


class _Pairs:
    """Pairs of inputs with their exact kernels."""

    def __init__(self, deq: DEQ, s: Array, t: Array, angle: Array) -> None:
        self.deq, self.place = deq, np.stack([s, t, angle])
        self.sx, self.sy, self.dot = (torch.from_numpy(v) for v in (s * s, t * t, s * t * np.cos(angle)))
        own = diagonal(deq, torch.stack([self.sx, self.sy]), ("ck",), check=False)["ck"]
        self.truth, self.scale = self._kernel(deq), (own[0] * own[1]).sqrt()

    def _kernel(self, network: DEQ | ENN) -> Tensor:
        return pairwise(network, self.sx, self.sy, self.dot, ("ck",), check=False)["ck"]

    def errors(self, layer: Feedback) -> Array:
        """|k - k_layer| / sqrt(k(x, x) k(y, y))."""
        return np.asarray((self._kernel(ENN([layer])) - self.truth).abs() / self.scale)


def _search(pairs: _Pairs, layer: Feedback) -> tuple[float, float]:
    """The largest error that is found, and its cosine: pairs ever nearer to the worst."""
    rng = np.random.default_rng(0)
    found = pairs.errors(layer)
    for width in track((0.5, 0.15, 0.05), 3, "the worst pair of inputs"):
        near = np.repeat(pairs.place[:, np.argsort(found)[-6:]], 8, axis=1)
        moves = width * rng.standard_normal(near.shape) * (np.arange(near.shape[1]) % 8 > 0)  # each stays once
        s, t = near[:2] * np.exp(moves[:2])
        pairs = _Pairs(pairs.deq, s, t, np.clip(near[2] + moves[2], 0.0, np.pi))
        found = pairs.errors(layer)
    worst = int(np.argmax(found))
    return float(found[worst]), float(np.cos(pairs.place[2, worst]))
