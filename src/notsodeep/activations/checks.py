"""What can be checked about a user's function is checked here; every refusal says what was seen and what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ActivationError, ConvergenceError
from .base import Parity
from .callables import CallableActivation, difference
from .panels import REACH, normal_nodes

_REACH = 30.0
_WIDEST = 30.0  # scales up to here must work
_FAR = (-400.0, -200.0, 200.0, 400.0)  # where slopes must have settled, or at least stopped growing


def make_callable(
    function: Callable[[Any], Any],
    kinks: Sequence[float],
    *,
    derivative: Callable[[Any], Any] | None,
    lipschitz: float | None,
    name: str | None,
) -> CallableActivation:
    """Build a :class:`CallableActivation` from a function that has passed every check."""
    given = str(name or getattr(function, "__name__", type(function).__name__))
    label = given.encode("unicode_escape").decode("ascii")[:60]  # one plain line, whatever it is called
    rough = tuple(sorted(set(kinks)))
    grid = _probe_grid(rough)
    numpy, values = _try(function, grid, label)
    draft = CallableActivation(function, rough, derivative, numpy=numpy, label=label)
    _check_elementwise(draft, grid, values)
    _check_undeclared_kinks(draft, grid, values)
    _check_derivatives_exist(draft)
    phi = _with_resolution(replace(draft, symmetry=_parity(draft)))
    if derivative is not None:
        _check_derivative(phi)
    return replace(phi, slopes=_slopes(phi, lipschitz))


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
    except Exception:  # a NumPy function may raise anything on a tensor; the NumPy call below decides
        result = None
    if isinstance(result, Tensor) and result.shape == grid.shape and not result.is_complex():
        values = result.detach().to(torch.float64)
        _check_finite(values, grid, label)
        return False, values
    try:
        with np.errstate(all="ignore"):
            array = np.asarray(function(grid.numpy().copy()))
    except Exception as error:
        raise ActivationError(
            f"{label} could not be called on a one-dimensional array: {type(error).__name__}: {error}. "
            "It must be vectorised; np.vectorize turns a scalar function into one"
        ) from error
    if array.shape != tuple(grid.shape) or array.dtype.kind not in "fiub":
        raise ActivationError(
            f"{label} must return a real array of its argument's shape {tuple(grid.shape)}, "
            f"got {array.dtype} of shape {array.shape}"
        )
    values = torch.from_numpy(array.astype(np.float64))
    _check_finite(values, grid, label)
    return True, values


def _check_finite(values: Tensor, grid: Tensor, label: str) -> None:
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        where = float(grid[bad][0])
        raise ActivationError(f"{label} is not finite: {label}({where:.4g}) = {float(values[bad][0])}")


def _check_elementwise(phi: CallableActivation, grid: Tensor, values: Tensor) -> None:
    """The same numbers in another order and shape must give the same values: no softmax, no randomness."""
    order = torch.arange(len(grid)).flip(0)[: 2 * (len(grid) // 2)]
    try:
        again = phi._value(grid[order].reshape(2, -1)).detach()
    except Exception as error:
        raise ActivationError(
            f"{phi.label} works on one-dimensional arrays but not on two-dimensional ones: {type(error).__name__}: "
            f"{error}"
        ) from error
    expected = values[order].reshape(2, -1)
    same = again.shape == expected.shape and torch.allclose(again, expected, rtol=1e-12, atol=1e-12)
    if not same:
        raise ActivationError(
            f"{phi.label} is not an elementwise, deterministic function: the same numbers in another order "
            "gave other values"
        )


def _check_undeclared_kinks(phi: CallableActivation, grid: Tensor, values: Tensor) -> None:
    """A kink shows as a second difference that does not shrink when the step does."""
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
            raise ActivationError(
                f"{phi.label} has a kink or a jump near x = {where:.6g} that was not declared; "
                f"pass kinks=({where:.6g},) with its exact position"
            )


def _bend_inside(phi: CallableActivation, low: float, high: float) -> float | None:
    """The position of a change of slope that survives two zooms by forty, or None."""
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


def _parity(phi: CallableActivation) -> Parity | None:
    if phi.rough != tuple(-c for c in reversed(phi.rough)):
        return None
    x = torch.cat([torch.linspace(0.01, 8.0, 400), torch.linspace(8.1, _REACH, 200)]).to(torch.float64) * 1.0123
    plus, minus = phi._value(x).detach(), phi._value(-x).detach()
    tolerance = 1e-13 * plus.abs() + 1e-300
    if bool(((plus + minus).abs() <= tolerance).all()):
        return "odd"
    return "even" if bool(((plus - minus).abs() <= tolerance).all()) else None


def _with_resolution(phi: CallableActivation) -> CallableActivation:
    """Resolved at scales up to 30, with the length of its shortest panel; beyond, panels are found when needed."""
    try:
        edges = phi.panels().edges(_WIDEST * REACH)
    except ConvergenceError as error:
        raise ActivationError(
            f"Gaussian expectations of {phi.label} do not settle: {error}, or declare kinks at their exact positions"
        ) from None
    tau = torch.tensor([_WIDEST], dtype=torch.float64)
    xi, weights = normal_nodes(tau, phi.panels())
    if not bool(torch.isfinite((phi._value(tau * xi).detach() ** 2 * weights).sum())):
        raise ActivationError(
            f"{phi.label} grows too fast: E[{phi.label}(tau xi)^2] is not finite for tau up to {_WIDEST:g}"
        )
    shortest = float(edges[: len(edges) - len(phi.rough)].diff().min())
    return replace(phi, resolution=min(1.0, shortest))


def _check_derivatives_exist(phi: CallableActivation) -> None:
    """A derivative that is given must work, and torch must find the others: not every function has two there."""
    x = torch.tensor([-2.1, -0.3, 0.4, 1.7], dtype=torch.float64)
    if phi.slope_function is not None:
        try:
            given = phi._slope(x).detach()
        except Exception as error:
            kind = "NumPy array" if phi.numpy else "torch tensor"
            raise ActivationError(
                f"the derivative of {phi.label} could not be called on a {kind}, as {phi.label} is: "
                f"{type(error).__name__}: {error}"
            ) from error
        if given.shape != x.shape or not bool(torch.isfinite(given).all()):
            raise ActivationError(f"the derivative of {phi.label} must be finite and keep its argument's shape")
    if phi.numpy:
        return
    try:
        phi._slope(x)
        phi._curvature(x)
    except (RuntimeError, NotImplementedError) as error:
        raise ActivationError(
            f"torch cannot differentiate {phi.label} twice: {error}. Write it with elementary torch functions, "
            "or as a NumPy function"
        ) from error


def _check_derivative(phi: CallableActivation) -> None:
    """What is given against differences, whose step is fit for the function."""
    x = torch.linspace(-6.0, 6.0, 241, dtype=torch.float64) + 3.21e-4
    given, numeric = phi._slope(x).detach(), difference(phi, x, 1, phi)
    worst = int((given - numeric).abs().argmax())
    if not float((given - numeric).abs()[worst]) <= 1e-6 * (1.0 + float(given.abs().max())):
        raise ActivationError(
            f"the derivative given for {phi.label} is {float(given[worst]):.6g} at x = {float(x[worst]):.3g}, "
            f"but differences of the function give {float(numeric[worst]):.6g}"
        )


def _slopes(phi: CallableActivation, lipschitz: float | None) -> tuple[float, float]:
    """The range of phi', estimated; a Lipschitz constant that is given must not contradict it."""
    low, high = _estimate_slopes(phi)
    if lipschitz is None:
        return (low, high)
    if not 0.0 <= lipschitz < math.inf:
        raise ActivationError(f"lipschitz must be a finite, non-negative number, got {lipschitz!r}")
    seen = max(abs(low), abs(high))
    if seen > lipschitz * (1.0 + 1e-6) + 1e-9:
        raise ActivationError(
            f"lipschitz = {lipschitz:.6g} was given for {phi.label}, but its slope reaches {seen:.6g} in absolute value"
        )
    return (-lipschitz, lipschitz)


def _estimate_slopes(phi: CallableActivation) -> tuple[float, float]:
    """inf and sup of phi', searched on a grid and refined; infinite if phi jumps or phi' still grows far out."""
    if any(phi.value_jumps()):
        return (-math.inf, math.inf)
    windows = torch.tensor(_FAR, dtype=torch.float64)[:, None] + torch.linspace(-20.0, 20.0, 801, dtype=torch.float64)
    far = phi._slope(windows).detach()
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
    """The extremum of phi' near ``centre``: three zooms by a hundred leave nothing to find at rounding level."""
    for _ in range(3):
        x = torch.linspace(centre - width, centre + width, 201, dtype=torch.float64)
        slope = phi._slope(x).detach()
        peak = int((sign * slope).argmax())
        centre, width = float(x[peak]), width / 100.0
    return float(slope[peak])
