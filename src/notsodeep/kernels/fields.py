"""Layers on fields: E[phi(u) phi(v)] and E[phi'(u) phi'(v)] at many positions of many pairs of images.

What a layer needs of one image is its *side*, made once; what it needs of a pair is the covariance. Layers have a
closed form, a Hermite series (smooth activations), or are computed entry by entry (everything else).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._caches import cached
from .._chebyshev import nodes, polynomials, to_coefficients
from ..activations import Activation
from ..activations.forms import ClosedForm, correlation
from ..gaussian import hermite_coefficients
from .expectations import layer_of

Both = tuple[Tensor, Tensor]


class FieldMaps:
    """A layer at fields (..., positions) with a closed form; the side of an image is its variances."""

    top = float("inf")
    """The largest standard deviation for which it is right."""

    def __init__(self, form: ClosedForm) -> None:
        self.form = form

    def side(self, q: Tensor) -> Tensor:
        """What is needed of an image whose pre-activations have the variances q."""
        return q

    def both(self, x: Tensor, y: Tensor, covariance: Tensor) -> Both:
        """E[phi(u) phi(v)] and E[phi'(u) phi'(v)] for two sides."""
        return self.form(x, y, covariance)


class EntryMaps(FieldMaps):
    """The exact layer in the place of a closed form, whatever the activation: in double precision on the CPU."""

    def __init__(self, phi: Activation) -> None:
        self.phi = phi

    def both(self, x: Tensor, y: Tensor, covariance: Tensor) -> Both:
        qx, qy, flat = (field.expand_as(covariance).double().cpu().ravel() for field in (x, y, covariance))
        value, slope = layer_of(self.phi, qx, qy).both(flat)
        return value.reshape(covariance.shape).to(covariance), slope.reshape(covariance.shape).to(covariance)


class SeriesMaps(FieldMaps):
    """A Hermite series, whose coefficients b_k(s) = E[phi'(s xi) h_k(xi)] are interpolated in the scale s.

        E[phi' phi'] = sum_k b_k(s) b_k(t) rho^k,   E[phi phi] = m(s) m(t) + Lambda sum_k b_k(s) b_k(t) rho^k / (k + 1),

    where m(s) = E[phi(s xi)]. The side of an image is (s, m(s), b_0(s), b_1(s), ...) along a new first dimension. Every
    second b_k of an odd activation vanishes and is left out.
    """

    def __init__(self, curves: Tensor, top: float, stride: int) -> None:
        self.curves, self.top, self.stride = curves, top, stride

    def side(self, q: Tensor) -> Tensor:
        s = q.clamp_min(0.0).sqrt()
        curves = self.curves.to(s)
        basis = polynomials(len(curves), 2.0 * s / self.top - 1.0)
        return torch.cat([s[None], (basis @ curves).movedim(-1, 0)])

    def both(self, x: Tensor, y: Tensor, covariance: Tensor) -> Both:
        rho = correlation(x[0] ** 2, y[0] ** 2, covariance)
        power = rho if self.stride == 1 else rho * rho
        terms = x[2:] * y[2:]
        value = slope = torch.zeros_like(covariance)
        for k in range(len(terms) - 1, -1, -1):
            slope = terms[k] + power * slope
            value = terms[k] / (self.stride * k + 1) + power * value
        return x[1] * y[1] + covariance * value, slope


@cached(32)
def field_maps(phi: Activation, top: float) -> FieldMaps:
    """Return the layer of an activation for standard deviations up to ``top``."""
    form = phi.closed_form()
    if form is not None:
        return FieldMaps(form)
    if phi.kinks or not phi.continuous:
        return EntryMaps(phi)
    count, most, small = 64, 512, 1e-14  # nodes and orders that resolve smooth activations at scales up to 2
    scales = torch.tensor(nodes(count, 0.0, top))
    slopes = hermite_coefficients(phi, scales**2, most, derivative=True)
    means = hermite_coefficients(phi, scales**2, 1)
    values = torch.cat([means, slopes], dim=1)
    curves = torch.from_numpy(to_coefficients(count).copy()) @ values
    weight = slopes[-1] ** 2
    beyond = weight.flip(0).cumsum(0).flip(0) / weight.sum()
    terms = int((beyond > small).sum())
    unresolved = curves[-4:].abs().max() > 1e2 * small * curves.abs().max()
    if terms == most or bool(unresolved):
        return EntryMaps(phi)
    stride = 2 if phi.parity == "odd" else 1
    return SeriesMaps(torch.cat([curves[:, :1], curves[:, 1 : 1 + terms : stride]], dim=1), top, stride)
