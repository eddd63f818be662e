"""E[f(u) g(v)] of functions that settle on straight lines, at scales far beyond their features.

f is split into its two lines, which meet (or jump) at zero, and a rest that vanishes beyond a known distance. Lines
against lines have closed forms; lines against a rest leave a one-dimensional integral, because the mean of a line over
u given v is known; rest against rest is an integral over a small square.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from ..activations.panels import Panels, Tails, panel_nodes
from . import plane


class Settled(Panels):
    """A function with its lines b + a x on either side of zero, and the panels of what is left of it."""

    def __init__(self, part: str, function: plane.Function, tails: Tails, panels: Panels) -> None:
        """``part`` says which of phi, phi', phi'', x phi', x phi'' the function is: its lines follow from phi's."""
        (b0, a0), (b1, a1) = tails.left, tails.right
        lines = {"value": ((b0, a0), (b1, a1)), "slope": ((a0, 0.0), (a1, 0.0)), "x_slope": ((0.0, a0), (0.0, a1))}
        self.left, self.right = lines.get(part, ((0.0, 0.0), (0.0, 0.0)))
        self.function, self.reach, self.panels = function, tails.reach, panels
        self.kinks = tuple(sorted({0.0, *panels.kinks}))  # at zero the lines meet

    def edges(self, reach: float, shared: bool = False) -> Tensor:
        """Panel edges of the rest, which vanishes beyond its own reach."""
        return torch.cat([self.panels.edges(min(reach, self.reach)), torch.zeros(1, dtype=torch.float64)])

    @functools.cached_property
    def unit(self) -> float:
        """The first panel beside zero: the length on which the function varies; where it bends says nothing of that."""
        cuts = self.edges(self.reach)
        smooth = cuts[~torch.isin(cuts, torch.tensor(self.kinks, dtype=torch.float64))].abs()
        return float(torch.cat([smooth[smooth > 0], torch.tensor([self.reach], dtype=torch.float64)]).min())

    @functools.cached_property
    def inside(self) -> Tensor:
        """Edges of panels within reach; none is longer than four units where the rest is not tiny yet."""
        near = min(self.reach, 16.0 * self.unit)
        even = torch.linspace(-near, near, 2 * math.ceil(near / (4.0 * self.unit)) + 1, dtype=torch.float64)
        return torch.unique(torch.cat([even, self.edges(self.reach)]).clamp(-self.reach, self.reach))

    @functools.cached_property
    def nodes(self) -> tuple[Tensor, Tensor]:
        """Nodes of the rest, and its values times their weights."""
        x, weights = panel_nodes(self.inside, 16)
        values = self.rest(x) * weights
        keep = values.abs() > 1e-18 * values.abs().max()
        return x[keep], values[keep]

    def rest(self, x: Tensor) -> Tensor:
        """The function minus its lines."""
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
    # a normal density of this width is resolved by the longest panels; narrower ones need rules that follow it
    wide, end = torch.minimum(sx, sy) * spread >= 0.8 * max(f.unit, g.unit), rho.abs() == 1.0
    if bool(wide.any()):
        out[wide] += _square(f, g, sx[wide], sy[wide], rho[wide], spread[wide])
    narrow = plane.polar if f.kinks == (0.0,) else plane.conditional
    for mask, rule in ((~wide & end, plane.ridge), (~wide & ~end, narrow)):
        if bool(mask.any()):
            out[mask] += rule(f.rest, g.rest, f, qx[mask], qy[mask], rho[mask])
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
    for a, b, r, s, w in plane.chunks(20 * (2 * levels + len(g.inside)), sx, sy, rho, spread, blur):
        near = (w[:, None] * steps).clamp_max(g.reach)
        cuts = torch.cat([g.inside.expand(len(r), -1), near, -near], dim=1).sort(dim=1).values
        t, weights = panel_nodes(cuts)
        weights = weights * torch.exp(-0.5 * (t / b[:, None]) ** 2) / (math.sqrt(2.0 * math.pi) * b[:, None])
        mean = f.line_mean((r * a / b)[:, None] * t, (a * s)[:, None])
        out.append((g.rest(t) * mean * weights).sum(-1))
    return torch.cat(out)


def _square(f: Settled, g: Settled, sx: Tensor, sy: Tensor, rho: Tensor, spread: Tensor) -> Tensor:
    """Rest against rest where the density is smooth on the panels: a product rule."""
    (s, left), (t, right) = f.nodes, g.nodes
    out = []
    for a, b, r, w in plane.chunks(len(s) * len(t), sx, sy, rho, spread):
        x, y = s / (a * w)[:, None], t / (b * w)[:, None]
        exponent = (r[:, None] * x)[:, :, None] * y[:, None, :]
        exponent.sub_((0.5 * x * x)[:, :, None]).sub_((0.5 * y * y)[:, None, :])
        out.append(((exponent.exp_() @ right) @ left) / (2.0 * math.pi * a * b * w))
    return torch.cat(out)
