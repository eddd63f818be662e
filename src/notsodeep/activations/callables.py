"""User functions as activations."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import ActivationError, SerialisationError
from .base import Activation, Parity, differentiate

_POINTS = 9
_STEP = 0.02  # truncation and rounding of nine-point differences balance near here for functions of unit scale
_AT_ONCE = 1 << 15  # points whose stencils are held together
_USUAL = 4e-8  # seconds that a value and a slope of the library's own functions take


@dataclass(frozen=True)
class CallableActivation(Activation):
    """A user's function; made by :meth:`Activation.from_callable`. Equal only to itself; not written as JSON."""

    function: Callable[[Any], Any]
    rough: tuple[float, ...] = ()
    slope_function: Callable[[Any], Any] | None = None
    slopes: tuple[float, float] = (-float("inf"), float("inf"))
    resolution: float = 1.0
    symmetry: Parity | None = None
    numpy: bool = False
    label: str = "callable"
    name: ClassVar[str] = "callable"

    kinks = property(lambda self: self.rough)
    slope_range = property(lambda self: self.slopes)
    parity = property(lambda self: self.symmetry)

    def __repr__(self) -> str:
        kinks = f", kinks={self.rough}" if self.rough else ""
        return f"CallableActivation({self.label}{kinks})"

    def to_dict(self) -> dict[str, Any]:
        """Refused: a Python function has no JSON form."""
        raise SerialisationError(
            f"{self!r} wraps a Python function and cannot be written as JSON; use a built-in activation, "
            "a piecewise linear or a Hermite one, or pickle the object"
        )

    def _value(self, x: Tensor) -> Tensor:
        return _NumpyFunction.apply(x, self, 0) if self.numpy else evaluate(self.function, x, numpy=False)

    def _slope(self, x: Tensor) -> Tensor:
        if self.numpy:
            return _NumpyFunction.apply(x, self, 1)
        if self.slope_function is not None:
            return evaluate(self.slope_function, x, numpy=False)
        return differentiate(self._value, x)

    def _curvature(self, x: Tensor) -> Tensor:
        return _NumpyFunction.apply(x, self, 2) if self.numpy else differentiate(self._slope, x)

    def _smooth_parts(self) -> tuple[Callable[[Tensor], Tensor], ...]:
        # differences of a NumPy function carry their own noise; only exact slopes are asked to be resolved
        exact = not self.numpy or self.slope_function is not None
        return (self._value, self._slope) if exact else (self._value,)

    def _price(self) -> float:
        """Measured: a loop in Python may be a hundred times slower than what the library announces as slow."""
        x, best = torch.linspace(-2.0, 2.0, 4096, dtype=torch.float64), float("inf")
        for _ in range(3):
            start = time.process_time()
            self._value(x), self._slope(x)
            best = min(best, time.process_time() - start)
        return max(1.0, best / len(x) / _USUAL)

    def sides(self) -> tuple[Tensor, Tensor]:
        # a few units away: the position of a user's kink may be rounded once more inside the function
        c = np.asarray(self.rough, dtype=np.float64)
        gap = 4.0 * np.spacing(np.abs(c))
        points = torch.from_numpy(np.stack([c - gap, c + gap]))
        return self._value(points), self._slope(points)


def evaluate(function: Callable[[Any], Any], x: Tensor, numpy: bool) -> Tensor:
    """The user's function on a tensor, in the tensor's dtype and on its device; floating-point noise stays quiet."""
    if not numpy:
        return function(x).to(x.dtype)
    if x.numel() == 0:  # np.vectorize refuses empty arrays
        return torch.empty_like(x)
    with np.errstate(all="ignore"):
        values = np.asarray(function(x.detach().cpu().numpy().astype(np.float64)), dtype=np.float64)
    return torch.from_numpy(np.array(values)).to(x.device, x.dtype)


class _NumpyFunction(torch.autograd.Function):
    """A NumPy function (order 0), its slope (1) or curvature (2); gradients come from the next order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, phi: CallableActivation, order: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.phi, ctx.order = phi, order
        if order == 0:
            return evaluate(phi.function, x, numpy=True)
        if phi.slope_function is None:
            return difference(phi, x, order, phi.function)
        if order == 1:
            return evaluate(phi.slope_function, x, numpy=True)
        return difference(phi, x, 1, phi.slope_function)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.order == 2:
            raise ActivationError(
                f"{ctx.phi!r} is a NumPy function: its third derivative is not available; "
                "write it with torch functions instead"
            )
        (x,) = ctx.saved_tensors
        return gradient * _NumpyFunction.apply(x, ctx.phi, ctx.order + 1), None, None


def difference(phi: CallableActivation, x: Tensor, order: int, function: Callable[[Any], Any]) -> Tensor:
    """Derivative of a NumPy function by nine-point differences that never cross a kink.

    Away from kinks the stencil is central. Within half a stencil of one it is fixed on that side, and the
    interpolating polynomial is differentiated where the point lies.
    """
    flat = x.detach().to("cpu", torch.float64).reshape(-1)
    pieces = [_difference(phi, part, order, function) for part in flat.split(_AT_ONCE)]
    return torch.cat(pieces).reshape(x.shape).to(x.device, x.dtype)


def _difference(phi: CallableActivation, point: Tensor, order: int, function: Callable[[Any], Any]) -> Tensor:
    step = _stencil_step(phi)
    half = _POINTS // 2
    offsets = torch.arange(_POINTS, dtype=torch.float64)
    central = evaluate(function, point[..., None] + step * (offsets - half), numpy=True)
    out = central @ _weights_in_the_middle(order)
    for c in phi.rough:
        for side in (1.0, -1.0):
            t = side * (point - c) / step
            near = ((t >= 0) if side > 0 else (t > 0)) & (t < half)
            if bool(near.any()):
                # the kink itself belongs to one side only: stay a hair away from it
                nodes = c + side * (step * offsets + 4.0 * np.spacing(abs(c)))
                out[near] = side**order * _interpolated(evaluate(function, nodes, numpy=True), t[near], order)
    return out / step**order


def _stencil_step(phi: CallableActivation) -> float:
    gaps = [b - a for a, b in zip(phi.rough, phi.rough[1:], strict=False)]
    return min([_STEP * phi.resolution, *(g / _POINTS for g in gaps)])


def _interpolated(values: Tensor, t: Tensor, order: int) -> Tensor:
    """The ``order``-th derivative, at positions t of a stencil with nodes 0 ... 8, of what interpolates ``values``."""
    half = _POINTS // 2
    x, out = t / half - 1.0, torch.zeros_like(t)
    for c in reversed((_lagrange(order) @ values).tolist()):
        out.mul_(x).add_(c)
    return out / float(half) ** order


@functools.cache
def _weights_in_the_middle(order: int) -> Tensor:
    """Those of the central difference: the constant coefficients of the differentiated polynomials."""
    return _lagrange(order)[0] / float(_POINTS // 2) ** order


@functools.cache
def _lagrange(order: int) -> Tensor:
    """Monomial coefficients (rows) of the differentiated Lagrange polynomials (columns) on nodes in [-1, 1]."""
    nodes = np.linspace(-1.0, 1.0, _POINTS)
    columns = []
    for j, node in enumerate(nodes):
        others = np.delete(nodes, j)
        basis = np.polynomial.Polynomial.fromroots(others) / float(np.prod(node - others))
        columns.append(np.pad(basis.deriv(order).coef, (0, order)))
    return torch.from_numpy(np.stack(columns, axis=1))
