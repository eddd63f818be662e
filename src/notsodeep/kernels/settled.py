"""E[f(u) g(v)] of functions that settle on straight lines, at scales far beyond their features.

f is split into its two lines, which meet (or jump) at zero, and a rest that vanishes beyond a known distance. Lines
against lines have closed forms; lines against a rest leave a one-dimensional integral, because the mean of a line over
u given v is known; rest against rest is an integral over a small square. The cost does not grow with the scale.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..activations import Parity
from ..activations.panels import Panels, Tails, panel_nodes
from .plane import RIPPLE, SPAN, afford, chunks, smoothed

Function = Callable[[Tensor], Tensor]
_LONGEST = 4.0  # panels of the rests, in units of the length on which the function varies
_RESOLVED = 0.8  # a normal density of this width, in the same units, is resolved by the longest panels


@dataclass(frozen=True)
class Settled:
    """A function with its lines b + a x on either side of zero, and the panels of what is left of it."""

    function: Function
    left: tuple[float, float]
    right: tuple[float, float]
    reach: float
    kinks: tuple[float, ...]
    panels: Panels
    parity: Parity | None

    @staticmethod
    def of(part: str, function: Function, tails: Tails, panels: Panels, parity: Parity | None) -> Settled:
        """``part`` says which of phi, phi', phi'', x phi', x phi'' the function is: its lines follow from phi's."""
        (b0, a0), (b1, a1) = tails.left, tails.right
        lines = {"value": ((b0, a0), (b1, a1)), "slope": ((a0, 0.0), (a1, 0.0)), "x_slope": ((0.0, a0), (0.0, a1))}
        left, right = lines.get(part, ((0.0, 0.0), (0.0, 0.0)))
        flips: dict[Parity | None, Parity | None] = {"odd": "even", "even": "odd", None: None}
        parity = flips[parity] if part in ("slope", "x_curvature") else parity
        return Settled(function, left, right, tails.reach, tuple(sorted({0.0, *panels.kinks})), panels, parity)

    @functools.cached_property
    def edges(self) -> Tensor:
        """Of the panels within reach; none longer than allowed where the rest is not tiny yet."""
        near = min(self.reach, 4.0 * _LONGEST * self.unit)
        even = torch.linspace(-near, near, 2 * math.ceil(near / (_LONGEST * self.unit)) + 1, dtype=torch.float64)
        cuts = torch.cat([even, self.panels.edges(self.reach), torch.tensor(self.kinks, dtype=torch.float64)])
        return torch.unique(cuts.clamp(-self.reach, self.reach))

    @functools.cached_property
    def unit(self) -> float:
        """The first panel beside zero: the length on which the function varies; where it bends says nothing of that."""
        cuts = self.panels.edges(self.reach)
        smooth = cuts[~torch.isin(cuts, torch.tensor(self.kinks, dtype=torch.float64))].abs()
        return float(torch.cat([smooth[smooth > 0], torch.tensor([self.reach], dtype=torch.float64)]).min())

    @functools.cached_property
    def shortest(self) -> float:
        return float(self.edges.diff().min())

    @functools.cached_property
    def nodes(self) -> tuple[Tensor, Tensor]:
        """Nodes of the rest, and its values times their weights."""
        x, weights = panel_nodes(self.edges, 16)
        values = self.rest(x) * weights
        keep = values.abs() > 1e-18 * values.abs().max()
        return x[keep], values[keep]

    def rest(self, x: Tensor) -> Tensor:
        """f minus its lines."""
        below, above = (b + a * x if a else torch.full_like(x, b) for b, a in (self.left, self.right))
        return self.function(x).detach() - torch.where(x > 0, above, below)

    def line_mean(self, mean: Tensor, spread: Tensor) -> Tensor:
        """E of the lines at mean + spread xi."""
        z = (mean / spread.clamp_min(1e-300)).clamp(-40.0, 40.0)
        up, down = 0.5 * torch.erfc(-z / math.sqrt(2.0)), 0.5 * torch.erfc(z / math.sqrt(2.0))
        bump = spread * torch.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        (b0, a0), (b1, a1) = self.left, self.right
        return a1 * (mean * up + bump) + b1 * up + a0 * (mean * down - bump) + b0 * down


def settled_pair(f: Settled, g: Settled, qx: Tensor, qy: Tensor, rho: Tensor) -> Tensor:
    """E[f(u) g(v)] at flat variances and correlations."""
    sx, sy = qx.sqrt(), qy.sqrt()
    spread = torch.sqrt((1.0 - rho) * (1.0 + rho))
    out = _lines(f, g, sx, sy, rho, spread)
    out = out + _line_and_rest(f, g, sx, sy, rho, spread) + _line_and_rest(g, f, sy, sx, rho, spread)
    wide = torch.minimum(sx, sy) * spread >= _RESOLVED * max(f.unit, g.unit)
    for mask, method in ((wide, _square), (~wide, _strip)):
        if bool(mask.any()):
            out[mask] += method(f, g, sx[mask], sy[mask], rho[mask], spread[mask])
    return out


