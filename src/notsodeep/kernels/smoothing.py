"""E[phi(u) phi(v)] and E[phi'(u) phi'(v)] at all pairs of scales and many angles, for any function.

With rho = cos(angle) > 0 both variables share a part, u = s (sqrt(rho) Z + sqrt(1 - rho) A), and are independent given
it. So the expectation is that of F_s(Z) F_t(Z), where F_s is phi smoothed by noise of deviation s sqrt(1 - rho): one
product of matrices serves all pairs of scales. Nothing becomes narrow for nearly parallel points, where F_s is phi.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .._caches import cached
from ..activations import Activation
from ..activations.panels import panel_nodes
from ..errors import ConvergenceError
from ._limits import LIMITS
from .plane import Settled

_SPAN = 9.5  # standard deviations beyond which the normal density is below rounding
_NARROW = 3.5  # panels on which a normal density of deviation one is exact
_BROAD = 6.0  # panels on which functions smoothed by such a density are
_LONG = 6.0  # panels of a function on which the rule of Gauss and Hermite is exact, in deviations of the noise
_RIPPLE = torch.tensor([-9.0, -4.5, 0.0, 4.5, 9.0], dtype=torch.float64)


def pair_grid(phi: Activation, scales: Tensor, angles: Tensor) -> Tensor:
    """E[phi phi] and E[phi' phi'] at standard deviations (n,) and angles (m,) between the points: (2, n, n, m)."""
    smoothing = _smoothing(phi)
    out = torch.empty(2, len(scales), len(scales), len(angles), dtype=torch.float64)
    for k, angle in enumerate(angles.tolist()):
        near = 2.0 * math.sin(0.5 * min(angle, math.pi - angle)) ** 2  # 1 - |rho|
        shared, own = math.sqrt(1.0 - near), math.sqrt(near)
        z, weights = smoothing.outer(scales, shared, own)
        both = smoothing.at(shared * scales[:, None] * z, own * scales)
        other = both if angle <= 0.5 * math.pi else both.flip(2)  # the nodes are symmetric
        out[..., k] = (both * weights) @ other.mT
    return out


@cached(64)
def _smoothing(phi: Activation) -> _Smoothing:
    return _Smoothing(phi)


@cached(4)
def _gauss_hermite(order: int) -> tuple[Tensor, Tensor]:
    x, w = np.polynomial.hermite_e.hermegauss(order)
    return torch.from_numpy(x), torch.from_numpy(w / math.sqrt(2.0 * math.pi))


class _Smoothing:
    """Phi and phi' smoothed by normal noise."""

    def __init__(self, phi: Activation) -> None:
        self.phi, self.tails = phi, phi.tails()
        self.kinks = torch.tensor(phi.kinks, dtype=torch.float64)
        self.reach = math.inf if self.tails is None else self.tails.reach
        self.parts: list[Settled] | None = None
        if self.tails is not None:
            parts = ("value", phi), ("slope", phi.derivative)
            self.parts = [Settled(name, f, self.tails, phi.panels()) for name, f in parts]
        self._known: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._cuts: tuple[float, Tensor] = 0.0, torch.zeros(1, dtype=torch.float64)

    def cuts(self, reach: float) -> Tensor:
        """The sorted edges of the panels of the function up to there; beyond straight tails there are none."""
        if self._cuts[0] < min(reach, self.reach):
            far = min(2.0 * reach, self.reach)
            edges = torch.cat([self.phi.panels().edges(far), torch.zeros(1, dtype=torch.float64)])
            self._cuts = far, torch.unique(edges)
            if len(edges) > LIMITS.panels_of_a_grid:
                raise ConvergenceError(f"{self.phi!r} varies too fast at this scale")
        return self._cuts[1]

    # -- the shared variable ---------------------------------------------------------------------------------
    def outer(self, scales: Tensor, shared: float, own: float) -> tuple[Tensor, Tensor]:
        """Symmetric nodes of Z, and weights with its density, that resolve the smoothed functions of all scales."""
        low, high, blur = float(scales.min()) * shared, float(scales.max()) * shared, own / shared
        cuts = self.cuts(_SPAN * high)
        ends = torch.unique(cuts.abs())
        start, end = ends[:-1].numpy(), ends[1:].numpy()
        least = _BROAD * blur
        bends = torch.unique(self.kinks.abs())
        regions = [(float(c) / high - 9.0 * blur, float(c) / low + 9.0 * blur) for c in bends]
        alone = [i for i, (a, b) in enumerate(regions) if b - a > 3.0 * len(_RIPPLE) * len(scales) * least]
        edges = [0.0]
        step = 2.0
        while (z := edges[-1]) < _SPAN:
            step = min(2.0 * step, 2.0)
            while step > least:
                # the images of [z, z + step] under all scales are shorter than the panels that they meet
                seen = (start < (z + step) * high) & (end > z * low)
                most = np.minimum(high, end[seen] / z if z > 0.0 else high)
                short = float(((end - start)[seen] / most).min()) if seen.any() else 2.0
                bent = any(a < z + step and z < b for i, (a, b) in enumerate(regions) if i not in alone)
                if step <= short and not bent:
                    break
                step *= 0.5
            edges.append(min(z + max(step, min(least, 2.0)), _SPAN))
        places = [torch.tensor(edges, dtype=torch.float64)]
        for i in alone:  # the kinks of each scale
            at = float(bends[i]) / (scales * shared)
            places.append((at[:, None] + blur * _RIPPLE).abs().flatten())
        all_edges = torch.unique(torch.cat(places))
        z_nodes, weights = panel_nodes(all_edges[all_edges <= _SPAN])
        weights = weights * torch.exp(-0.5 * z_nodes * z_nodes) / math.sqrt(2.0 * math.pi)
        return torch.cat([-z_nodes.flip(0), z_nodes]), torch.cat([weights.flip(0), weights])

    # -- the functions given it ------------------------------------------------------------------------------
    def at(self, mean: Tensor, noise: Tensor) -> Tensor:
        """E[phi(mean + noise xi)] and the same of phi' at means (n, m) and deviations (n,): (2, n, m)."""
        out = torch.empty(2, *mean.shape, dtype=torch.float64)
        far, span = mean.abs(), _SPAN * noise[:, None]
        cuts = self.cuts(float((far + span).max()))
        straight = far >= self.reach + span
        # beyond the last panel that is short beside the noise, and away from kinks, functions are smooth
        short = torch.diff(cuts) < _LONG * noise[:, None]
        outer = torch.maximum(cuts[1:].abs(), cuts[:-1].abs())
        last = functional.pad(short * outer, (1, 0)).amax(1, keepdim=True)  # no panels: nothing is short
        rough = (last > 0.0) & (far < last + span) & ~straight
        near = [(mean - c).abs() < span for c in self.kinks]
        smooth = ~functools.reduce(torch.logical_or, near, rough | straight)
        spread = noise[:, None].expand_as(mean)
        if bool(straight.any()):
            assert self.parts is not None
            out[:, straight] = torch.stack([part.line(mean[straight]) for part in self.parts])
        if bool(smooth.any()):
            xi, weights = _gauss_hermite(40)
            x = torch.addcmul(mean[smooth][:, None], spread[smooth][:, None], xi)
            out[:, smooth] = torch.stack([self.phi(x) @ weights, self.phi.derivative(x) @ weights]).detach()
        left = ~(straight | smooth)
        if self.parts is not None:
            out[:, left] = torch.stack([part.line_mean(mean[left], spread[left]) for part in self.parts])
        else:
            out[:, left] = 0.0
        for i, width in enumerate(noise.tolist()):
            for mask in (rough[i], *(one[i] & ~rough[i] for one in near)):
                if bool(mask.any()):
                    out[:, i, mask] += self._rest(mean[i, mask], width)
        return out

    def _rest(self, mean: Tensor, noise: float) -> Tensor:
        """What phi and phi' have beside their lines, if they settle on such, by nodes that all means share."""
        span = _SPAN * noise
        low, high = float(mean.min()) - span, float(mean.max()) + span
        far = min(max(-low, high), self.reach)
        t, values = self._nodes(math.floor(math.log2(noise)), math.ceil(math.log2(far)))
        first, last = torch.searchsorted(t, torch.tensor([low, high], dtype=torch.float64)).tolist()
        t, values = t[first:last] / noise, values[first:last] / (math.sqrt(2.0 * math.pi) * noise)
        found = [
            (t - part[:, None]).square_().mul_(-0.5).exp_() @ values
            for part in (mean / noise).split(max(1, (1 << 17) // max(1, len(t))))
        ]
        return torch.cat(found).T

    def _nodes(self, noise: int, far: int) -> tuple[Tensor, Tensor]:
        """Nodes up to 2^far, and what phi and phi' have there beside their lines, with weights, (nodes, 2).

        They resolve a normal density of deviation 2^noise.
        """
        if (noise, far) not in self._known:
            end = min(2.0**far, self.reach)
            cuts = self.cuts(end)
            edges = torch.unique(cuts.clamp(-end, end)).numpy()
            counts = np.ceil(np.diff(edges) / (_NARROW * 2.0**noise)).astype(int)
            starts = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            fine = np.repeat(edges[:-1], counts) + np.repeat(np.diff(edges) / counts, counts) * starts
            t, weights = panel_nodes(torch.from_numpy(np.append(fine, edges[-1])))
            functions = (self.phi, self.phi.derivative) if self.parts is None else [part.rest for part in self.parts]
            values = torch.stack([function(t).detach() for function in functions]) * weights
            size = values.abs()
            keep = (size > 1e-18 * functional.pad(size, (1, 0)).amax(1, keepdim=True)).any(0)  # lines have no panels
            self._known[noise, far] = t[keep], values[:, keep].T.contiguous()
        return self._known[noise, far]
