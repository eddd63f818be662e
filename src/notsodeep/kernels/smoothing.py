"""E[f(u) g(v)] for any functions and scales, kinks anywhere, nearly parallel points included.

A function smoothed by normal noise, E[g(mean + noise xi)], is computed in the way that its place asks for
(:meth:`Smoothing.at`). A pair conditions on one variable (:func:`pair_means`). All pairs of scales at one angle share a
variable, u = s (sqrt(rho) Z + sqrt(1 - rho) A), and are independent given it: one product of matrices serves them all
(:func:`pair_grid`). Nothing becomes narrow for nearly parallel points, where the smoothed function is the function.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .._caches import cached
from .._chebyshev import nodes, polynomials, to_coefficients
from ..activations import Activation
from ..activations.forms import Function, density, upper
from ..activations.panels import ORDER, joined, legendre, panel_nodes, to_legendre
from ..errors import ConvergenceError, warn
from ._limits import LIMITS

Part = Literal["value", "slope", "curvature", "x_slope", "x_curvature"]
Rule = Callable[[tuple[Part, ...], Tensor, Tensor], Tensor]

_SPAN = 9.5  # standard deviations beyond which the normal density is below rounding
_NARROW = 3.5  # panels on which a normal density of deviation one is exact
_BROAD = 6.0  # panels on which functions smoothed by such a density are
_HERMITE = ((12, 30.0), (40, 6.0))  # nodes of Gauss and Hermite, and the panels of a function, in deviations
_INTERPOLATED, _EVEN = 40, 5.5  # nodes at which a normal density of deviation one is interpolated on such a length
_RIPPLE = torch.tensor([-9.0, -4.5, 0.0, 4.5, 9.0], dtype=torch.float64)  # edges of panels around a kink, in blurs
_LONG, _PROFILE, _PANEL = 2.0, 4.0, 10.0  # noise from which smoothed functions are tabulated, its ratio in a table, and
_PROFILE_NODES = 28, 72  # the length of its panels of mean / noise
_LONGEST = 2.4  # a panel of the standard normal density


def function_of(phi: Activation, part: Part) -> Function:
    """Return the function that a part stands for."""
    table: dict[str, Function] = {
        "value": phi,
        "slope": phi.derivative,
        "curvature": phi.second_derivative,
        "x_slope": lambda x: x * phi.derivative(x),
        "x_curvature": lambda x: x * phi.second_derivative(x),
    }
    return table[part]


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


# ---- pairs of scales -----------------------------------------------------------------------------------------


def pair_means(
    phi: Activation,
    f: Sequence[Part],
    g: Sequence[Part],
    qx: Tensor,
    qy: Tensor,
    rho: Tensor,
    spread: Tensor | None = None,
) -> Tensor:
    """E[f(u) g(v)] of parts in turn, at flat variances and correlations, (parts, pairs).

    With u = sqrt(qx) X, v given X is normal with mean sqrt(qy) rho X and variance qy (1 - rho^2); ``spread`` is
    sqrt(1 - rho^2) where it is known better than from ``rho``.
    """
    # what is smoothed has closed forms without the factor x
    if any(part.startswith("x_") for part in g) and not any(part.startswith("x_") for part in f):
        return pair_means(phi, g, f, qy, qx, rho, spread)
    smoothing, sx, sy = smoothed(phi), qx.sqrt(), qy.sqrt()
    cuts = smoothing.cuts(_SPAN * float(torch.maximum(sx.max(), sy.max())))
    check_cost(ORDER * len(cuts) ** 2, len(rho), float(sx.max()))
    spread = torch.sqrt((1.0 - rho) * (1.0 + rho)) if spread is None else spread
    # g smoothed still bends near its kinks, on the length of the noise, which is nothing for long noise
    turn = torch.where(rho.abs() < 0.3, math.inf, rho * sy)[:, None]
    blur = (spread / rho.abs())[:, None, None] * _RIPPLE
    blurred = (smoothing.bends[:, None] / turn[..., None] + blur).flatten(1)
    wide = torch.where((spread < 0.4)[:, None], cuts / turn, math.inf)
    low, copies = (-_SPAN, 1.0) if phi.parity is None else (0.0, 2.0)  # f(u) g(v) is even then
    ends = torch.tensor([low, _SPAN], dtype=torch.float64).expand(len(rho), -1)
    edges = torch.cat([ends, cuts / sx[:, None], wide, blurred], 1).nan_to_num(_SPAN).clamp_(low, _SPAN)
    functions = [function_of(phi, part) for part in f]
    out = torch.zeros(len(f), len(rho), dtype=torch.float64)
    pair, panels = _split(edges.sort(dim=1).values)
    for i, ends in zip(pair.split(LIMITS.panels_at_once), panels.split(LIMITS.panels_at_once), strict=True):
        x, weights = panel_nodes(ends)
        weights = copies * weights * density(x)
        mean, noise = (rho * sy)[i, None] * x, (sy * spread)[i, None].expand_as(x)
        inner = smoothing.at(g, mean.flatten(), noise.flatten()).view(len(g), *x.shape)
        outer = torch.stack([function(sx[i, None] * x).detach() for function in functions])
        out.index_add_(1, i, (outer * inner * weights).sum(-1))
    return out


def parallel_gap(phi: Activation, qx: Tensor, qy: Tensor, sign: Tensor, own: Tensor) -> Tensor:
    """What E[phi(u) phi(v)] of a common variable, v = ``sign`` u at equal scales, lacks of the root of ``own``.

    ``own``: E[phi^2] at both variances, (2, pairs). The mean of a square, in which nothing cancels.
    """
    sx, sy = qx.sqrt(), sign * qy.sqrt()
    cuts = smoothed(phi).cuts(_SPAN * float(torch.maximum(sx.max(), sy.abs().max())))
    ends = torch.tensor([-_SPAN, _SPAN], dtype=torch.float64).expand(len(sx), -1)
    edges = torch.cat([ends, cuts / sx[:, None], cuts / sy[:, None]], 1).clamp_(-_SPAN, _SPAN)
    squares = own.clamp_min(LIMITS.tiny_variance)
    ratio, out = (squares[1] / squares[0]).sqrt(), torch.zeros_like(sx)
    pair, panels = _split(edges.sort(dim=1).values)
    for i, ends in zip(pair.split(LIMITS.panels_at_once), panels.split(LIMITS.panels_at_once), strict=True):
        x, weights = panel_nodes(ends)
        apart = ratio[i, None] * phi(sx[i, None] * x) - sign[i, None] * phi(sy[i, None] * x)
        out.index_add_(0, i, (apart.detach() ** 2 * weights * density(x)).sum(-1))
    return out / (2.0 * ratio)


def _split(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Panels (m, 2) between sorted edges (n, k), none of them too long for the normal density, and their rows."""
    lengths = torch.diff(edges)
    counts = torch.where(lengths > 1e-15, torch.ceil(lengths / _LONGEST), 0.0).long().flatten()
    which = torch.repeat_interleave(counts)
    number = torch.arange(len(which)) - (counts.cumsum(0) - counts)[which]
    step = (lengths.flatten() / counts.clamp_min(1))[which]
    start = edges[:, :-1].flatten()[which] + number * step
    return which // lengths.shape[1], torch.stack([start, start + step], 1)


