"""Two-dimensional Gaussian quadrature of f(u) g(v), for what neither closed forms nor series reach.

Each rule is exact to rounding on its class, for every correlation up to +-1: :func:`polar` for kinks only at zero,
which are rays in polar coordinates; :func:`conditional` for kinks anywhere; :func:`piecewise_linear`, where only the
kinks contribute; :func:`settled_pair` at scales far beyond the features of functions that settle on straight lines.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from scipy.special import owens_t
from torch import Tensor

from ..activations.forms import Function
from ..activations.panels import Panels, Tails, panel_nodes
from ..errors import ConvergenceError, warn
from ._limits import LIMITS

_SPAN = 9.0  # standard deviations beyond which the normal density is below rounding
_ORDER = 16  # of the rules on panels
_RIPPLE = torch.tensor([-8.0, -5.0, -3.0, -1.5, 0.0, 1.5, 3.0, 5.0, 8.0], dtype=torch.float64)
"""Edges of panels around a kink that is blurred, in units of the blur."""


def chunks(cost: int, *columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Pairs in portions, ``cost`` nodes each, that fit into the memory that is allowed."""
    size = max(1, LIMITS.nodes_at_once // max(1, cost))
    yield from zip(*(column.split(size) for column in columns), strict=True)


def normal_panels(edges: Sequence[Tensor], span: float, order: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the normal density on panels between all these edges (..., m), within the span."""
    shape = torch.broadcast_shapes(*(part.shape[:-1] for part in edges))
    cuts = torch.cat([part.expand(*shape, -1) for part in edges], dim=-1).clamp_(-span, span)
    nodes, weights = panel_nodes(cuts.sort(dim=-1).values, order)
    density = (nodes * nodes).mul_(-0.5).exp_()
    return nodes, density.mul_(weights).div_(math.sqrt(2.0 * math.pi))


def smoothed(g: Function, cuts: Tensor, base: Tensor, mean: Tensor, spread: Tensor, order: int) -> Tensor:
    """E[g(mean + spread xi)], elementwise, for a function with rough points ``cuts``; ``base``: of panels in xi."""
    mean, spread = mean[..., None], spread[..., None]
    z, weights = normal_panels((base, (cuts - mean) / spread), _SPAN, order)
    return (g(torch.addcmul(mean, spread, z)).detach() * weights).sum(-1)


def _grading(scale: float, panels: Panels) -> tuple[int, int]:
    """How many halvings towards zero, and how many pieces of each, resolve a function seen at this scale."""
    cuts = panels.edges(9.0 * scale).unique()
    positive = cuts[cuts >= 0]
    first = float(positive[1]) if len(positive) > 1 else scale
    levels = max(0, math.ceil(math.log2(scale / first))) if scale > 2.0 * first else 0
    ratio = (positive[2:] - positive[1:-1]) / positive[2:]
    # a halving panel is half as long as its far end
    return levels, max(1, math.ceil(0.25 / float(ratio.min()))) if len(ratio) else 1


def _subdivided(edges: Sequence[float], pieces: int) -> Tensor:
    cuts = [a + (b - a) * i / pieces for a, b in itertools.pairwise(edges) for i in range(pieces)]
    return torch.tensor([*cuts, edges[-1]], dtype=torch.float64)


def check_cost(nodes: int, pairs: int, scale: float) -> None:
    """Refuse pairs that cost too much, and announce many that are merely slow."""
    if nodes > LIMITS.nodes_of_a_pair:
        raise ConvergenceError(
            f"a pair of inputs at scale {scale:.4g} would take {nodes:.1e} evaluations of this activation, which "
            "varies too fast there; scale the inputs down"
        )
    if nodes * pairs > LIMITS.slow_evaluations:
        warn(
            f"pairs of long inputs take more than {LIMITS.slow_evaluations:.0e} evaluations of this activation at a "
            "time: neither series nor closed forms reach so far; scaled down they would be quick"
        )


def polar(f: Function, g: Function, panels: Panels, qx: Tensor, qy: Tensor, rho: Tensor) -> Tensor:
    """E[f(u) g(v)] with u = sqrt(qx) R cos(w), v = sqrt(qy) R cos(w - beta), cos(beta) = rho."""
    octave = torch.maximum(qx, qy).sqrt().log2().ceil()
    out = torch.empty_like(rho)
    for one in octave.unique():  # what is seen at a smaller scale needs fewer panels
        which = (octave == one).nonzero().squeeze(1)
        scale = float(torch.maximum(qx[which].max(), qy[which].max())) ** 0.5
        radius, radial, within, share = _polar_rule(scale, panels)
        cost = 4 * len(within) * len(radius)
        check_cost(cost, len(which), scale)
        for part, x, y, r in chunks(cost, which, qx[which].sqrt(), qy[which].sqrt(), rho[which]):
            u, v, weight = _sectors(torch.acos(r), within, share)
            plane = f(x[:, None, None] * u[..., None] * radius) * g(y[:, None, None] * v[..., None] * radius)
            out[part] = ((plane * radial).sum(-1) * weight).sum(-1)
    return out


def _polar_rule(scale: float, panels: Panels) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Radii and their weights, and the places and weights of angles within a sector."""
    levels, pieces = _grading(scale, panels)
    # many levels mean that what is felt at all lies far beyond the first features: lower orders are exact there
    orders = (16, 20) if levels < 4 else (12, 14)
    steps = [2.0**-j for j in range(levels, -1, -1)]
    radius, radial = panel_nodes(_subdivided([0.0, *steps, 2.0, 3.5, 5.5, 8.0, 11.0], pieces), orders[0])
    radial = radial * radius * torch.exp(-0.5 * radius * radius) / (2.0 * math.pi)
    graded = [0.5 * s for s in steps]
    cuts = _subdivided([0.0, *graded, *(1.0 - s for s in reversed(graded[:-1])), 1.0], pieces)
    return radius, radial, *panel_nodes(cuts, orders[1])


def _sectors(beta: Tensor, within: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Between the rays u = 0 and v = 0: cosines of either side and weights, for each angle beta between the points."""
    lengths = torch.stack([beta, math.pi - beta, beta, math.pi - beta], dim=1)
    starts = torch.stack([torch.zeros_like(beta), beta, torch.full_like(beta, math.pi), math.pi + beta], dim=1)
    # measured from the ray v = 0 behind u = 0, so that no large angle is subtracted near rho = 1
    angle = (starts[..., None] + lengths[..., None] * within).flatten(1)
    # cos(w), w = angle - pi/2
    return torch.sin(angle), torch.sin(angle - beta[:, None]), (lengths[..., None] * share).flatten(1)


def conditional(f: Function, g: Function, panels: Panels, qx: Tensor, qy: Tensor, rho: Tensor) -> Tensor:
    """E[f(u) g(v)], u = sqrt(qx) X, v given X normal with mean sqrt(qy) rho X and variance qy (1 - rho^2)."""
    scale = float(torch.maximum(qx.max(), qy.max())) ** 0.5
    cuts = panels.edges(_SPAN * scale).unique()
    kinks = torch.tensor(panels.kinks, dtype=torch.float64)
    base = torch.linspace(-_SPAN, _SPAN, 13, dtype=torch.float64)
    cost = _ORDER**2 * (len(base) + 2 * len(cuts) + 9 * len(kinks)) * (len(base) + len(cuts))
    check_cost(cost, len(rho), scale)
    out = []
    for x, y, r in chunks(cost, qx, qy, rho):
        sx, sy = x.sqrt().clamp_min(1e-150)[:, None], y.sqrt().clamp_min(1e-150)[:, None]
        spread = torch.sqrt(((1.0 - r) * (1.0 + r)).clamp_min(1e-32))[:, None]
        # g smoothed over v | u still bends near its kinks, on the length of the smoothing
        turn = torch.where(r.abs() < 1e-3, 1.0, r)[:, None]
        blurred = ((kinks[:, None] / sy[:, None] + spread[:, None] * _RIPPLE).flatten(1)) / turn
        outer, weight = normal_panels((base, cuts / sx, cuts / sy / turn, blurred), _SPAN, _ORDER)
        inner = smoothed(g, cuts, base, sy * r[:, None] * outer, sy * spread, _ORDER)
        out.append((f(sx * outer).detach() * inner * weight).sum(-1))
    return torch.cat(out)


def on_line(f: Function, g: Function, panels: Panels, qx: Tensor, qy: Tensor, rho: Tensor) -> Tensor:
    """E[f(u) g(v)] where rho = +-1: one variable is a multiple of the other."""
    cuts = panels.edges(_SPAN * float(torch.maximum(qx.max(), qy.max())) ** 0.5).unique()
    base = torch.linspace(-_SPAN, _SPAN, 13, dtype=torch.float64)
    out = []
    for x, y in chunks(_ORDER * (len(base) + 2 * len(cuts)), qx.sqrt(), rho * qy.sqrt()):
        sx, sy = x[:, None], y[:, None]
        xi, weights = normal_panels((base, cuts / sx, cuts / sy), _SPAN, _ORDER)
        out.append((f(sx * xi).detach() * g(sy * xi).detach() * weights).sum(-1))
    return torch.cat(out)


def shifted_mean(g: Function, panels: Panels, mean: Tensor, spread: Tensor) -> Tensor:
    """E[g(mean + spread xi)], elementwise."""
    cuts = panels.edges(float((mean.abs() + _SPAN * spread).max())).unique()
    base = torch.linspace(-_SPAN, _SPAN, 19, dtype=torch.float64)
    parts = chunks(_ORDER * (len(base) + len(cuts)), mean, spread.clamp_min(1e-150))
    return torch.cat([smoothed(g, cuts, base, centre, scale, _ORDER) for centre, scale in parts])


def piecewise_linear(
    kinks: Sequence[float], bends: Sequence[float], qx: Tensor, qy: Tensor, rho: Tensor
) -> tuple[Tensor, Tensor]:
    """What the kinks add to E[phi phi] and E[phi' phi'] beyond their values at rho = 0 (and the linear term)."""
    sx, sy = qx.sqrt(), qy.sqrt()
    total, slope, known = torch.zeros_like(rho), torch.zeros_like(rho), {}
    for (c, d), (e, f) in itertools.product(zip(kinks, bends, strict=True), repeat=2):
        # (x - c)_+ and (c - x)_+ differ by a line, so that both kinks may count from zero outwards
        sign = math.copysign(1.0, c) * math.copysign(1.0, e)
        if (abs(c), abs(e), sign) not in known:
            known[abs(c), abs(e), sign] = _outwards(abs(c) / sx, abs(e) / sy, sign * rho)
        value, steep = known[abs(c), abs(e), sign]
        total, slope = total + d * f * value, slope + d * f * sign * steep
    return sx * sy * total, slope


def _outwards(h: Tensor, k: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """E[(X - h)_+ (Y - k)_+] and P(X > h, Y > k) for h, k >= 0, less what they are to first (zeroth) order in rho."""
    h, k = h.clamp_min(1e-150), k.clamp_min(1e-150)
    spread = torch.sqrt((1.0 - rho) * (1.0 + rho)).clamp_min(1e-16)
    given_h, given_k = ((b - a + (1.0 - rho) * a) / spread for a, b in ((h, k), (k, h)))  # exact near rho = 1
    wedges = [torch.from_numpy(owens_t(z.numpy(), (g / z).numpy())) for z, g in ((h, given_h), (k, given_k))]
    joint = 0.5 * (upper(h) + upper(k)) - wedges[0] - wedges[1]  # Owen (1956)
    joint = torch.minimum(joint.clamp_min(0.0), upper(torch.maximum(h, k)))
    # E[X f] = E[df/dX] + rho E[df/dY], twice
    mean = density(k) * upper(given_k) + rho * density(h) * upper(given_h) - k * joint
    both = density(h) * spread * excess(given_h) + rho * joint - h * mean
    return both - excess(h) * excess(k) - rho * upper(h) * upper(k), joint - upper(h) * upper(k)


def density(z: Tensor) -> Tensor:
    """The standard normal density."""
    return torch.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)


def upper(z: Tensor) -> Tensor:
    """P(X > z)."""
    return 0.5 * torch.erfc(z / math.sqrt(2.0))


def excess(z: Tensor) -> Tensor:
    """E[(X - z)_+]."""
    return density(z) - z * upper(z)


def bell(a: Tensor, b: Tensor, rho: Tensor, room: Tensor) -> Tensor:
    """exp(-(a^2 - 2 a b rho + b^2) / (2 room)), room = 1 - rho^2, without cancellation on either side."""
    plus = (a - b) ** 2 / (2.0 * room) + a * b / (1.0 + rho)
    minus = (a + b) ** 2 / (2.0 * room) - a * b / (1.0 - rho)
    return torch.exp(-torch.where(rho >= 0, plus, minus))


# ---- functions that settle on straight lines ---------------------------------------------------------------


class Settled(Panels):
    """A function with its lines b + a x on either side of zero, and the panels of what is left of it."""

    def __init__(self, part: str, function: Function, tails: Tails, panels: Panels) -> None:
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
        return self.function(x).detach() - self.line(x)

    def line(self, x: Tensor) -> Tensor:
        """The lines."""
        below, above = (b + a * x if a else torch.full_like(x, b) for b, a in (self.left, self.right))
        return torch.where(x > 0, above, below)

    def line_mean(self, mean: Tensor, spread: Tensor) -> Tensor:
        """E of the lines at mean + spread xi."""
        z = (mean / spread.clamp_min(1e-300)).clamp(-40.0, 40.0)
        up, down, bump = upper(-z), upper(z), spread * density(z)
        (b0, a0), (b1, a1) = self.left, self.right
        return a1 * (mean * up + bump) + b1 * up + a0 * (mean * down - bump) + b0 * down


def settled_pair(f: Settled, g: Settled, qx: Tensor, qy: Tensor, rho: Tensor) -> Tensor:
    """E[f(u) g(v)] at flat variances and correlations."""
    sx, sy = qx.sqrt(), qy.sqrt()
    spread = torch.sqrt((1.0 - rho) * (1.0 + rho))
    out = _lines(f, g, sx, sy, rho, spread)
    out = out + _line_and_rest(f, g, sx, sy, rho, spread) + _line_and_rest(g, f, sy, sx, rho, spread)
    # a normal density of this width is resolved by the longest panels; narrower ones need rules that follow it
    wide, line = torch.minimum(sx, sy) * spread >= 0.8 * max(f.unit, g.unit), rho.abs() == 1.0
    narrow = functools.partial(polar if f.kinks == (0.0,) else conditional, f.rest, g.rest, f)
    for mask, rule in (
        (wide, functools.partial(_square, f, g)),
        (line & ~wide, functools.partial(_on_line, f, g)),
        (~wide & ~line, narrow),
    ):
        if bool(mask.any()):
            out[mask] += rule(qx[mask], qy[mask], rho[mask])
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
    for a, b, r, s, w in chunks(20 * (2 * levels + len(g.inside)), sx, sy, rho, spread, blur):
        near = (w[:, None] * steps).clamp_max(g.reach)
        cuts = torch.cat([g.inside.expand(len(r), -1), near, -near], dim=1).sort(dim=1).values
        t, weights = panel_nodes(cuts)
        weights = weights * torch.exp(-0.5 * (t / b[:, None]) ** 2) / (math.sqrt(2.0 * math.pi) * b[:, None])
        mean = f.line_mean((r * a / b)[:, None] * t, (a * s)[:, None])
        out.append((g.rest(t) * mean * weights).sum(-1))
    return torch.cat(out)


def _on_line(f: Settled, g: Settled, qx: Tensor, qy: Tensor, rho: Tensor) -> Tensor:
    """Rest against rest where one variable is a multiple of the other."""
    sx, sy = qx.sqrt()[:, None], (rho * qy.sqrt())[:, None]
    xi, weights = normal_panels((f.inside / sx, g.inside / sy), _SPAN, 20)
    return (f.rest(sx * xi) * g.rest(sy * xi) * weights).sum(-1)


def _square(f: Settled, g: Settled, qx: Tensor, qy: Tensor, rho: Tensor) -> Tensor:
    """Rest against rest where the density is smooth on the panels: a product rule."""
    (s, left), (t, right) = f.nodes, g.nodes
    out = []
    for a, b, r, w in chunks(len(s) * len(t), qx.sqrt(), qy.sqrt(), rho, torch.sqrt((1.0 - rho) * (1.0 + rho))):
        x, y = s / (a * w)[:, None], t / (b * w)[:, None]
        exponent = (r[:, None] * x)[:, :, None] * y[:, None, :]
        exponent.sub_((0.5 * x * x)[:, :, None]).sub_((0.5 * y * y)[:, None, :])
        out.append(((exponent.exp_() @ right) @ left) / (2.0 * math.pi * a * b * w))
    return torch.cat(out)
