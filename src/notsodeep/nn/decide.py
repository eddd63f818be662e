"""Answers of contractive DEQs, proven input by input.

Let the map f contract with L < 1. If u' is f(u) up to a rounding error d, its equilibrium u* has
|u* - u'| <= (L |u' - u| + d) / (1 - L). Outputs are affine in u, so their distance from those of u* is bounded, too: a
class is proven as soon as it leads every other one by more than that. Rounding errors are bounded in the worst case:
a sum of k products errs by at most g_k = k e / (1 - k e) times the sum of their sizes, e half a unit in the last place.
"""

from __future__ import annotations

import copy
import functools
import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._arguments import finite, isolation, positive_int
from .._arrays import as_numbers, as_rows, like
from .._equilibrium import SolverOptions, solve_equilibrium
from ..activations import Activation
from ..errors import ContractionError, InvalidInputError
from .model import LIMITS, naming

_ALMOST = 1.0 - 1e-9  # a bound over what it must be below: strictly less than one
_PART = 112  # inputs that are summed at a time: a bound of rounding then leaves few rows of images to float64
_FUNCTION = 16  # units in the last place by which an activation may be off: twice what is seen on a grid


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
    Decision(3 of 3 rows proven, 2.3 steps per row)
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
        return f"Decision({done}, {float(self.steps.sum()) / max(1, len(self.steps)):.1f} steps per row)"


class Rounding(NamedTuple):
    """A bound of a rounding error: ``slope`` times the size of a state, plus a number for every row."""

    slope: float
    rest: Tensor


def prove(searches: Iterable[Callable[[], Search]], X: Any, tol: float | None = None) -> Decision:
    """Prove the class of every row, or outputs to within ``tol``; a later search takes what an earlier one leaves.

    The searches are for the same equilibrium, in rising precision.
    """
    first, *others = searches
    if tol is not None and not (tol := finite("tol", tol)) > 0.0:
        raise InvalidInputError(f"tol must be positive, got {tol!r}")
    if tol is None and len(first().problem.effect) < 2:
        raise InvalidInputError("one output has no classes to decide between; bounded(X, tol) proves numbers")
    rows = as_numbers(X, "X").detach()
    parts = [first().run(batch, tol) for batch in rows.split((8 if rows.is_cuda else 1) * LIMITS.batch)]
    outputs, steps, proven, radius, states = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    for search in others:
        left = (~proven).nonzero()[:, 0]
        if not len(left):
            break
        finer = search().run(rows[left], tol, states)
        outputs = outputs.to(torch.promote_types(outputs.dtype, finer[0].dtype))  # rounded, two might become equal
        for whole, piece in zip((outputs, proven, radius), (finer[0], *finer[2:4]), strict=True):
            whole[left] = piece.to(whole.dtype)
        steps[left], states = steps[left] + finer[1], finer[4]
    return Decision(*(like(part, X) for part in (outputs, steps, proven, radius)))