def pair_grid(phi: Activation, scales: Tensor, angles: Tensor) -> Tensor:
    """E[phi phi] and E[phi' phi'] at standard deviations (n,) and angles (m,) between the points: (2, n, n, m)."""
    smoothing = smoothed(phi)
    out = torch.empty(2, len(scales), len(scales), len(angles), dtype=torch.float64)
    mirrored = {"odd": (-1.0, 1.0), "even": (1.0, -1.0)}.get(phi.parity or "")  # of both functions, at -z
    acute, done = torch.minimum(angles, math.pi - angles), -1.0
    for k in acute.argsort().tolist():
        if float(acute[k]) - done > 1e-15:  # an angle and its supplement have the same nodes
            done = float(acute[k])
            near = 2.0 * math.sin(0.5 * done) ** 2  # 1 - |rho|
            shared, own = math.sqrt(1.0 - near), math.sqrt(near)
            z, weights = smoothing.outer(scales, shared, own)
            if mirrored is None:
                z, weights = torch.cat([-z.flip(0), z]), torch.cat([weights.flip(0), weights])
            else:
                weights = 2.0 * weights
            both = smoothing.grid(("value", "slope"), scales, shared, own, z)
        if float(angles[k]) <= 0.5 * math.pi:
            other = both
        else:
            other = both.flip(2) if mirrored is None else both * both.new_tensor(mirrored)[:, None, None]
        out[..., k] = (both * weights) @ other.mT
    return out


