"""Layers on fields: E[phi(u) phi(v)] and E[phi'(u) phi'(v)] at all positions of all pairs of images of two blocks.

Layers have a closed form, a table (smooth activations, and those with a kink at zero), or are computed entry by entry.
Fields have the positions first, then the images.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from .._caches import cached
from .._chebyshev import clenshaw, needed, nodes, polynomials, series_sum, to_coefficients
from .._progress import waiting
from ..activations import Activation
from ..activations.forms import ClosedForm, correlation
from ..activations.panels import panel_nodes
from ..gaussian import hermite_coefficients
from ._limits import LIMITS
from .expectations import Layer
from .pointwise import mean_square
from .smoothing import pair_grid
from .table import Level, NormScale

Both = tuple[Tensor, Tensor]


class FieldMaps:
    """A layer at fields with a closed form."""

    top = float("inf")
    """The largest standard deviation for which it is right."""

    def __init__(self, form: ClosedForm) -> None:
        self.form = form

    def pair(self, qx: Tensor, qy: Tensor) -> Callable[[Tensor], Both]:
        """E[phi(u) phi(v)] and E[phi'(u) phi'(v)] as functions of the covariances (positions, n, m)."""
        return functools.partial(self.form, qx[:, :, None], qy[:, None, :])

    def one_by_one(self, qx: Tensor, qy: Tensor) -> Callable[[Tensor], Both]:
        """The same for the first image with the first one, and so on: (positions, n)."""
        layer = self.pair(qx.reshape(-1, 1), qy.reshape(-1, 1))  # each position of an image as an image of its own

        def both(covariance: Tensor) -> Both:
            value, slope = layer(covariance.reshape(-1, 1, 1))
            return value.reshape(covariance.shape), slope.reshape(covariance.shape)

        return both

    def own(self, q: Tensor) -> Both:
        """E[phi^2] and E[phi'^2] at the variances of images with themselves."""
        return self.form(q, q, q)


class EntryMaps(FieldMaps):
    """The exact layer of any activation, entry by entry: in double precision on the CPU."""

    def __init__(self, phi: Activation) -> None:
        self.phi = phi
        self.closed = Layer(phi, *torch.ones(2, 1, dtype=torch.float64)).pieces is not None

    def pair(self, qx: Tensor, qy: Tensor) -> Callable[[Tensor], Both]:
        shape = (*qx.shape, qy.shape[-1])
        sides = (q.expand(shape).double().cpu().ravel() for q in (qx[..., None], qy[:, None, :]))
        layer = Layer(self.phi, *sides)  # one for all steps: it stores what it finds

        def both(covariance: Tensor) -> Both:
            value, slope = (part.reshape(shape) for part in layer.both(covariance.double().cpu().ravel()))
            return value.to(covariance), slope.to(covariance)

        return both

    def own(self, q: Tensor) -> Both:
        if self.closed:
            return self.one_by_one(q, q)(q)
        flat = q.double().cpu().ravel()
        value, slope = (mean_square(self.phi, part, flat).view(q.shape).to(q) for part in ("value", "slope"))
        return value, slope


class TableMaps(FieldMaps):
    """Chebyshev series in the standard deviations s, t and in the angle x = arcsin(rho), as in table.py.

        E[phi' phi'] = S(s, t, x),   E[phi phi] = m(s) m(t) + Lambda V(s, t, x),   V = int_0^x S cos / sin(x),

    where m(s) = E[phi(s xi)] = phi(0) + s D(s), so that the digits of a faint image are relative to its own variance.
    The side of an image is s, m(s) and its factors of V and S, in a new last dimension.
    """

    def __init__(self, phi: Activation, scale: NormScale, slopes: Tensor) -> None:
        """``slopes``: the coefficients of S, (angles, norms, norms)."""
        self.top, self.scale = scale.high, scale
        terms, size, _ = slopes.shape
        values = torch.tensordot(_integrated(terms), slopes, dims=1)
        largest = float(slopes.abs().max())
        self.levels = [Level.of(c[: needed(c.abs() / largest, 1e-14)], 1e-14) for c in (values, slopes)]
        transform = torch.tensor(to_coefficients(size))
        self.rest = float(phi(torch.zeros(1, dtype=torch.float64)))
        s = scale.nodes(size)
        self.mean = transform @ ((hermite_coefficients(phi, s**2, 1) - self.rest) / s[:, None])
        # along the diagonal, in series of their own
        s = scale.nodes(2 * size)
        _, mean, *factors = self._side(s[None] ** 2)[0].split([1, 1, *(len(level.signs) for level in self.levels)], -1)
        value, slope = (f.square() @ level.signs for f, level in zip(factors, self.levels, strict=True))
        curves = torch.stack([(mean[:, 0] - self.rest) / s, value, slope], 1)
        self.along = torch.tensor(to_coefficients(2 * size)) @ curves

    def pair(self, qx: Tensor, qy: Tensor) -> Callable[[Tensor], Both]:
        return functools.partial(self._both, self._side(qx), self._side(qy))

    def _side(self, q: Tensor) -> Tensor:
        s = q.clamp_min(0.0).sqrt()
        curves = torch.cat([self.mean, *(level.factors for level in self.levels)], dim=1).to(s)
        side = torch.cat([s[..., None], self.scale.polynomials(len(curves), s) @ curves], dim=-1)
        side[..., 1] = self.rest + s * side[..., 1]
        return side

    def _both(self, x: Tensor, y: Tensor, covariance: Tensor) -> Both:
        rho = correlation(x[:, :, None, 0] ** 2, y[:, None, :, 0] ** 2, covariance)
        x2 = torch.asin(rho).mul_(4.0 / math.pi)
        sizes = [2, *(len(level.signs) for level in self.levels)]
        sides = zip(self.levels, x.split(sizes, -1)[1:], y.split(sizes, -1)[1:], strict=True)
        value, slope = (_sum(level, left, right, x2) for level, left, right in sides)
        return value.mul_(covariance).baddbmm_(x[..., 1:2], y[..., 1:2].mT), slope

    def own(self, q: Tensor) -> Both:
        s = q.clamp_min(0.0).sqrt()
        mean, value, slope = (series_sum(weights, 2.0 * self.scale.variable(s)) for weights in self.along.T.to(q))
        return (self.rest + s * mean) ** 2 + q * value, slope


def _sum(level: Level, left: Tensor, right: Tensor, x2: Tensor) -> Tensor:
    """The series of a level at fields, from the factors of both sides (positions, n, total rank)."""
    parts = list(zip((left * level.signs.to(left)).split(level.ranks, -1), right.mT.split(level.ranks, 1), strict=True))
    return clenshaw(len(parts), lambda m, b: b.baddbmm_(*parts[m], beta=-1.0), x2, level.parity)


def _integrated(terms: int) -> Tensor:
    """From coefficients in the angle x, over pi / 2, to those of the integral from 0 to x times cos, over sin(x)."""
    x = torch.from_numpy(nodes(terms))
    places, weights = panel_nodes(torch.stack([torch.zeros_like(x), x], dim=-1), 64)
    moments = weights * torch.cos(0.5 * math.pi * places) * (0.5 * math.pi) / torch.sin(0.5 * math.pi * x)[:, None]
    return torch.tensor(to_coefficients(terms)) @ (moments[..., None] * polynomials(terms, places)).sum(1)


@cached(32)
def field_maps(phi: Activation, top: float) -> FieldMaps:
    """Return the layer of an activation for standard deviations up to ``top``."""
    form = phi.closed_form()
    if form is not None:
        return FieldMaps(form)
    if set(phi.kinks) <= {0.0} and phi.continuous and _even(phi, top):
        scale = NormScale(0.0, top)
        for size, terms in ((32, 64), (48, 128), (64, 256)):
            rho = torch.sin(0.5 * math.pi * torch.from_numpy(nodes(terms)))
            across, along = (torch.tensor(to_coefficients(n)) for n in (terms, size))
            with waiting("tables of a layer"):
                slopes = _slopes(phi, scale.nodes(size), rho)
            c = torch.tensordot(across, along @ slopes @ along.T, dims=1)
            if max(float(c[-4:].abs().max()), float(c[:, -4:].abs().max())) < 1e-13 * float(c.abs().max()):
                return TableMaps(phi, scale, 0.5 * (c + c.mT))
    return EntryMaps(phi)


def _even(phi: Activation, top: float) -> bool:
    """Whether the digits of one scale are not lost beside another: slopes of high polynomials differ by many orders."""
    own = mean_square(phi, "slope", NormScale(0.0, top).nodes(32) ** 2)
    return float(own.min()) > LIMITS.even_slopes * float(own.max())


def _slopes(phi: Activation, tau: Tensor, rho: Tensor) -> Tensor:
    """E[phi'(u) phi'(v)] at all correlations and pairs of scales: (rho, tau, tau)."""
    b = hermite_coefficients(phi, tau**2, LIMITS.series_terms, derivative=True)
    if float(b[:, -8:].abs().max()) < 3e-8 * float(b.abs().max()):  # the series has ended: its terms are squares
        return (b * rho[:, None, None] ** torch.arange(b.shape[1])) @ b.T
    return pair_grid(phi, tau, torch.acos(rho))[1].permute(2, 0, 1)
