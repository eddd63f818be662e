"""The kernel equations of a network at given pairs of inputs: squared norms (sx, sy) and inner products.

``pairwise`` is the library's exact reference: float64, entry by entry, valid for every pair of inputs and
differentiable with respect to them and to the variances of a DEQ. Matrices are built from it in ``exact.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._quadrature import normal_rule
from ..activations import Activation
from ..errors import ConvergenceError
from ..gaussian import moments, shared_rule
from ..networks import DEQ, ENN, Kernel, Network, check_kernels, rates_of
from .expectations import Layer, degree_of

__all__ = ["diagonal", "pairwise"]

_STEPS = 100
_CHUNK = 16384  # pairs at once: a series of 2048 terms for each is a quarter of a gigabyte


def pairwise(
    network: Network,
    sx: Tensor,
    sy: Tensor,
    dot: Tensor,
    kinds: Sequence[Kernel] = ("ck",),
    learning_rates: Sequence[float] | None = None,
    check: bool = True,
) -> dict[Kernel, Tensor]:
    """Kernels at pairs of inputs with ||x||^2 = ``sx``, ||y||^2 = ``sy`` and x . y = ``dot`` (broadcast together).

    >>> import notsodeep as nsd
    >>> one = torch.ones(1, dtype=torch.float64)
    >>> float(pairwise(nsd.ENN(["linear"]), one, one, 0.3 * one)["ck"])
    0.3
    """
    kinds = check_kernels(network, kinds)
    sx, sy, dot = torch.broadcast_tensors(*(_float64(v) for v in (sx, sy, dot)))
    shape = dot.shape
    sx, sy, dot = (v.reshape(-1) for v in (sx, sy, dot))
    if dot.numel() == 0:
        return {kind: torch.zeros(shape, dtype=torch.float64) for kind in kinds}
    if check and isinstance(network, DEQ):
        network.check_contraction()
    columns = zip(sx.split(_CHUNK), sy.split(_CHUNK), dot.split(_CHUNK), strict=True)
    pieces = [_piece(network, *column, kinds, learning_rates) for column in columns]
    return {kind: torch.cat([piece[kind] for piece in pieces]).reshape(shape) for kind in kinds}


def _piece(
    network: Network, sx: Tensor, sy: Tensor, dot: Tensor, kinds: Sequence[Kernel], rates: Sequence[float] | None
) -> dict[Kernel, Tensor]:
    if isinstance(network, DEQ):
        return _implicit(network, sx, sy, dot, kinds)
    return _explicit(network, sx, sy, dot, kinds, rates_of(network, rates))


def diagonal(
    network: Network,
    s: Tensor,
    kinds: Sequence[Kernel] = ("ck",),
    learning_rates: Sequence[float] | None = None,
    check: bool = True,
) -> dict[Kernel, Tensor]:
    """Kernels of points with themselves, from their squared norms ``s``; exact at rho = 1 by construction."""
    kinds = check_kernels(network, kinds)
    s = _float64(s)
    shape, s = s.shape, s.reshape(-1)
    if s.numel() == 0:
        return {kind: torch.zeros(shape, dtype=torch.float64) for kind in kinds}
    if isinstance(network, DEQ):
        if check:
            network.check_contraction()
        q = equilibrium_variance(network, s)
        value = mean_square(network.activation, "value", q)
        slope = mean_square(network.activation, "slope", q) if set(kinds) != {"ck"} else None
        parts = _close(network, kinds, value, q, slope)
    else:
        parts = _explicit_diagonal(network, s, kinds, rates_of(network, learning_rates))
    return {kind: part.reshape(shape) for kind, part in parts.items()}


def _float64(value: Any) -> Tensor:
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
    return tensor.to("cpu", torch.float64)


# ---- explicit networks -----------------------------------------------------------------------------------


def _explicit(
    enn: ENN, sx: Tensor, sy: Tensor, dot: Tensor, kinds: Sequence[Kernel], rates: Sequence[float]
) -> dict[Kernel, Tensor]:
    """Sigma_l = E[sigma_l sigma_l], Theta_l = rate_{l+1} Sigma_l + Theta_{l-1} Sigmadot_l (theory section 2)."""
    theta = {"ntk": rates[0] * dot, "ntk_frozen": torch.zeros_like(dot)}
    need_slope = set(kinds) != {"ck"}
    for depth, phi in enumerate(enn.activations):
        layer = Layer(phi, sx, sy)
        if need_slope:
            steep = layer.slope(dot)
            theta = {kind: t * steep for kind, t in theta.items()}
        dot = layer.value(dot)
        sx, sy = mean_square(phi, "value", sx), mean_square(phi, "value", sy)
        theta = {kind: t + rates[depth + 1] * dot for kind, t in theta.items()}
    return {kind: dot if kind == "ck" else theta[kind] for kind in kinds}


def _explicit_diagonal(enn: ENN, s: Tensor, kinds: Sequence[Kernel], rates: Sequence[float]) -> dict[Kernel, Tensor]:
    theta = {"ntk": rates[0] * s, "ntk_frozen": torch.zeros_like(s)}
    need_slope = set(kinds) != {"ck"}
    for depth, phi in enumerate(enn.activations):
        if need_slope:
            steep = mean_square(phi, "slope", s)
            theta = {kind: t * steep for kind, t in theta.items()}
        s = mean_square(phi, "value", s)
        theta = {kind: t + rates[depth + 1] * s for kind, t in theta.items()}
    return {kind: s if kind == "ck" else theta[kind] for kind in kinds}


# ---- implicit networks -----------------------------------------------------------------------------------


def _implicit(deq: DEQ, sx: Tensor, sy: Tensor, dot: Tensor, kinds: Sequence[Kernel]) -> dict[Kernel, Tensor]:
    """lam = s2a E[phi phi] + s2b dot, entry by entry, by safeguarded Newton steps (slope 1 - s2a E[phi' phi'])."""
    qx, qy = equilibrium_variance(deq, torch.cat([sx, sy])).split(len(sx))
    layer = Layer(deq.activation, qx, qy)
    lam = _solve_covariance(deq, layer, dot)
    if torch.is_grad_enabled() and any(v.requires_grad for v in (qx, qy, dot, *_variances(deq))):
        # one Newton step from the solution, differentiated at fixed slope: the implicit function theorem
        rate = 1.0 - deq.variances[0] * layer.both(lam)[1]
        rest = lam - deq.sigma_a2 * layer.value(lam) - deq.sigma_b2 * dot
        lam = lam - rest / rate
    value = layer.value(lam)
    slope = layer.slope(lam) if set(kinds) != {"ck"} else None
    return _close(deq, kinds, value, lam, slope)


def _close(deq: DEQ, kinds: Sequence[Kernel], value: Tensor, lam: Tensor, slope: Tensor | None) -> dict[Kernel, Tensor]:
    """The three kernels from E[phi phi], its argument and E[phi' phi'] (theory section 2)."""
    parts = {"ck": value}
    if slope is not None:
        gap = 1.0 - deq.sigma_a2 * slope
        if bool((gap <= 0).any()):
            raise ConvergenceError(
                f"the NTK of {deq!r} diverges on this data: "
                f"sigma_a2 E[phi' phi'] reaches {float((1.0 - gap).max()):.4g} >= 1"
            )
        parts["ntk"] = value + lam * slope / gap
        parts["ntk_frozen"] = value / gap
    return {kind: parts[kind] for kind in kinds}


def _variances(deq: DEQ) -> list[Tensor]:
    given: tuple[Any, Any] = (deq.sigma_a2, deq.sigma_b2)
    return [v for v in given if isinstance(v, Tensor)]


def _solve_covariance(deq: DEQ, layer: Layer, dot: Tensor) -> Tensor:
    s2a, s2b = deq.variances
    drive = s2b * dot.detach()
    bound = torch.sqrt(layer.variance_x * layer.variance_y)
    lam = drive.clamp(-bound, bound)
    low, high = -bound, bound.clone()
    active = torch.arange(len(lam))
    for _ in range(_STEPS):
        part = layer.subset(active) if len(active) < len(lam) else layer
        here = lam[active]
        value, slope = part.both(here)
        rest = here - s2a * value - drive[active]
        low[active] = torch.where(rest <= 0, here, low[active])
        high[active] = torch.where(rest >= 0, here, high[active])
        step = here - rest / (1.0 - s2a * slope).clamp_min(1e-3)
        # outside the bracket Newton is replaced by bisection: slopes of kinked activations are steep near rho = 1
        inside = (step >= low[active]) & (step <= high[active])
        lam[active] = torch.where(inside, step, 0.5 * (low[active] + high[active]))
        done = (lam[active] - here).abs() <= 4e-16 * bound[active]
        settled = done | (rest.abs() <= 2e-16 * bound[active])
        keep = ~settled
        if not bool(keep.any()):
            return lam
        if int(keep.sum()) < 0.5 * len(active):
            active = active[keep]
    return _accept(deq, layer, lam, drive, bound)


def _accept(deq: DEQ, layer: Layer, lam: Tensor, drive: Tensor, bound: Tensor) -> Tensor:
    rest = (lam - deq.variances[0] * layer.both(lam)[0] - drive).abs()
    worst = float((rest / bound.clamp_min(1e-300)).max())
    if worst > 1e-13 or math.isnan(worst):
        raise ConvergenceError(
            f"the covariance equation of {deq!r} did not converge (relative residual {worst:.1e}); sigma_a2 is likely "
            f"beyond the range in which the kernel exists (guaranteed below {deq.limit:.6g})"
        )
    return lam


def equilibrium_variance(deq: DEQ, s: Tensor) -> Tensor:
    """q = s2a E[phi(sqrt(q) xi)^2] + s2b s, at the distinct squared norms; differentiable."""
    distinct, inverse = torch.unique(s.detach(), return_inverse=True)
    q = _solve_variance(deq, distinct)[inverse]
    if torch.is_grad_enabled() and (s.requires_grad or _variances(deq)):
        rate = 0.5 * deq.variances[0] * _square_response(deq.activation, q)
        rest = q - deq.sigma_a2 * mean_square(deq.activation, "value", q) - deq.sigma_b2 * s
        q = q - rest / (1.0 - rate)
    return q


def _solve_variance(deq: DEQ, s: Tensor) -> Tensor:
    s2a, s2b = deq.variances
    drive = s2b * s
    degree = deq.activation.homogeneity
    if degree == 1.0:  # E[phi^2] = q E[phi(xi)^2]
        gap = 1.0 - s2a * float(mean_square(deq.activation, "value", torch.ones(1, dtype=torch.float64)))
        if gap <= 0:
            raise ConvergenceError(f"the variance equation of {deq!r} has no solution: sigma_a2 E[phi(xi)^2] >= 1")
        return drive / gap
    low, high = drive.clone(), torch.full_like(drive, math.inf)
    q = drive + s2a * mean_square(deq.activation, "value", drive)
    for _ in range(_STEPS):
        value = mean_square(deq.activation, "value", q)
        rest = q - s2a * value - drive
        low, high = torch.where(rest <= 0, q, low), torch.where(rest >= 0, q, high)
        rate = 0.5 * s2a * _square_response(deq.activation, q)
        step = q - rest / (1.0 - rate).clamp_min(0.05)
        fallback = torch.where(torch.isinf(high), 2.0 * q + drive, 0.5 * (low + high))
        following = torch.where((step >= low) & (step <= high), step, fallback)
        settled = ((following - q).abs() <= 4e-16 * following) | (rest.abs() <= 2e-16 * q)
        q = following
        if bool(settled.all()):
            return q
        if bool((q > 1e12 * (1.0 + drive)).any()):
            break
    worst = float(((q - s2a * mean_square(deq.activation, "value", q) - drive).abs() / q.clamp_min(1e-300)).max())
    if worst > 1e-13 or math.isnan(worst):
        raise ConvergenceError(
            f"the variance equation of {deq!r} did not converge (relative residual {worst:.1e}); sigma_a2 is likely "
            f"beyond the range in which the kernel exists (guaranteed below {deq.limit:.6g})"
        )
    return q


# ---- one-dimensional means as functions of the variance ----------------------------------------------------


def mean_square(phi: Activation, part: str, q: Tensor) -> Tensor:
    """E[f(sqrt(q) xi)^2], f = phi or phi', with its derivative in q; evaluated once per distinct q."""
    return _MeanSquare.apply(phi, part, q)