@cached(64)
def smoothed(phi: Activation) -> Smoothing:
    """Return what is known of an activation under noise."""
    return Smoothing(phi)


@cached(4)
def _gauss_hermite(order: int) -> tuple[Tensor, Tensor]:
    x, w = np.polynomial.hermite_e.hermegauss(order)
    return torch.from_numpy(x), torch.from_numpy(w / math.sqrt(2.0 * math.pi))


@dataclass(frozen=True)
class Profile:
    """Functions of a mean and of noise of two octaves, as series in the logarithm of the noise and in mean / noise.

    The second varies on a length of one, whatever is smoothed.
    """

    noise: tuple[float, float]  # logarithms
    ratio: tuple[float, float]  # of the mean and the noise
    coefficients: Tensor  # (parts, noise, mean)

    @classmethod
    def of(
        cls, function: Callable[[Tensor, Tensor], Tensor], size: Tensor, low: float, ratio: tuple[float, float]
    ) -> Profile | None:
        """Tabulate a function of flat means and noises; ``None`` where the series has not ended, beside a ``size``."""
        span, (along, across) = (math.log(low), math.log(_PROFILE * low)), _PROFILE_NODES
        noise, at = torch.from_numpy(nodes(along, *span)).exp(), torch.from_numpy(nodes(across, *ratio))
        values = function((noise[:, None] * at).flatten(), noise.repeat_interleave(across))
        left, right = (torch.tensor(to_coefficients(count)) for count in _PROFILE_NODES)
        series = left @ values.unflatten(1, _PROFILE_NODES) @ right.T
        ends = torch.maximum(series[:, -3:].abs().amax((1, 2)), series[:, :, -3:].abs().amax((1, 2)))
        sure = ends <= 1e-14 * series.abs().amax((1, 2)) + 1e-16 * size
        return cls(span, ratio, series) if bool(sure.all()) else None

    def __call__(self, noise: Tensor, ratio: Tensor) -> Tensor:
        """Return the functions at all noises and means over noise: (parts, noises, means)."""
        given = zip((noise.log(), ratio), (self.noise, self.ratio), self.coefficients.shape[1:], strict=True)
        left, right = (polynomials(size, (2.0 * x - (a + b)) / (b - a)) for x, (a, b), size in given)
        return left @ self.coefficients @ right.T


