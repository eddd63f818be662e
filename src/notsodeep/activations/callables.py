"""User functions as activations, after every check that can be made; a refusal says what was seen and what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ActivationError, ConvergenceError, SerialisationError
from .base import Activation, Parity
from .panels import normal_nodes

_REACH = 30.0  # points and Gaussian scales up to here are checked


@dataclass(frozen=True)
class CallableActivation(Activation):
    """A user's torch function, made by :meth:`Activation.from_callable`; it is equal only to itself.

    What is stored for it belongs to its values: a function that has changed since it was made is refused.
    """

    function: Callable[[Tensor], Tensor]
    rough: tuple[float, ...] = ()
    slopes: tuple[float, float] = (-float("inf"), float("inf"))
    symmetry: Parity | None = None
    label: str = "callable"
    seen: bytes = b""  # its values on a grid, when it was made

    name = property(lambda self: self.label)
    kinks = property(lambda self: self.rough)
    parity = property(lambda self: self.symmetry)

    @property
    def slope_range(self) -> tuple[float, float]:
        self._check_unchanged()
        return self.slopes

    def __hash__(self) -> int:
        """Return a hash of the function and its values, asked by everything that stores results."""
        self._check_unchanged()
        return hash((id(self.function), self.rough, self.symmetry, self.label, self.seen))

    def _check_unchanged(self) -> None:
        """Refuse a function that has other values than when it was made; another processor may round differently."""
        known = np.frombuffer(self.seen)
        if len(known) and not np.allclose(_sampled(self.function), known, rtol=1e-9, atol=1e-12, equal_nan=True):
            raise ActivationError(
                f"{self.label} has other values than when it was made into an activation: its parameters, or variables "
                "that it reads, have changed; make the network or the estimator again"
            )

    def __repr__(self) -> str:
        kinks = f", kinks={self.rough}" if self.rough else ""
        return f"CallableActivation({self.label}{kinks})"

    def to_dict(self) -> dict[str, Any]:
        """Raise an error, since a Python function has no JSON form."""
        raise SerialisationError(
            f"{self!r} wraps a Python function and cannot be written as JSON; use a built-in activation or a Hermite "
            "one, or pickle the object"
        )

    def _value(self, x: Tensor) -> Tensor:
        return self.function(x).to(x.dtype)

    def smooth_parts(self) -> tuple[Callable[[Tensor], Tensor], ...]:
        return (self._value, self._slope)

    def sides(self) -> tuple[Tensor, Tensor]:
        # a few units away: the position of a user's kink may be rounded once more inside the function
        c = np.asarray(self.rough, dtype=np.float64)
        gap = 4.0 * np.spacing(np.abs(c))
        points = torch.from_numpy(np.stack([c - gap, c + gap]))
        return self._value(points), self._slope(points)


def make_callable(function: Callable[[Any], Any], kinks: Sequence[float], name: str | None) -> CallableActivation:
    """Build a :class:`CallableActivation` from a function that has passed every check."""
    given = str(name or getattr(function, "__name__", type(function).__name__))
    label = given.encode("unicode_escape").decode("ascii")[:60]  # one plain line, whatever it is called
    grid = torch.linspace(-_REACH, _REACH, 6001, dtype=torch.float64) + 1.234567e-4  # off every usual kink
    for c in kinks:
        grid = grid[(grid - c).abs() > 1e-9]
    phi = CallableActivation(function, tuple(sorted(set(kinks))), label=label)
    values = _called(phi, grid)
    _check_elementwise(phi, grid, values)
    _check_undeclared_kinks(phi, grid, values)
    _check_derivatives(phi)
    phi = replace(phi, symmetry=_parity(phi))
    _check_growth(phi)
    return replace(phi, slopes=_slopes(phi), seen=_sampled(function).tobytes())


def _sampled(function: Callable[[Tensor], Tensor]) -> NDArray[np.float64]:
    """Return the values of a function on a grid that is dense around zero and reaches to a thousand."""
    x = torch.linspace(-7.6, 7.6, 1001, dtype=torch.float64).sinh() + 0.0123
    with torch.no_grad():
        return np.asarray(function(x).to(torch.float64))


def _called(phi: CallableActivation, grid: Tensor) -> Tensor:
    """Return the values at the grid, which must be real, finite and as many as the points."""
    try:
        # a NumPy function refuses a tensor that tracks gradients, where it would quietly drop them otherwise
        result = phi.function(grid.clone().requires_grad_(True))
    except Exception as error:
        raise ActivationError(
            f"{phi.label} could not be called on a torch tensor: {type(error).__name__}: {error}. "
            "Write it with torch functions, so that it can be differentiated"
        ) from error
    if not isinstance(result, Tensor) or result.shape != grid.shape or result.is_complex():
        seen = f"{result.dtype} of shape {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
        raise ActivationError(
            f"{phi.label} must return a real tensor of its argument's shape {tuple(grid.shape)}, got {seen}"
        )
    values = result.detach().to(torch.float64)
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        where = float(grid[bad][0])
        raise ActivationError(f"{phi.label} is not finite: {phi.label}({where:.4g}) = {float(values[bad][0])}")
    return values


def _check_elementwise(phi: CallableActivation, grid: Tensor, values: Tensor) -> None:
    """Refuse functions whose values depend on the order or the shape of numbers: no softmax, no randomness."""
    order = torch.arange(len(grid)).flip(0)[: 2 * (len(grid) // 2)]
    again = _called(phi, grid[order].reshape(2, -1))
    if not torch.allclose(again, values[order].reshape(2, -1), rtol=1e-12, atol=1e-12):
        raise ActivationError(
            f"{phi.label} is not an elementwise, deterministic function: the same numbers in another order "
            "gave other values"
        )


def _check_undeclared_kinks(phi: CallableActivation, grid: Tensor, values: Tensor) -> None:
    """Refuse kinks that were not declared, which show as second differences that do not shrink with the step."""
    kinks, step = phi.rough, float(grid[1] - grid[0])
    bend = (values[2:] - 2.0 * values[1:-1] + values[:-2]).abs() / step
    local = bend.unfold(0, 21, 1).median(dim=-1).values
    local = torch.cat([local[:1].expand(10), local, local[-1:].expand(10)])
    scale = 1e-3 * (1.0 + (values[1:-1]).abs())
    suspects = grid[1:-1][bend > 8.0 * local + scale].tolist()
    windows = [(x - 2 * step, x + 2 * step) for x in suspects if all(abs(x - c) > 2 * step for c in kinks)]
    # beside a declared kink there must not be another: that would be the same one, declared where it is not
    windows += [(c + s * 1e-12 * (1 + abs(c)), c + s * 2 * step) for c in kinks for s in (-1.0, 1.0)]
    for low, high in windows:
        where = _bend_inside(phi, low, high)
        if where is not None and all(abs(where - c) > 1e-12 * (1 + abs(c)) for c in kinks):
            near = f"{round(where, 6) + 0.0:.6g}"  # it is found to 1e-7: no 1.92e-08 for zero
            raise ActivationError(
                f"{phi.label} has a kink or a jump near x = {near} that was not declared; "
                f"pass kinks=({near},) with its exact position to Activation.from_callable"
            )


def _bend_inside(phi: CallableActivation, low: float, high: float) -> float | None:
    """Return the position of a change of slope that survives two zooms by forty, or ``None``."""
    bends = []
    for _ in range(3):
        x = torch.linspace(low, high, 81, dtype=torch.float64)
        y = phi._value(x).detach()
        bend = (y[2:] - 2.0 * y[1:-1] + y[:-2]).abs() / float((x[1] - x[0]).abs())
        peak = int(bend.argmax())
        bends.append(float(bend[peak]))
        low, high = float(x[peak]), float(x[peak + 2])
    rounding = 1e-5 * (1.0 + float(y.abs().max()))
    return 0.5 * (low + high) if bends[-1] > max(0.1 * bends[0], rounding) else None


def _check_derivatives(phi: CallableActivation) -> None:
    """Refuse the functions of torch that have no second derivative."""
    x = torch.tensor([-2.1, -0.3, 0.4, 1.7], dtype=torch.float64)
    try:
        phi._slope(x), phi._curvature(x)
    except (RuntimeError, NotImplementedError) as error:
        raise ActivationError(
            f"torch cannot differentiate {phi.label} twice: {error}. Write it with elementary torch functions"
        ) from error


def _parity(phi: CallableActivation) -> Parity | None:
    if phi.rough != tuple(-c for c in reversed(phi.rough)):
        return None
    x = torch.cat([torch.linspace(0.01, 8.0, 400), torch.linspace(8.1, _REACH, 200)]).to(torch.float64) * 1.0123
    plus, minus = phi._value(x).detach(), phi._value(-x).detach()
    tolerance = 1e-13 * plus.abs() + 1e-300
    if bool(((plus + minus).abs() <= tolerance).all()):
        return "odd"
    return "even" if bool(((plus - minus).abs() <= tolerance).all()) else None


def _check_growth(phi: CallableActivation) -> None:
    """Refuse functions whose Gaussian expectations at scales up to 30 are not resolved, or not finite."""
    tau = torch.tensor([_REACH], dtype=torch.float64)
    try:
        xi, weights = normal_nodes(tau, phi.panels())
    except ConvergenceError as error:
        raise ActivationError(
            f"Gaussian expectations of {phi.label} do not settle: {error}, or declare kinks at their exact positions"
        ) from None
    if not bool(torch.isfinite((phi._value(tau * xi).detach() ** 2 * weights).sum())):
        raise ActivationError(
            f"{phi.label} grows too fast: E[{phi.label}(tau xi)^2] is not finite for tau up to {_REACH:g}"
        )


def _slopes(phi: CallableActivation) -> tuple[float, float]:
    """Return the infimum and the supremum of phi', infinite if phi jumps or if phi' still grows far out."""
    if any(phi.value_jumps()):
        return (-math.inf, math.inf)
    places = torch.tensor([-400.0, -200.0, 200.0, 400.0], dtype=torch.float64)
    far = phi._slope(places[:, None] + torch.linspace(-20.0, 20.0, 801, dtype=torch.float64)).detach()
    size = far.abs().amax(dim=1).tolist()  # over a window: a wave has no limit, but it does not grow either
    if not all(map(math.isfinite, size)) or size[0] > 1.5 * size[1] + 1e-6 or size[3] > 1.5 * size[2] + 1e-6:
        return (-math.inf, math.inf)
    grid = torch.linspace(-_REACH, _REACH, 12_001, dtype=torch.float64)
    on_grid, at_kinks = phi._slope(grid).detach(), phi.sides()[1].detach().flatten()
    rest = torch.cat([far.flatten(), at_kinks, on_grid])
    low = min(float(rest.min()), _refined(phi, float(grid[on_grid.argmin()]), float(grid[1] - grid[0]), -1.0))
    high = max(float(rest.max()), _refined(phi, float(grid[on_grid.argmax()]), float(grid[1] - grid[0]), 1.0))
    return (low, high)


def _refined(phi: CallableActivation, centre: float, width: float, sign: float) -> float:
    """Return the extremum of phi' near ``centre``: three zooms by a hundred leave nothing to find above rounding."""
    for _ in range(3):
        x = torch.linspace(centre - width, centre + width, 201, dtype=torch.float64)
        slope = phi._slope(x).detach()
        peak = int((sign * slope).argmax())
        centre, width = float(x[peak]), width / 100.0
    return float(slope[peak])
