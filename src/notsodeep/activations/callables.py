"""User functions as activations: what can be checked about them is checked here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .._quadrature import normal_rule
from ..errors import ActivationError, SerialisationError
from .base import Activation, Parity, _differentiate, _slope_supremum

_STENCIL = np.arange(-4, 5)
_STEP = 0.02
_REACH = 30.0


@dataclass(frozen=True)
class CallableActivation(Activation):
    """A user's function; made by :meth:`Activation.from_callable`. Equal only to itself; not written as JSON."""

    function: Callable[[Any], Any]
    rough: tuple[float, ...] = ()
    slope_function: Callable[[Any], Any] | None = None
    constant: float = float("inf")
    resolution: float = 1.0
    symmetry: Parity | None = None
    numpy: bool = False
    label: str = "callable"
    name: ClassVar[str] = "callable"

    kinks = property(lambda self: self.rough)  # type: ignore[assignment]
    lipschitz = property(lambda self: self.constant)  # type: ignore[assignment]
    parity = property(lambda self: self.symmetry)  # type: ignore[assignment]
    feature = property(lambda self: self.resolution)  # type: ignore[assignment]

    def __repr__(self) -> str:
        kinks = f", kinks={self.rough}" if self.rough else ""
        return f"CallableActivation({self.label}{kinks})"

    def to_dict(self) -> dict[str, Any]:
        raise SerialisationError(
            f"{self!r} wraps a Python function and cannot be written as JSON; use a built-in activation, "
            "a piecewise linear or a Hermite one, or pickle the object"
        )

    def _value(self, x: Tensor) -> Tensor:
        return _call(self.function, x, self.numpy)

    def _slope(self, x: Tensor) -> Tensor:
        if self.slope_function is not None:
            return _call(self.slope_function, x, self.numpy)
        return _finite_difference(self, x, 1) if self.numpy else _differentiate(self._value, x)

    def _curvature(self, x: Tensor) -> Tensor:
        if self.numpy and self.slope_function is None:
            return _finite_difference(self, x, 2)
        if self.numpy:
            return _finite_difference(self, x, 1, self._slope)
        return _differentiate(self._slope, x)


def _call(function: Callable[[Any], Any], x: Tensor, numpy: bool) -> Tensor:
    if not numpy:
        return function(x)
    flat = np.asarray(function(x.detach().cpu().numpy().astype(np.float64)), dtype=np.float64)
    return torch.from_numpy(np.ascontiguousarray(flat)).to(x.device, x.dtype)