class _MeanSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, phi: Activation, part: str, q: Tensor) -> Tensor:
        ctx.phi, ctx.part = phi, part
        ctx.save_for_backward(q)
        if degree_of(phi) is not None:  # exact: a rule that ends at 13 deviations would cut the tails of a high degree
            return _distinct(q, lambda tau: getattr(moments(phi, tau), "square" if part == "value" else "slope_square"))
        f = phi._value if part == "value" else phi._slope
        return _distinct(q, lambda tau: _expect(phi, lambda x: f(x) ** 2, tau))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor]:
        (q,) = ctx.saved_tensors
        if ctx.part == "value":
            return None, None, grad * 0.5 * _square_response(ctx.phi, q)
        return None, None, grad * _slope_response(ctx.phi, q)


def _expect(phi: Activation, f: Any, tau: Tensor) -> Tensor:
    rows = []
    if set(phi.kinks) <= {0.0}:  # one rule serves all scales
        xi, weights = shared_rule(float(tau.max()), phi.feature)
        return torch.cat([f(part[:, None] * xi) @ weights for part in tau.split(1024)])
    for part in tau.split(256):
        nodes, mass = normal_rule(part, phi.kinks, phi.feature)
        rows.append((f(part[:, None] * nodes) * mass).sum(-1))
    return torch.cat(rows)