class Smoothing:
    """Phi, its derivatives and x times these, smoothed by normal noise."""

    def __init__(self, phi: Activation) -> None:
        self.phi, self.tails = phi, phi.tails()
        self.kinks = torch.tensor(phi.kinks, dtype=torch.float64)
        self.reach = math.inf if self.tails is None else self.tails.reach
        # at zero the lines meet
        self.bends = self.kinks if phi.breaks else torch.unique(functional.pad(self.kinks, (1, 0)))
        self.closed = phi.smoothed(self.kinks, self.kinks) is not None
        self._known: dict[tuple[tuple[Part, ...], int, int], tuple[Tensor, Tensor]] = {}
        self._profiles: dict[tuple[tuple[Part, ...], float, float], Profile | None] = {}
        self._ends = [self._straight_from(side) for side in (-1.0, 1.0)]
        self._set_cuts(0.0, torch.zeros(1, dtype=torch.float64))

    def cuts(self, reach: float) -> Tensor:
        """The sorted edges of the panels of the function up to there; beyond straight tails there are none."""
        if self._far < min(reach, self.reach):
            far = min(2.0 ** math.ceil(math.log2(reach)), self.reach)
            edges = torch.cat([self.phi.panels().edges(far), torch.zeros(1, dtype=torch.float64)])
            self._set_cuts(far, joined(self.phi.smooth_parts(), torch.unique(edges), self.kinks))
        return self._cuts

    def _set_cuts(self, far: float, cuts: Tensor) -> None:
        self._far, self._cuts = far, cuts
        self._lengths, order = torch.diff(cuts).sort()
        outer = torch.maximum(cuts[1:].abs(), cuts[:-1].abs())[order]
        self._outermost = functional.pad(outer.cummax(0).values if len(outer) else outer, (1, 0), value=-math.inf)

    def _last(self, lengths: Tensor) -> Tensor:
        """The far end of the last panel that is shorter than this; nowhere if none is."""
        return self._outermost[torch.searchsorted(self._lengths, lengths)]

    def lines(self, part: Part) -> tuple[tuple[float, float], tuple[float, float]]:
        """Intercept and slope on either side of zero, far out."""
        if self.tails is None or part in ("curvature", "x_curvature"):
            return (0.0, 0.0), (0.0, 0.0)
        (b0, a0), (b1, a1) = self.tails.left, self.tails.right
        return {"value": ((b0, a0), (b1, a1)), "slope": ((a0, 0.0), (a1, 0.0)), "x_slope": ((0.0, a0), (0.0, a1))}[part]

    def _straight_from(self, side: float) -> float:
        """The last kink of a side if the function is a straight line beyond it, else the reach."""
        last = max([0.0, *(side * self.kinks).tolist()])
        if not len(self.kinks) or self.reach == math.inf:
            return self.reach
        x = side * torch.linspace(last, self.reach, 66, dtype=torch.float64)[1:]
        line = self._line(("value", "slope"), x, x)
        off = (torch.stack([self.phi(x), self.phi.derivative(x)]).detach() - line).abs()
        return last if bool((off <= 1e-15 * (1.0 + line.abs())).all()) else self.reach

    # -- the functions given a mean and noise ----------------------------------------------------------------
    def at(self, parts: Sequence[Part], mean: Tensor, noise: Tensor) -> Tensor:
        """E[f(mean + noise xi)] of parts at flat means and deviations: (parts, means)."""
        out = torch.empty(len(parts), len(mean), dtype=torch.float64)
        far, span = mean.abs(), _SPAN * noise
        self.cuts(float((far + span).max()))
        straight = far >= torch.where(mean > 0, self._ends[1], self._ends[0]) + span
        left = ~straight
        bent = functools.reduce(torch.logical_or, [(mean - c).abs() < span for c in self.kinks], torch.zeros_like(left))
        # beyond the last panel that is short beside the noise, and away from kinks, functions are smooth
        smooth = [left & (far >= self._last(length * noise) + span) for _, length in _HERMITE]
        rules: list[tuple[Tensor, Rule]] = [(straight, self._line)]
        if self.closed and not any(part.startswith("x_") for part in parts):
            near = left & (noise <= 4.0 * self.reach)  # further out parabolas cancel
            rules, left = [*rules, (near, self._closed)], left & ~near
            smooth = [known & ~near for known in smooth]
        rules += [(smooth[0] & ~bent, functools.partial(self._hermite, _HERMITE[0][0]))]
        rules += [(smooth[1] & ~smooth[0] & ~bent, functools.partial(self._hermite, _HERMITE[1][0]))]
        rules += [(smooth[1] & bent, self._beside_kinks), (left & ~smooth[1], self._among_panels)]
        for which, rule in rules:
            if bool(which.any()):
                out[:, which] = rule(tuple(parts), mean[which], noise[which])
        return out

    def grid(self, parts: tuple[Part, ...], scales: Tensor, shared: float, own: float, z: Tensor) -> Tensor:
        """The same at means ``shared`` s z and noise ``own`` s, for all scales s and all z: (parts, scales, means)."""
        mean, noise, ratio = shared * scales[:, None] * z, own * scales, shared / max(own, 1e-300) * z
        out = torch.empty(len(parts), len(scales), len(z), dtype=torch.float64)
        left = torch.ones(out.shape[1:], dtype=torch.bool)
        place = torch.full_like(noise, -1.0) if self.closed else (noise / _LONG).log() / math.log(_PROFILE)
        number = place.floor().long()
        for one in number[number >= 0].unique().tolist():
            low = _LONG * _PROFILE**one
            rows = (number == one).nonzero()
            panels = torch.where(ratio.abs() <= self._features(low), (ratio / _PANEL).round(), math.inf)
            for panel in panels[panels.isfinite()].unique().tolist():
                profile, columns = self._profile(parts, low, panel), (panels == panel).nonzero().squeeze(1)
                if profile is not None:
                    lines = self._lines(parts, mean[rows, columns], noise[rows])
                    out[:, rows, columns] = lines + profile(noise[rows[:, 0]], ratio[columns])
                    left[rows, columns] = False
        i, j = left.nonzero(as_tuple=True)
        if len(i):
            out[:, i, j] = self.at(parts, mean[i, j], noise[i])
        return out

    def _features(self, noise: float) -> float:
        """How far from the last panel that is short beside the noise its share in a mean is seen, over the noise."""
        last = float(self._last(torch.tensor([_PROFILE * noise * _HERMITE[1][1]], dtype=torch.float64)))
        return min(_SPAN + max(0.0, last) / noise, 5.0 * _PANEL)

    def _profile(self, parts: tuple[Part, ...], noise: float, panel: float) -> Profile | None:
        """What the parts have beside their lines, for noise from this on and means in a panel of their ratio."""
        key = parts, noise, panel
        if key not in self._profiles:
            ends = (panel - 0.5) * _PANEL, (panel + 0.5) * _PANEL
            some = torch.full((2,), noise, dtype=torch.float64)
            size = self._lines(parts, some * torch.tensor(ends), some).abs().amax(1)
            self._profiles[key] = Profile.of(
                lambda mean, noise: self.at(parts, mean, noise) - self._lines(parts, mean, noise), size, noise, ends
            )
        return self._profiles[key]

    def _lines(self, parts: Sequence[Part], mean: Tensor, noise: Tensor) -> Tensor:
        """The means of the lines."""
        return torch.stack([_line_mean(*self.lines(part), mean, noise) for part in parts])

    def _line(self, parts: Sequence[Part], mean: Tensor, noise: Tensor) -> Tensor:
        """Beyond all features."""
        ends = [self.lines(part)[i] for i in (0, 1) for part in parts]
        below, above = torch.tensor(ends, dtype=torch.float64).view(2, len(parts), 2, 1)
        return torch.where(mean > 0, above[:, 0] + above[:, 1] * mean, below[:, 0] + below[:, 1] * mean)

    def _hermite(self, order: int, parts: Sequence[Part], mean: Tensor, noise: Tensor) -> Tensor:
        """Where the function is smooth on the length of the noise."""
        xi, weights = _gauss_hermite(order)
        x = torch.addcmul(mean[:, None], noise[:, None], xi)
        return torch.stack([function_of(self.phi, part)(x).detach() @ weights for part in parts])

    def _closed(self, parts: Sequence[Part], mean: Tensor, noise: Tensor) -> Tensor:
        """Return closed forms of the smoothed function."""
        found = self.phi.smoothed(mean, noise.clamp_min(1e-300))
        assert found is not None
        return torch.stack([dict(zip(("value", "slope", "curvature"), found, strict=True))[part] for part in parts])

    def _beside_kinks(self, parts: Sequence[Part], mean: Tensor, noise: Tensor) -> Tensor:
        """Integrate over panels that end at kinks, between which the function is smooth on the length of the noise."""
        cut = ((self.kinks - mean[:, None]) / noise[:, None]).clamp_(-_SPAN, _SPAN)
        base = torch.linspace(-_SPAN, _SPAN, 7, dtype=torch.float64).expand(len(mean), -1)
        z, weights = panel_nodes(torch.cat([base, cut], 1).sort(dim=1).values)
        weights = weights * density(z)
        x = torch.addcmul(mean[:, None], noise[:, None], z)
        return torch.stack([(function_of(self.phi, part)(x).detach() * weights).sum(-1) for part in parts])

    def _among_panels(self, parts: tuple[Part, ...], mean: Tensor, noise: Tensor) -> Tensor:
        """Where panels are short beside the noise: the means of the lines, and what the function has beside them."""
        return self._lines(parts, mean, noise) + self._beside_lines(parts, mean, noise)

    def _beside_lines(self, parts: tuple[Part, ...], mean: Tensor, noise: Tensor) -> Tensor:
        out = torch.zeros(len(parts), len(mean), dtype=torch.float64)
        far = torch.clamp(mean.abs() + _SPAN * noise, max=self.reach)
        octaves = (far.log2().ceil() * 4096.0 + noise.log2().floor()).long()  # two numbers in one
        for one in octaves.unique().tolist():
            which = (octaves == one).nonzero().squeeze(1)
            high, low = divmod(one + 2048, 4096)
            t, values = self._nodes(parts, low - 2048, high)
            for i in which.split(max(1, LIMITS.nodes_at_once // max(1, len(t)))):
                m, s = mean[i, None], noise[i, None]
                z = (t - m).div_(s).square_().mul_(-0.5).exp_()
                out[:, i] += ((z @ values) / (math.sqrt(2.0 * math.pi) * s)).T
        return out

    def _nodes(self, parts: tuple[Part, ...], noise: int, far: int) -> tuple[Tensor, Tensor]:
        """Nodes up to 2^far, and what the parts have there beside their lines, with weights, (nodes, parts).

        They resolve a normal density of deviation 2^noise.
        """
        if (parts, noise, far) not in self._known:
            end = min(2.0**far, self.reach)
            edges = torch.unique(self.cuts(end).clamp(-end, end)).numpy()
            counts = np.ceil(np.diff(edges) / (_NARROW * 2.0**noise)).astype(int)
            starts = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            fine = np.repeat(edges[:-1], counts) + np.repeat(np.diff(edges) / counts, counts) * starts
            t, weights = panel_nodes(torch.from_numpy(np.append(fine, edges[-1])))
            whole = torch.stack([function_of(self.phi, part)(t).detach() for part in parts])
            values = (whole - self._line(parts, t, t)) * weights
            size = values.abs()
            keep = (size > 1e-18 * functional.pad(size, (1, 0)).amax(1, keepdim=True)).any(0)  # lines have no panels
            self._known[parts, noise, far] = _compressed(t[keep], values[:, keep].T, _EVEN * 2.0**noise)
        return self._known[parts, noise, far]

    # -- the shared variable ---------------------------------------------------------------------------------
    def outer(self, scales: Tensor, shared: float, own: float) -> tuple[Tensor, Tensor]:
        """Positive nodes of Z, and weights with its density, that resolve the smoothed functions of all scales."""
        low, high, blur = float(scales.min()) * shared, float(scales.max()) * shared, own / shared
        cuts = self.cuts(_SPAN * high)
        if len(cuts) > LIMITS.panels_of_a_grid:
            raise ConvergenceError(f"{self.phi!r} varies too fast at this scale; scale the inputs down")
        ends = torch.unique(cuts.abs())
        start, end, each = ends[:-1, None].numpy(), ends[1:, None].numpy(), (shared * scales.unique()).numpy()
        lengths, least = (end - start) / each, _BROAD * blur
        bends = torch.unique(self.kinks.abs())
        regions = [(float(c) / high - 9.0 * blur, float(c) / low + 9.0 * blur) for c in bends]
        alone = [i for i, (a, b) in enumerate(regions) if b - a > 3.0 * len(_RIPPLE) * len(scales) * least]
        edges = [0.0]
        step = 2.0
        while (z := edges[-1]) < _SPAN:
            step = min(2.0 * step, 2.0)
            while step > least:
                # the images of [z, z + step] under all scales are shorter than the panels that they meet
                short = lengths[(start < (z + step) * each) & (end > z * each)].min(initial=2.0)
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
        return z_nodes, weights * density(z_nodes)


def _compressed(t: Tensor, values: Tensor, length: float) -> tuple[Tensor, Tensor]:
    """Fewer nodes, and what is summed there, for sums with functions that polynomials follow on this length."""
    start = float(t[0]) if len(t) else 0.0
    place = ((t - start) / length).floor()
    panels = place.unique()
    if _INTERPOLATED * len(panels) >= len(t):
        return t, values.contiguous()
    x, transform = legendre(_INTERPOLATED)[0], to_legendre(_INTERPOLATED)
    x_of_t = 2.0 * (t - start - place * length) / length - 1.0
    basis = np.polynomial.legendre.legvander(x_of_t.numpy(), _INTERPOLATED - 1)
    shares = torch.from_numpy(basis) @ transform
    few = torch.stack([shares[place == one].T @ values[place == one] for one in panels])
    return (start + length * (panels[:, None] + 0.5 + 0.5 * x)).flatten(), few.flatten(0, 1)


def _line_mean(left: tuple[float, float], right: tuple[float, float], mean: Tensor, noise: Tensor) -> Tensor:
    """E of two half lines at mean + noise xi."""
    z = (mean / noise.clamp_min(1e-300)).clamp(-40.0, 40.0)
    up, down, bump = upper(-z), upper(z), noise * density(z)
    (b0, a0), (b1, a1) = left, right
    return a1 * (mean * up + bump) + b1 * up + a0 * (mean * down - bump) + b0 * down