def _finite_difference(
    phi: CallableActivation, x: Tensor, order: int, function: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Nine-point differences whose stencil is shifted so as not to cross a kink."""
    f = function or phi._value
    point = x.detach().to("cpu", torch.float64)
    step = _STEP * phi.resolution
    grid = torch.from_numpy(_STENCIL).to(torch.float64)
    shift = torch.zeros_like(point)
    for c in phi.rough:
        gap = (point - c) / step
        right = (gap >= 0) & (gap < 4)
        left = (gap < 0) & (gap > -4)
        shift = torch.where(right, 4.0 - gap, torch.where(left, -4.0 - gap, shift))
    # the kink itself belongs to one side only: keep the stencil a hair inside
    shift = shift * (1.0 + 1e-9)
    offsets = grid + shift[..., None]
    values = f(point[..., None] + step * offsets)
    weights = _stencil_weights(offsets, order)
    return ((values * weights).sum(-1) / step**order).to(x.device, x.dtype)


def _stencil_weights(offsets: Tensor, order: int) -> Tensor:
    """Weights w with sum w_i f(t_i) = f^(order)(0) for polynomials of degree 8: a scaled Vandermonde solve."""
    scaled = offsets / 4.0
    powers = torch.arange(9, dtype=torch.float64)
    matrix = scaled[..., None, :] ** powers[:, None]
    target = torch.zeros(9, dtype=torch.float64)
    target[order] = float(order) if order == 2 else 1.0
    return torch.linalg.solve(matrix, target.expand(*matrix.shape[:-1])) / 4.0**order


def make_callable(
    function: Callable[[Any], Any],
    kinks: Sequence[float],
    *,
    derivative: Callable[[Any], Any] | None,
    lipschitz: float | None,
    name: str | None,
) -> CallableActivation:
    """Build and check; every refusal says what was seen and what to do."""
    if not callable(function):
        raise ActivationError(f"from_callable needs a function of an array, got {function!r}")
    rough = tuple(sorted(float(k) for k in kinks))
    if not all(np.isfinite(rough)):
        raise ActivationError(f"kinks must be finite numbers, got {tuple(kinks)}")
    label = name or getattr(function, "__name__", "callable")
    grid = _probe_grid(rough)
    numpy, values = _try(function, grid, label)
    _check_undeclared_kinks(function, numpy, grid, values, rough, label)
    symmetry = _parity(function, numpy)
    draft = CallableActivation(function, rough, derivative, float("inf"), 1.0, symmetry, numpy, label)
    phi = _with_resolution(draft)
    if derivative is not None:
        _check_derivative(phi)
    constant = _estimate_lipschitz(phi) if lipschitz is None else float(lipschitz)
    return replace(phi, constant=constant)


def _probe_grid(kinks: Sequence[float]) -> Tensor:
    """Points off every kink, dense enough to see one that was not declared."""
    grid = torch.linspace(-_REACH, _REACH, 6001, dtype=torch.float64) + 1.234567e-4
    for c in kinks:
        grid = grid[(grid - c).abs() > 1e-9]
    return grid


def _try(function: Callable[[Any], Any], grid: Tensor, label: str) -> tuple[bool, Tensor]:
    """Call as a torch function, else as a NumPy function; True if NumPy."""
    try:
        # a NumPy function refuses a tensor that tracks gradients, where it would quietly drop them otherwise
        result = function(grid.clone().requires_grad_(True))
        if isinstance(result, Tensor) and result.shape == grid.shape:
            _check_finite(result.detach(), grid, label)
            return False, result.detach().to(torch.float64)
    except ActivationError:
        raise
    except Exception:  # a NumPy function may raise anything on a tensor; the NumPy call below decides
        pass
    try:
        result = np.asarray(function(grid.numpy()))
    except Exception as error:
        raise ActivationError(
            f"{label} could not be called on a one-dimensional array: {type(error).__name__}: {error}. "
            "It must be vectorised; np.vectorize turns a scalar function into one"
        ) from error
    if result.shape != tuple(grid.shape) or not np.issubdtype(result.dtype, np.number) or np.iscomplexobj(result):
        raise ActivationError(
            f"{label} must return a real array of its argument's shape {tuple(grid.shape)}, "
            f"got {result.dtype} of shape {result.shape}"
        )
    values = torch.from_numpy(result.astype(np.float64))
    _check_finite(values, grid, label)
    return True, values


def _check_finite(values: Tensor, grid: Tensor, label: str) -> None:
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        where = float(grid[bad][0])
        raise ActivationError(f"{label} is not finite: {label}({where:.4g}) = {float(values[bad][0])}")


def _check_undeclared_kinks(
    function: Callable[[Any], Any], numpy: bool, grid: Tensor, values: Tensor, kinks: Sequence[float], label: str
) -> None:
    """A kink shows as a second difference that does not shrink when the step does."""
    step = float(grid[1] - grid[0])
    bend = (values[2:] - 2.0 * values[1:-1] + values[:-2]).abs() / step
    local = bend.unfold(0, 21, 1).median(dim=-1).values
    local = torch.cat([local[:1].expand(10), local, local[-1:].expand(10)])
    scale = 1e-3 * (1.0 + (values[1:-1]).abs())
    suspects = grid[1:-1][bend > 8.0 * local + scale]
    for centre in suspects.tolist():
        if all(abs(centre - c) > 2.0 * step for c in kinks) and _bend_at(function, numpy, centre, step) > 0.1:
            raise ActivationError(
                f"{label} has a kink or a jump near x = {centre:.3g} that was not declared; "
                f"pass kinks=({centre:.3g},) with its exact position"
            )


def _bend_at(function: Callable[[Any], Any], numpy: bool, centre: float, step: float) -> float:
    """Slope change within +-2 steps that survives a hundredfold refinement, relative to what it was."""
    before = None
    low, high = centre - 2.0 * step, centre + 2.0 * step
    for _ in range(3):
        x = torch.linspace(low, high, 81, dtype=torch.float64)
        y = _call(function, x, numpy)
        h = float(x[1] - x[0])
        bend = (y[2:] - 2.0 * y[1:-1] + y[:-2]).abs() / h
        peak = int(bend.argmax())
        before = float(bend[peak]) if before is None else before
        low, high = float(x[peak]), float(x[peak + 2])
    return float(bend.max()) / max(before or 0.0, 1e-300)


def _parity(function: Callable[[Any], Any], numpy: bool) -> Parity | None:
    x = torch.linspace(0.01, 8.0, 200, dtype=torch.float64) * 1.0123
    plus, minus = _call(function, x, numpy), _call(function, -x, numpy)
    tolerance = 1e-13 * float(plus.abs().max() + 1e-300)
    if float((plus + minus).abs().max()) <= tolerance:
        return "odd"
    return "even" if float((plus - minus).abs().max()) <= tolerance else None


def _with_resolution(phi: CallableActivation) -> CallableActivation:
    """The coarsest panels on which E[phi^2] and E[phi] are settled from tau = 1e-3 to 30."""
    tau = torch.tensor([1e-3, 0.1, 1.0, 5.0, 30.0], dtype=torch.float64)
    previous: Tensor | None = None
    error = float("inf")
    for halvings in range(7):
        xi, weights = normal_rule(tau, phi.rough, 0.5**halvings)
        value = phi._value(tau[:, None] * xi)
        current = torch.stack([(value * weights).sum(-1), (value**2 * weights).sum(-1)])
        if not bool(torch.isfinite(current).all()):
            raise ActivationError(
                f"{phi.label} grows too fast: E[{phi.label}(tau xi)^2] is not finite for tau up to 30"
            )
        if previous is not None:
            error = float(((current - previous).abs() / (current[1].sqrt() + current[1] + 1e-300)).max())
            if error <= 1e-13:
                return replace(phi, resolution=0.5 ** (halvings - 1))
        previous = current
    raise ActivationError(
        f"Gaussian expectations of {phi.label} do not settle (relative change {error:.1e} on the finest panels): "
        "declare its kinks, or rescale an input that varies on a length below 1/32"
    )


def _check_derivative(phi: CallableActivation) -> None:
    x = torch.linspace(-6.0, 6.0, 241, dtype=torch.float64) + 3.21e-4
    given = phi._slope(x)
    if given.shape != x.shape or not bool(torch.isfinite(given).all()):
        raise ActivationError(f"the derivative of {phi.label} must be finite and keep its argument's shape")
    numeric = _finite_difference(phi, x, 1)
    worst = int((given - numeric).abs().argmax())
    if float((given - numeric).abs()[worst]) > 1e-6 * (1.0 + float(given.abs().max())):
        raise ActivationError(
            f"the derivative given for {phi.label} is {float(given[worst]):.6g} at x = {float(x[worst]):.3g}, "
            f"but differences of the function give {float(numeric[worst]):.6g}"
        )


def _estimate_lipschitz(phi: CallableActivation) -> float:
    """sup |phi'| on a grid; infinite if phi jumps or its slope still grows at the edge."""
    if any(phi.value_jumps()):
        return float("inf")
    edge = phi._slope(torch.tensor([-400.0, -200.0, 200.0, 400.0], dtype=torch.float64)).abs()
    if (
        not bool(torch.isfinite(edge).all())
        or float(edge[0]) > 1.5 * float(edge[1]) + 1e-6
        or float(edge[3]) > 1.5 * float(edge[2]) + 1e-6
    ):
        return float("inf")
    return max(_slope_supremum(phi), float(edge.max())) if not phi.numpy else _numpy_supremum(phi)


def _numpy_supremum(phi: CallableActivation) -> float:
    grid = torch.linspace(-_REACH, _REACH, 6001, dtype=torch.float64)
    sides = torch.tensor([np.nextafter(k, s) for k in phi.rough for s in (-np.inf, np.inf)], dtype=torch.float64)
    return float(phi._slope(torch.cat([grid, sides])).abs().max())