class Search:
    """Iteration of a map: rows leave when they are proven, or when rounding is all that is left."""

    def __init__(self, problem: Proven | _Wrapped) -> None:
        self.problem, self.limit = problem, problem.lipschitz
        effect, unit = problem.effect.double(), torch.finfo(problem.effect.dtype).eps / 2.0
        reach = float(effect.norm(dim=1).max())
        apart = torch.cdist(effect, effect, compute_mode="donot_use_mm_for_euclid_dist")  # which cancels
        self.apart, self.reach = apart + 16.0 * unit * reach, reach * (1.0 + 8.0 * unit + 1e-9)  # slopes are rounded
        self.options = SolverOptions("picard", tol=_ALMOST, max_steps=min(10**6, math.ceil(50 / (1 - self.limit)) + 20))
        # the bound is 1 / (1 - L) steps at first, and random weights halve a step
        self.first = max(1, math.floor(-math.log2(1.0 - self.limit)))

    def run(self, x: Tensor, tol: float | None, begin: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return outputs, steps, proven and radius of all rows, and the last states of those that are not proven."""
        problem = self.problem
        with torch.no_grad():
            start, drive, seen = problem.start(x)
            start = start if begin is None else torch.where(begin.isfinite(), begin.to(start), start)
            factors, rest = self._bounds(start, *problem.errors(x, drive))
            reached = torch.full((len(x),), math.inf, dtype=torch.float64, device=x.device)

            own = bool(seen.shape[1])  # else the outputs of all rows have one constant part, since they are affine
            first = slice(None) if own else slice(1)
            constant = problem.outputs(torch.zeros_like(start[first]), seen[first])

            def map_of(rows: Any) -> Callable[[Tensor], Tensor]:
                inputs = drive[rows]
                return lambda u: problem.step(u, inputs)

            def measure(u: Tensor, image: Tensor, rows: Any, still_open: Tensor) -> Tensor:
                """Return how large the bound is beside what it must be below; infinity where rounding hides it."""
                norms = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in (image - u, image)]).double()
                radius, read_error, ahead = torch.addmm(rest[:, rows], factors, norms).unbind()
                reached[rows] = torch.where(still_open, radius, reached[rows])  # a row that is done stays
                outputs = torch.addmm(constant[rows] if own else constant, image, problem.effect.mT).double()
                ratio = self._ratio(outputs, radius, read_error, tol).clamp_max_(1e300)
                return ratio.masked_fill_(~(ahead > 0.0) & (ratio > _ALMOST), math.inf)

            # a look takes as long as several steps of a narrow network, and stalls an accelerator
            narrow = 0 if start.is_cuda else start.shape[1]
            between = next((steps for width, *steps in LIMITS.looks if narrow < width), (1, 1))
            looks = (self.first if begin is None else 1, *between)
            found = solve_equilibrium(map_of(slice(None)), start, self.options, map_of, measure, looks)
            outputs = problem.outputs(found.value, seen)
        return outputs, found.row_steps, found.converged, reached / problem.scale, found.value[~found.converged]

    def _bounds(self, u: Tensor, step: Rounding, read: Rounding) -> tuple[Tensor, Tensor]:
        """Return what the norms of a gap and of an image are multiplied by, and what is added for every row.

        That gives the radius, the error of an output, and by how much the gap is ahead of rounding.
        """
        slack, lost = norm_slack(u)
        limit, scale = self.limit, (1.0 + 1e-9) / (1.0 - self.limit)
        # |image - u| <= slack gap + lost, and neither state is longer than slack (gap + image) + 2 lost
        factors = [
            [scale * slack * (limit + step.slope), scale * slack * step.slope],
            [slack * read.slope, slack * read.slope],
            [slack * (limit - step.slope), -slack * step.slope],
        ]
        missed = limit * lost + 2.0 * lost * step.slope + step.rest
        rest = torch.stack([scale * missed, 2.0 * lost * read.slope + read.rest, -missed])
        return rest.new_tensor(factors), rest

    def _ratio(self, outputs: Tensor, radius: Tensor, error: Tensor, tol: float | None) -> Tensor:
        if tol is not None:
            return (self.reach * radius + error) / tol
        best, leader = outputs.max(1, keepdim=True)
        # two errors of what is seen here, and two of what is returned, which other batches round otherwise
        needed = self.apart[leader[:, 0]].mul_(radius[:, None]).add_(error[:, None], alpha=4.0)
        return needed.div_(best - outputs).scatter_(1, leader, 0.0).amax(1)


def norm_slack(rows: Tensor) -> tuple[float, float]:
    """Return a factor and a number that make norms of rows, summed in their own precision, upper bounds."""
    count, info = rows.numel() // max(1, len(rows)), torch.finfo(rows.dtype)
    # squares below the range of the type are lost; subtraction and root round, too
    return 1.0 + gamma(count + 8, info.eps / 2.0), math.sqrt(count * info.tiny)


def upper_norms(rows: Tensor) -> Tensor:
    """Return upper bounds of the norms of rows, in double precision."""
    slack, lost = norm_slack(rows)
    return slack * torch.linalg.vector_norm(rows.flatten(1), dim=1).double() + lost


# ---- a network of this library -----------------------------------------------------------------------------


class Proven:
    """The map of an ``nn.DEQ``, in the precision of its weights, and outputs that are affine in its state.

    The state is ``scale`` times as long as z; ``effect`` holds the slopes of the outputs in it, (outputs, state).
    """

    def __init__(self, model: Any, lipschitz: float) -> None:
        self.model, self.step, self.lipschitz, self.scale = model, model._step, lipschitz, math.sqrt(model.width)
        layer, info = model._layer, torch.finfo(model.recurrent.dtype)
        unit, count = info.eps / 2.0, layer.features(model.recurrent)
        terms = [layer.terms(weights) + 8 for weights in (model.recurrent, model.input)]
        self.inject = _in_parts(model.input) if model.input.ndim == 2 else None
        longest = terms[1] if self.inject is None else min(terms[1], _PART + terms[1] // _PART + 9)
        lost, lost_drive = gamma(terms[0], unit), gamma(longest, unit)
        under = sum(terms) * math.sqrt(count) * info.tiny  # products may underflow
        # factors of |u|, of |B| |x|, of |drive| and of one: ``error`` bounds that of a step, ``size`` pre-activations
        gain = layer.gain * layer.spread(model.recurrent)
        size = torch.tensor([gain, lost_drive, 1.0 + 8.0 * unit, 0.0], dtype=torch.float64)
        error = torch.tensor([lost * gain, lost_drive, 8.0 * unit, under], dtype=torch.float64)
        for phi, factor, spread in model._layers_of_cell():
            size = phi.lipschitz * size
            size[3] += _size_inside(phi, model.recurrent.device) * math.sqrt(count)
            error = phi.lipschitz * error + _FUNCTION * unit * size
            size, error = spread * size, factor * error + lost * spread * size
            error[3] += under
        self.error = error.tolist()
        columns = model.input.detach().double().transpose(0, 1).flatten(1).norm(dim=1)
        self.columns = model._drive_factor() * float(columns.max())
        read = gamma(model.readout.shape[1] + count // model.width + 64, unit)
        readout = read * model._factor(model.readout) * model.readout.detach().double()
        row, entry = float(readout.norm(dim=1).max()), float(readout.abs().max())
        self.sees_inputs = model._dense.readout == "pre-activation"
        sigmas = model._sigmas if self.sees_inputs else (1.0, 0.0, 0.0)
        constant = 0.0 if model.bias is None else read * float(model.bias.detach().abs().max())
        constant += (model.readout.shape[1] + count) * info.tiny
        self.reads = row * max(1.0, sigmas[0]) / self.scale, entry * sigmas[1], entry * sigmas[2] + constant
        self.effect = _effect(self.outputs, model.readout, count, model.in_features)

    def start(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return a first state for every row, and what the map and the outputs need of its input."""
        x = x.to(self.model.input.dtype)
        drive = self.model._project(x, self.inject)
        seen = x if self.sees_inputs else x[:, :0]
        return self.model._step(None, drive), drive, seen

    def outputs(self, u: Tensor, seen: Tensor) -> Tensor:
        return self.model.read(self.model._read(u / self.scale, seen))

    def errors(self, x: Tensor, drive: Tensor) -> tuple[Rounding, Rounding]:
        """Return bounds of the rounding errors of a step and of an output."""
        x = x.to(torch.promote_types(x.dtype, drive.dtype))
        inputs = norm_slack(x)[0] * x.abs().sum(1).double()  # three times as fast as vector_norm
        inputs += x.shape[1] * torch.finfo(x.dtype).tiny
        of_state, of_input, of_drive, constant = self.error
        step = Rounding(of_state, of_input * self.columns * inputs + of_drive * upper_norms(drive) + constant)
        return step, Rounding(self.reads[0], self.reads[1] * inputs + self.reads[2])


def _size_inside(phi: Activation, device: torch.device) -> float:
    """Return a bound of |phi(0)| and of numbers that cancel inside phi, from the errors of its values in float32."""
    far = torch.logspace(-30, 6, 20_001, dtype=torch.float32)
    x = torch.cat([torch.linspace(-12.0, 12.0, 40_001, dtype=torch.float32), far, -far, far[:1] * 0.0]).to(device)
    with torch.no_grad():
        exact = phi(x.double())
        off = 2.0 * (phi(x).double() - exact).abs() / (_FUNCTION * torch.finfo(x.dtype).eps / 2.0)
    return max(float((off - phi.lipschitz * x.double().abs()).nan_to_num(0.0, 0.0).max()), float(exact[-1].abs()))


def _in_parts(weights: Tensor) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return the map of the inputs, summed in parts: the longest sum decides what rounding may do to the drive."""

    def inject(x: Tensor, shift: Tensor | None) -> Tensor:
        pairs = zip(x.split(_PART, 1), weights.split(_PART, 1), strict=True)
        drive, *others = (nn.functional.linear(*pair) for pair in pairs)
        for part in others:
            drive = drive.add_(part)
        return drive if shift is None else drive + shift

    return inject


def gamma(count: int, unit: float) -> float:
    """Return k e / (1 - k e); sums that are too long for a precision have no bound."""
    return count * unit / (1.0 - count * unit) if count * unit < 0.5 else math.inf


def _effect(outputs: Callable[[Tensor, Tensor], Tensor], like: Tensor, size: int, inputs: int) -> Tensor:
    """Return the slopes of affine outputs in the state, one row per output."""
    count = like.shape[0]
    u = torch.zeros(count, size, dtype=like.dtype, device=like.device, requires_grad=True)
    with torch.enable_grad():
        found = outputs(u, torch.zeros(count, inputs, dtype=like.dtype, device=like.device)).diagonal().sum()
        return torch.autograd.grad(found, u)[0]


class Searches:
    """Those of a network with its present weights, in both precisions; bounding L takes longer than many solves."""

    def __init__(self, model: Any) -> None:
        self.model, self.lipschitz = copy.deepcopy(model), model._certified_contraction()

    @staticmethod
    def of(model: Any) -> Searches:
        """Return those of a network, which are built anew only when its weights have changed."""
        known = _SEARCHES.get(model)
        if known is None or not known.belong_to(model):
            known = _SEARCHES[model] = Searches(model)
        return known

    def belong_to(self, model: Any) -> bool:
        """Whether a network still has these weights, which may have been changed behind the back of autograd.

        A function as an activation that has changed refuses to name its slopes.
        """
        kept, now = (list(part.parameters()) for part in (self.model, model))
        pairs = zip(kept, now, strict=False)
        equal = all(a.dtype == b.dtype and a.device == b.device and torch.equal(a, b) for a, b in pairs)
        return equal and len(kept) == len(now) and self.model._dense.lipschitz == model._dense.lipschitz

    @functools.cached_property
    def plain(self) -> Search:
        return Search(Proven(self.model, self.lipschitz))

    @functools.cached_property
    def double(self) -> Search:
        return Search(Proven(copy.deepcopy(self.model).double(), self.lipschitz))


_SEARCHES: weakref.WeakKeyDictionary[Any, Searches] = weakref.WeakKeyDictionary()


@isolation()
def proven_classes(model: Any, X: Any, tol: float | None = None) -> Decision:
    """Prove classes, or outputs to within ``tol``, of a network; rows that float32 leaves open are done in float64."""
    as_rows(X, features=model.in_features, least=0)
    known = Searches.of(model)
    if not known.lipschitz < 1.0:
        raise ContractionError(
            f"nothing can be proven: the map is only known to be {known.lipschitz:.4g}-Lipschitz, and a bound needs "
            "less than one. Train with limit_contraction(0.95)"
        )
    weights = model.recurrent
    exact = torch.get_float32_matmul_precision() == "highest" and not torch.backends.cuda.matmul.allow_tf32
    exact &= weights.ndim == 2 or not weights.is_cuda  # convolutions of cuDNN may use fewer digits, or transforms
    quick = [lambda: known.plain] if weights.dtype == torch.float32 and exact else []
    return prove([*quick, lambda: known.double], X, tol)


def norm_bound(symbols: Tensor, estimate: float) -> float:
    """Return an upper bound of the largest singular value of matrices (b, m, n), near an estimate of it.

    t I - S S' has a Cholesky factor only if it is positive definite up to its rounding error (Rump 2006).
    """
    largest, unit = 0.0, torch.finfo(torch.float64).eps / 2.0
    for part in symbols.split(64):
        size = max(part.shape[-2:])
        lost = 8.0 * gamma(size + 8, unit) * float(part.abs().square().sum((-2, -1)).max())
        gram = part @ part.mH
        if not (math.isfinite(estimate * estimate) and bool(torch.isfinite(gram).all())):
            return math.inf
        least = max(float(gram.diagonal(dim1=-2, dim2=-1).abs().max()), torch.finfo(torch.float64).tiny)
        top = low = max(estimate**2 * (1.0 + 1e-6), least)
        while not _is_above(top, gram):
            low, top = top, 2.0 * top
        while top > 1.001 * low:  # the estimate was too small
            middle = low * math.sqrt(top / low)
            low, top = (low, middle) if _is_above(middle, gram) else (middle, top)
        largest = max(largest, top * (1.0 + 8.0 * gamma(size + 8, unit) * size) + lost)
    return math.sqrt(largest) * (1.0 + 1e-12)


def _is_above(bound: float, gram: Tensor) -> bool:
    """Return whether all eigenvalues lie below a bound, up to the rounding error of a Cholesky factor."""
    shifted = -gram
    shifted.diagonal(dim1=-2, dim2=-1).add_(bound)
    return not bool(torch.linalg.cholesky_ex(shifted)[1].any())


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
        A Lipschitz constant of the cell in the state, below one. You are responsible for it, and for ``rounding``.
    width : int
        The length of a state; the solution begins at zero.
    rounding : float, optional
        A bound on the rounding error of a step and of an output, relative to the size of the state. By default eight
        times the width, in units in the last place, and more for steps that a last digit of the inputs moves further.

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
        self.cell, self.readout, self.width = cell, readout, positive_int("width", width, most=2**31)
        self.lipschitz = finite("lipschitz", lipschitz)
        self.rounding = None if rounding is None else finite("rounding", rounding)
        if not 0.0 <= self.lipschitz < 1.0:
            raise ContractionError(f"nothing can be proven unless lipschitz lies in [0, 1), got {lipschitz!r}")

    def decide(self, X: Any) -> Decision:
        """Return the classes of rows, each proven to be that of the equilibrium."""
        return self._prove(X, None)

    def bounded(self, X: Any, tol: float) -> Decision:
        """Return outputs that are proven to be within ``tol`` of those of the equilibrium."""
        return self._prove(X, tol)

    @isolation()
    def _prove(self, X: Any, tol: float | None) -> Decision:
        rows = as_numbers(X, "X")
        as_rows(rows.flatten(1) if rows.ndim > 1 else rows, least=0)
        search = Search(_Wrapped(self, rows))
        return prove([lambda: search], X, tol)


class _Wrapped:
    """The map of a cell, in the precision of rows, with the attributes of :class:`Proven`."""

    scale = 1.0

    def __init__(self, own: Contraction, rows: Tensor) -> None:
        self.own, self.lipschitz, self.step = own, own.lipschitz, own.cell
        zero, generator = rows.new_zeros(1, own.width), torch.Generator().manual_seed(0)
        other = torch.randn(1, own.width, generator=generator, dtype=torch.float32).to(rows)
        first = rows[:1] if len(rows) else rows.new_zeros(1, *rows.shape[1:])
        with naming(f"the cell or the readout, for states of shape (1, {own.width}),", first):
            with torch.no_grad():
                image, constant, value = own.cell(zero, first), own.readout(zero), own.readout(other)
            shapes = [getattr(part, "shape", type(part).__name__) for part in (image, constant)]
            if shapes[0] != zero.shape or len(shapes[1]) != 2 or len(constant) != 1:
                told = ", ".join(str(shape if isinstance(shape, str) else tuple(shape)) for shape in shapes)
                raise InvalidInputError(
                    f"for one row the cell must return a state of shape (1, {own.width}) and the readout outputs of "
                    f"shape (1, outputs), got {told}"
                )
            constant, value = constant[0], value[0]
            self.effect = _effect(self.outputs, constant, own.width, 1)
        linear = (value - constant).double() - (self.effect.double() @ other.double().T)[:, 0]
        if not float(linear.abs().max()) <= 1e-3 * (1.0 + float(value.abs().max())):
            raise InvalidInputError("the readout is not affine in the states, as nn.Linear is: nothing can be proven")
        usual = 8.0 * own.width * torch.finfo(rows.dtype).eps
        self.relative = usual if own.rounding is None else own.rounding
        self.constant, self.reach = float(constant.abs().max()), float(self.effect.double().norm(dim=1).max())

    def start(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.new_zeros(len(x), self.own.width), x, x[:, :0]

    def outputs(self, u: Tensor, seen: Tensor) -> Tensor:
        return self.own.readout(u)

    def errors(self, x: Tensor, drive: Tensor) -> tuple[Rounding, Rounding]:
        moved = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        if self.own.rounding is None:  # inputs may be large, and cancel
            zero, sign = x.new_zeros(len(x), self.own.width), torch.ones_like(x)
            sign.flatten(1)[:, ::2] = -1.0
            shaken = self.step(zero, x + torch.finfo(x.dtype).eps * sign * x) - self.step(zero, x)
            moved = 2.0 * math.sqrt(max(1, x[:1].numel())) * upper_norms(shaken)
        constant = torch.full_like(moved, self.relative * self.constant)
        return Rounding(self.relative, moved), Rounding(self.relative * self.reach, constant)