def _distinct(q: Tensor, function: Any) -> Tensor:
    distinct, inverse = torch.unique(q.detach(), return_inverse=True)
    return function(distinct.clamp_min(1e-30).sqrt())[inverse]


def _square_response(phi: Activation, q: Tensor) -> Tensor:
    """2 d E[phi(sqrt(q) xi)^2] / dq = E[(phi^2)''] = E[2 x phi phi'] / q (and the jumps' share)."""
    if degree_of(phi) is not None:
        return _distinct(q, lambda tau: moments(phi, tau).square_curvature)
    return 2.0 * _response(phi, lambda x: phi._value(x) ** 2, lambda x: 2.0 * phi._value(x) * phi._slope(x), q)


def _slope_response(phi: Activation, q: Tensor) -> Tensor:
    """d E[phi'(sqrt(q) xi)^2] / dq."""
    return _response(phi, lambda x: phi._slope(x) ** 2, lambda x: 2.0 * phi._slope(x) * phi._curvature(x), q)


def _response(phi: Activation, f: Any, df: Any, q: Tensor) -> Tensor:
    """d E[f(sqrt(q) xi)] / dq = (E[x f'(x)] + sum_c c [f](c) p(c)) / (2 q)."""

    def inner(tau: Tensor) -> Tensor:
        total = _expect(phi, lambda x: x * df(x), tau)
        for c in phi.kinks:
            sides = torch.nextafter(
                torch.full((2,), c, dtype=torch.float64), torch.tensor([-math.inf, math.inf], dtype=torch.float64)
            )
            below, above = f(sides)
            density = torch.exp(-0.5 * (c / tau) ** 2) / (math.sqrt(2.0 * math.pi) * tau)
            total = total + c * (above - below) * density
        return total / (2.0 * tau * tau)

    return _distinct(q, inner)