def _lines(f: Settled, g: Settled, sx: Tensor, sy: Tensor, rho: Tensor, spread: Tensor) -> Tensor:
    """Lines against lines: orthants, half means and arc cosines."""
    angle = torch.atan2(spread, rho)  # between the points: exact near both ends
    same, other = 0.5 - 0.5 * angle / math.pi, 0.5 * angle / math.pi
    bend = sx * sy / (2.0 * math.pi)
    along, against = bend * (spread + (math.pi - angle) * rho), bend * (spread - angle * rho)
    half_x, half_y = (s / (2.0 * math.sqrt(2.0 * math.pi)) for s in (sx, sy))
    (b0, a0), (b1, a1) = f.left, f.right
    (d0, c0), (d1, c1) = g.left, g.right
    total = (b1 * d1 + b0 * d0) * same + (b1 * d0 + b0 * d1) * other
    total = total + (a1 * c1 + a0 * c0) * along - (a1 * c0 + a0 * c1) * against
    total = total + half_x * ((a1 * d1 - a0 * d0) * (1.0 + rho) + (a1 * d0 - a0 * d1) * (1.0 - rho))
    return total + half_y * ((b1 * c1 - b0 * c0) * (1.0 + rho) + (b0 * c1 - b1 * c0) * (1.0 - rho))


def _line_and_rest(f: Settled, g: Settled, sx: Tensor, sy: Tensor, rho: Tensor, spread: Tensor) -> Tensor:
    """E[line_f(u) rest_g(v)]: the mean of the line over u given v turns at v = 0, on the length of its blur."""
    if f.left == f.right == (0.0, 0.0):
        return torch.zeros_like(rho)
    blur = (sy * spread).clamp_min(1e-30 * sy)
    levels = min(60, max(1, math.ceil(math.log2(float((g.reach / blur).max()) + 1.0)) + 2))
    steps = 2.0 ** torch.arange(-1, levels, dtype=torch.float64)
    out = []
    for a, b, r, s, w in chunks(20 * (2 * levels + len(g.edges)), sx, sy, rho, spread, blur):
        near = (w[:, None] * steps).clamp_max(g.reach)
        cuts = torch.cat([g.edges.expand(len(r), -1), near, -near], dim=1).sort(dim=1).values
        t, weights = panel_nodes(cuts)
        weights = weights * torch.exp(-0.5 * (t / b[:, None]) ** 2) / (math.sqrt(2.0 * math.pi) * b[:, None])
        mean = f.line_mean((r * a / b)[:, None] * t, (a * s)[:, None])
        out.append((g.rest(t) * mean * weights).sum(-1))
    return torch.cat(out)


def _square(f: Settled, g: Settled, sx: Tensor, sy: Tensor, rho: Tensor, spread: Tensor) -> Tensor:
    """Rest against rest where the density is smooth on the panels: a product rule."""
    (s, left), (t, right) = f.nodes, g.nodes
    out = []
    for a, b, r, w in chunks(len(s) * len(t), sx, sy, rho, spread):
        x, y = s / (a * w)[:, None], t / (b * w)[:, None]
        exponent = (r[:, None] * x)[:, :, None] * y[:, None, :]
        exponent.sub_((0.5 * x * x)[:, :, None]).sub_((0.5 * y * y)[:, None, :])
        out.append(((exponent.exp_() @ right) @ left) / (2.0 * math.pi * a * b * w))
    return torch.cat(out)


def _strip(f: Settled, g: Settled, sx: Tensor, sy: Tensor, rho: Tensor, spread: Tensor) -> Tensor:
    """Rest against rest near rho = +-1: panels in the wider variable, then in the other one given it."""
    out = torch.empty_like(rho)
    first = sx >= sy
    for mask, args in ((first, (f, g, sx, sy)), (~first, (g, f, sy, sx))):
        if bool(mask.any()):
            out[mask] = _ordered_strip(*args[:2], *(part[mask] for part in (*args[2:], rho, spread)))
    return out


def _ordered_strip(f: Settled, g: Settled, sx: Tensor, sy: Tensor, rho: Tensor, spread: Tensor) -> Tensor:
    sigma = (sy * spread).clamp_min(1e-30 * g.reach)  # beside what it blurs: at rho = +-1 there is none
    step = min(2.25, max(0.05, 2.0 * g.shortest / float(sigma.max())))
    base = torch.linspace(-SPAN, SPAN, 1 + math.ceil(2 * SPAN / step), dtype=torch.float64)
    kinks = torch.tensor(g.kinks, dtype=torch.float64)
    half = f.parity is not None and f.parity == g.parity  # the integrand is even in u
    low = 0.0 if half else -f.reach
    mine, theirs, bends = (v[v >= 0] if half else v for v in (f.edges, g.edges, kinks))
    panels = (len(mine) + len(theirs) + len(RIPPLE) * len(bends)) * (len(base) + len(kinks))
    afford(16 * 10 * panels, len(rho), float(sx.max()))
    out = []
    for a, b, r, w in chunks(16 * 10 * panels, sx, sy, rho, sigma):
        turn = (a / (r * b))[:, None]  # where v is expected to be 1
        side = turn.abs() if half else turn
        blurred = (bends[:, None] + w[:, None, None] * RIPPLE).flatten(1)
        cuts = torch.cat([mine.expand(len(r), -1), theirs * side, blurred * side], dim=1).clamp(low, f.reach)
        s, outer = panel_nodes(cuts.sort(dim=1).values, 16)
        outer = outer * torch.exp(-0.5 * (s / a[:, None]) ** 2) / (math.sqrt(2.0 * math.pi) * a[:, None])
        inner = smoothed(g.rest, kinks, base, s / turn, w[:, None], 10)
        out.append((2.0 if half else 1.0) * (f.rest(s) * inner * outer).sum(-1))
    return torch.cat(out)
