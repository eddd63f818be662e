"""Answers of contractive DEQs, proven input by input.

Let the map f contract with L < 1. If u' is f(u) up to a rounding error d, its equilibrium u* has
|u* - u'| <= (L |u' - u| + d) / (1 - L). Outputs are affine in u, so their distance from those of u* is bounded, too: a
class is proven as soon as it leads every other one by more than that. Rounding errors are bounded in the worst case:
a sum of k products errs by at most g_k = k e / (1 - k e) times the sum of their sizes, e half a unit in the last place.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .._arguments import finite, positive_int
from .._arrays import as_numbers, as_rows, like
from .._equilibrium import SolverOptions, solve_equilibrium
from ..errors import ContractionError, InvalidInputError
from .model import LIMITS

_ALMOST = 1.0 - 1e-9  # a bound over what it must be below: strictly less than one
_FUNCTION = 16  # units in the last place by which an activation of torch may be off


@dataclass(frozen=True)
class Decision:
    """Outputs, and a bound on the distance of the state from the equilibrium.

    Attributes
    ----------
    outputs : array of shape (n, outputs)
    steps : array of shape (n,)
        The number of evaluations of the cell until the row was done.
    proven : array of shape (n,)
        Whether the class, or the tolerance, is proven; not where two outputs are equal up to rounding.
    radius : array of shape (n,)
        The largest distance of the equilibrium z from the state that was read.

    Examples
    --------
    >>> import notsodeep as nsd, torch
    >>> model = nsd.nn.DEQ(nsd.DEQ("tanh", sigma_a2=0.1), in_features=3, width=16, out_features=2)
    >>> model.decide(torch.eye(3))
    Decision(3 of 3 rows proven, 1.7 steps per row)
    """

    outputs: Any
    steps: Any
    proven: Any
    radius: Any

    @property
    def classes(self) -> Any:
        """The largest output of every row."""
        return self.outputs.argmax(1)

    def __repr__(self) -> str:
        done = f"{int(self.proven.sum()):,} of {len(self.proven):,} rows proven"
        return f"Decision({done}, {float(sum(self.steps)) / max(1, len(self.steps)):.1f} steps per row)"


class ProvableMap(Protocol):
    """What is proven about: a map of rows, and outputs that are affine in its state."""

    lipschitz: float
    scale: float
    """How many times the state is as long as z."""
    effect: Tensor
    """The outputs' slopes in the state, shape (outputs, state), in double precision."""

    def start(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return a first state for every row, and what the map needs of its input."""
        ...

    def step(self, u: Tensor, drive: Tensor) -> Tensor:
        """Apply the map."""
        ...

    def outputs(self, u: Tensor, x: Tensor) -> Tensor: ...

    def errors(self, size: Tensor, x: Tensor, drive: Tensor) -> tuple[Tensor, Tensor]:
        """Return bounds of the rounding errors of a step and of an output, for states of this size."""
        ...


def prove(problems: Sequence[Callable[[], ProvableMap]], X: Any, tol: float | None = None) -> Decision:
    """Prove the class of every row, or outputs to within ``tol``; a later problem takes what an earlier one leaves.

    The problems are the same one in rising precision.
    """
    first = problems[0]()
    rows = as_numbers(X, "X").detach()
    parts = [_Search(first, tol).run(batch) for batch in rows.split(8 * LIMITS.batch)] if len(rows) else []
    if not parts:
        empty = rows.new_zeros(0)
        return Decision(
            *(like(part, X) for part in (rows.new_zeros(0, len(first.effect)), empty.long(), empty > 0, empty))
        )
    outputs, steps, proven, radius, states = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    for build in problems[1:]:
        left = (~proven).nonzero()[:, 0]
        if not len(left):
            break
        finer = _Search(build(), tol).run(rows[left], states[left])
        outputs = outputs.to(torch.promote_types(outputs.dtype, finer[0].dtype))  # rounded, two might become equal
        for whole_part, piece in zip((outputs, proven, radius), (finer[0], *finer[2:4]), strict=True):
            whole_part[left] = piece.to(whole_part.dtype)
        steps[left] += finer[1]
    return Decision(*(like(part, X) for part in (outputs, steps, proven, radius)))


class _Search:
    """One pass: rows leave when they are proven, or when rounding is all that is left."""

    def __init__(self, problem: ProvableMap, tol: float | None) -> None:
        self.problem, self.tol = problem, tol
        if tol is None and len(problem.effect) < 2:
            raise InvalidInputError("one output has no classes to decide between; bounded(X, tol) proves numbers")
        self.apart = torch.cdist(problem.effect, problem.effect) * (1.0 + 1e-9)
        self.reach = float(problem.effect.norm(dim=1).max()) * (1.0 + 1e-9)
        self.limit = problem.lipschitz

    def run(self, x: Tensor, begin: Tensor | None = None) -> tuple[Tensor, ...]:
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            start, drive = self.problem.start(x)
            start = start if begin is None else begin.to(start)
            self.x, self.drive, self.radius = x, drive, start.new_full((len(x),), math.inf, dtype=torch.float64)
            self.open = torch.ones_like(self.radius, dtype=torch.bool)
            steps = min(10**6, math.ceil(50.0 / (1.0 - self.limit)) + 20)

            def map_of(rows: Any) -> Callable[[Tensor], Tensor]:
                inputs = drive[rows]
                return lambda u: self.problem.step(u, inputs)

            options = SolverOptions("picard", tol=_ALMOST, max_steps=steps)
            found = solve_equilibrium(map_of(slice(None)), start, options, map_of, self.measure)
            outputs = self.problem.outputs(found.value, x)
        return outputs, found.row_steps, found.converged, self.radius / self.problem.scale, found.value

    def measure(self, u: Tensor, image: Tensor, rows: Tensor | None) -> Tensor:
        """Return how large the bound is beside what it must be below; infinity where rounding leaves no hope."""
        which = slice(None) if rows is None else rows
        x, drive = self.x[which], self.drive[which]
        slack = 1.0 + 4.0 * torch.finfo(image.dtype).eps
        gap, *sizes = (torch.linalg.vector_norm(v, dim=1, dtype=torch.float64) * slack for v in (image - u, u, image))
        step_error, read_error = self.problem.errors(torch.maximum(*sizes), x, drive)
        radius = (self.limit * gap + step_error) / (1.0 - self.limit) * (1.0 + 1e-9)
        self.radius[which] = torch.where(self.open[which], radius, self.radius[which])  # a row that is done stays
        ratio = self._ratio(self.problem.outputs(image, x).double(), radius, read_error)
        ratio = ratio.nan_to_num(nan=math.inf).clamp_max(1e300)
        ratio = torch.where((self.limit * gap <= step_error) & (ratio > _ALMOST), math.inf, ratio)
        self.open[which] &= (ratio > _ALMOST) & torch.isfinite(ratio)
        return ratio

    def _ratio(self, outputs: Tensor, radius: Tensor, error: Tensor) -> Tensor:
        if self.tol is not None:
            return (self.reach * radius + error) / self.tol
        best, leader = outputs.max(1)
        needed = self.apart[leader] * radius[:, None] + 2.0 * error[:, None]
        ratios = needed / (best[:, None] - outputs).clamp_min(0.0)
        return ratios.scatter(1, leader[:, None], 0.0).amax(1)


# ---- a network of this library -----------------------------------------------------------------------------


class Proven:
    """The map of an ``nn.DEQ``, in the precision of its weights."""

    def __init__(self, model: Any, lipschitz: float) -> None:
        self.model, self.lipschitz, self.scale = model, lipschitz, math.sqrt(model.width)
        layer, unit = model._layer, torch.finfo(model.recurrent.dtype).eps / 2.0
        self.unit = unit
        self.sums = [gamma(count + 8, unit) for count in (layer.terms(model.recurrent), layer.terms(model.input))]
        self.read = gamma(model.readout.shape[1] + model.in_features + 64, unit)
        self.gain, self.spread = layer.gain, layer.spread(model.recurrent)
        self.drive = model._drive_factor() * layer.spread(model.input)
        self.effect = _effect(lambda u, x: self.outputs(u, x), model.readout, model._state_size(), model.in_features)

    def start(self, x: Tensor) -> tuple[Tensor, Tensor]:
        drive = self.model._project(x.to(self.model.input.dtype))
        return self.model._step(torch.zeros_like(drive), drive), drive

    def step(self, u: Tensor, drive: Tensor) -> Tensor:
        return self.model._step(u, drive)

    def outputs(self, u: Tensor, x: Tensor) -> Tensor:
        return self.model.read(self.features(u, x))

    def features(self, u: Tensor, x: Tensor) -> Tensor:
        return self.model._read(u / self.scale, x.to(u.dtype))

    def errors(self, size: Tensor, x: Tensor, drive: Tensor) -> tuple[Tensor, Tensor]:
        inputs, driven = (torch.linalg.vector_norm(v.flatten(1), dim=1, dtype=torch.float64) for v in (x, drive))
        inputs = inputs * (1.0 + 2.0 * self.unit)  # rows of more digits than the weights are rounded
        driven = driven * (1.0 + self.sums[1]) + 8.0 * self.sums[1] * self.drive * inputs
        error = self.sums[0] * self.gain * self.spread * size + 2.0 * self.sums[1] * (self.drive * inputs + driven)
        before = self.gain * self.spread * size + driven  # bounds the pre-activations
        for phi, factor, spread in self.model._layers_of_cell():
            after = phi.lipschitz * before + abs(float(phi(torch.zeros((), dtype=torch.float64)))) * math.sqrt(
                self.model._state_size()
            )
            error = phi.lipschitz * error + _FUNCTION * self.unit * after
            before, error = spread * after, factor * error + self.sums[0] * spread * after
        weights = self.model.readout.detach().double().norm(dim=1).max() * self.model._read_factor()
        constant = 0.0 if self.model.bias is None else self.model.bias.detach().abs().max().double()
        seen = (
            max(1.0, self.model._sigmas[0]) * size / self.scale + self.model._sigmas[1] * inputs + self.model._sigmas[2]
        )
        return error, self.read * (weights * seen + constant)


def gamma(count: int, unit: float) -> float:
    """Return k e / (1 - k e); sums that are too long for a precision have no bound."""
    return count * unit / (1.0 - count * unit) if count * unit < 0.5 else math.inf


def _effect(outputs: Callable[[Tensor, Tensor], Tensor], like: Tensor, size: int, inputs: int) -> Tensor:
    """Return the slopes of affine outputs in the state, one row per output."""
    count = like.shape[0]
    u = torch.zeros(count, size, dtype=like.dtype, device=like.device, requires_grad=True)
    with torch.enable_grad():
        found = outputs(u, torch.zeros(count, inputs, dtype=like.dtype, device=like.device)).diagonal().sum()
        return torch.autograd.grad(found, u)[0].double()


def proven_classes(model: Any, X: Any, tol: float | None = None) -> Decision:
    """Prove classes, or outputs to within ``tol``, of a network; rows that float32 leaves open are done in float64."""
    as_rows(X, features=model.in_features, least=0)
    lipschitz = model._certified_contraction()
    if not lipschitz < 1.0:
        raise ContractionError(
            f"nothing can be proven: the map is only known to be {lipschitz:.4g}-Lipschitz, and a bound needs less "
            "than one. Train with limit_contraction(0.95)"
        )
    if tol is not None and not finite("tol", tol) > 0.0:
        raise InvalidInputError(f"tol must be positive, got {tol!r}")
    double = lambda: Proven(copy.deepcopy(model).double(), lipschitz)  # noqa: E731
    exact = torch.get_float32_matmul_precision() == "highest" and not torch.backends.cuda.matmul.allow_tf32
    quick = model.recurrent.dtype == torch.float32 and exact
    return prove([lambda: Proven(model, lipschitz), double] if quick else [double], X, tol)


def norm_bound(symbols: Tensor, estimate: float) -> float:
    """Return an upper bound of the largest singular value of matrices (b, m, n), near an estimate of it.

    t I - S S' has a Cholesky factor only if it is positive definite up to its rounding error (Rump 2006).
    """
    largest, unit = 0.0, torch.finfo(torch.float64).eps / 2.0
    for part in symbols.split(64):
        size = max(part.shape[-2:])
        lost = 8.0 * gamma(size + 8, unit) * float(part.abs().square().sum((-2, -1)).max())
        gram = part @ part.mH
        top = max(estimate**2 * (1.0 + 1e-6), torch.finfo(torch.float64).tiny)
        while True:
            shifted = -gram
            shifted.diagonal(dim1=-2, dim2=-1).add_(top)
            if not bool(torch.linalg.cholesky_ex(shifted)[1].any()):
                break
            top *= 1.001
        largest = max(largest, top * (1.0 + 8.0 * gamma(size + 8, unit) * size) + lost)
    return math.sqrt(largest) * (1.0 + 1e-12)


# ---- any other cell ----------------------------------------------------------------------------------------


class Contraction:
    """Prove answers of any cell z = cell(z, x) whose Lipschitz constant in z is known.

    Parameters
    ----------
    cell : callable
        A map from states (n, width) and rows to states: a torch module or function, for example that of a torchdeq
        model.
    readout : callable
        From states to outputs, affine, as ``nn.Linear`` is.
    lipschitz : float
        A Lipschitz constant of the cell in the state, below one. You are responsible for it.
    width : int
        The length of a state; the solution begins at zero.
    rounding : float, optional
        A bound on the rounding error of a step and of an output, relative to the size of the state; by default eight
        times the width, in units in the last place.

    Examples
    --------
    >>> import torch, notsodeep as nsd
    >>> W, U, R = 0.1 * torch.eye(4), torch.ones(4, 3), torch.nn.Linear(4, 2)
    >>> deq = nsd.nn.Contraction(lambda z, x: torch.tanh(z @ W + x @ U.T), R, lipschitz=0.1, width=4)
    >>> bool(deq.decide(torch.randn(5, 3)).proven.all())
    True
    """

    def __init__(
        self, cell: Callable[..., Any], readout: Callable[..., Any], lipschitz: float, width: int, rounding: Any = None
    ) -> None:
        self.cell, self.readout, self.width = cell, readout, positive_int("width", width)
        self.lipschitz = finite("lipschitz", lipschitz)
        self.rounding = None if rounding is None else finite("rounding", rounding)
        if not 0.0 <= self.lipschitz < 1.0:
            raise ContractionError(f"nothing can be proven unless lipschitz lies in [0, 1), got {lipschitz!r}")

    def decide(self, X: Any) -> Decision:
        """Return the classes of rows, each proven to be that of the equilibrium."""
        return prove([lambda: _Wrapped(self, as_numbers(X, "X"))], X)

    def bounded(self, X: Any, tol: float) -> Decision:
        """Return outputs that are proven to be within ``tol`` of those of the equilibrium."""
        return prove([lambda: _Wrapped(self, as_numbers(X, "X"))], X, finite("tol", tol))


class _Wrapped:
    """The map of a cell, in the precision of rows."""

    scale = 1.0

    def __init__(self, own: Contraction, rows: Tensor) -> None:
        self.own, self.lipschitz, self.step = own, own.lipschitz, own.cell
        with torch.no_grad():
            constant = own.readout(rows.new_zeros(1, own.width))[0]
        self.effect = _effect(self.outputs, constant, own.width, 1)
        usual = 8.0 * own.width * torch.finfo(rows.dtype).eps
        self.relative = usual if own.rounding is None else own.rounding
        self.constant, self.reach = float(constant.abs().max()), float(self.effect.norm(dim=1).max())

    def start(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_zeros(len(x), self.own.width), x

    def outputs(self, u: Tensor, x: Tensor) -> Tensor:
        return self.own.readout(u)

    def errors(self, size: Tensor, x: Tensor, drive: Tensor) -> tuple[Tensor, Tensor]:
        return self.relative * size, self.relative * (self.reach * size + self.constant)
