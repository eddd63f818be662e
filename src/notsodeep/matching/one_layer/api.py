"""``match_one_layer``: one hidden layer with the kernel of a DEQ, for every input."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from ..._arguments import checked
from ...activations import Basis, Parity, Turned
from ...activations.norm_units import NormUnits
from ...errors import InfeasibleMatchError, InvalidInputError
from ...kernels import diagonal
from ...networks import DEQ, ENN, Kernel, Network, check_kernels
from ..certificates import Location, Tried, UniformCertificate
from ..names import MatchKernel, Trains, check_range
from ..twin import Twin
from . import homogeneous, thresholds
from .certificate import Proof, certify, projection_bound
from .factor import deficit, factorise
from .target import Target, measure, sketch
from .turning import remainders, remaining
from .units import Allowance, Fit, assemble, fit, gains, smallest, turned, wanted

__all__ = ["match_one_layer"]

_MOST = 8
_SINGULAR = 4
_RICHER = ((24, 0.7), (32, 0.4))  # degree and slope of functions that rotated kinds may need
_PAYS = 0.8  # of the bound: they cost more, and have to bring this
_FAMILY = "conditioned"
_ORDINARY = 1e-5  # the tolerance from which on thresholds may do; not where they ask for learning rates
_SHARE = 0.1  # of the projection's deficit: what the elementary functions may add
_NEAR = 1.3  # times what the projection leaves and units may add: rotating kinds would not bring much
_ENOUGH = 1e-3  # of the tolerance: less than this is not worth larger functions


@checked
def match_one_layer(
    deq: Network,
    kernel: MatchKernel = "ck",
    norms: tuple[float, float] | None = None,
    tol: float = 1e-4,
    kinds: int | Literal["auto"] = "auto",
    units: Literal["auto", "conditioned", "thresholds"] = "auto",
    *,
    trains: Trains | Literal["auto"] = "auto",
    check: bool = True,
) -> Twin:
    """One hidden layer whose kernel is within ``tol`` of a network's for every pair of inputs (theory, section 13).

    The units see the norm of the input: psi(w.x/|x|; |x|), in ``kinds`` kinds. ``twin.bound`` is certified for all
    inputs of all dimensions with norms in the range, relative to sqrt(k(x, x) k(y, y)).

    Parameters
    ----------
    deq : a DEQ as it is used, centred or not, with or without a bias; an explicit network of any depth is one layer by
        the same theorem
    kernel : ``"ck"``, ``"ntk"`` (all weights of the DEQ trained) or ``"ntk_frozen"`` (its input weights frozen)
    norms : range of input norms, from zero upwards if need be; homogeneous activations need none, others default to
        (0.5, 1.5). :func:`norm_range` reads one off data
    kinds : the fewest within ``tol`` (``"auto"``), or a number, which is then used whatever it reaches
    units : ``"conditioned"``, elementary functions of w.x/|x| whose coefficients depend on |x|; ``"thresholds"``, for
        homogeneous DEQs, ordinary units relu(w.x - t |x|), which cost less and reach about 1e-5 for the CK and the
        frozen NTK, 2e-4 for the NTK. ``"auto"``: thresholds where the readout trains and they are within ``tol``;
        ``twin.reason`` says so
    trains : what the twin trains. ``"readout"``: its CK is the DEQ's kernel, a convex problem; ``"all"``: its NTK is.
        ``"auto"``: all weights for the NTK of a homogeneous DEQ, the readout otherwise
    check : refuse a DEQ outside its contraction range

    >>> import notsodeep as nsd
    >>> twin = nsd.match_one_layer(nsd.DEQ("tanh", sigma_a2=0.2))
    >>> twin.depth, twin.kinds, twin.bound < 2.5e-5
    (1, 2, True)
    """
    if kernel == "both":
        raise InvalidInputError(
            "one layer matches one kernel, got kernel='both': take a twin for each, or match_uniform, whose plain "
            "layers have CK and NTK of a homogeneous DEQ at once"
        )
    _check(deq, tol, kinds, units)
    check_kernels(deq, (kernel,))
    if isinstance(deq, DEQ):
        deq.check_driven()
    if check and isinstance(deq, DEQ):
        deq.check_contraction()
    rule = _rule(deq, kernel, trains)
    box = check_range(norms)
    if deq.homogeneous:
        return _homogeneous(deq, kernel, tol, kinds, units, rule)
    return _boxed(deq, kernel, box, tol, kinds, rule)


# ---- arguments -------------------------------------------------------------------------------------------


def _check(network: Any, tol: Any, kinds: Any, units: Any) -> None:
    if not isinstance(network, DEQ | ENN):
        raise InvalidInputError(f"match_one_layer takes a DEQ or an ENN, got {type(network).__name__}")
    if not all(phi.elementwise for phi in network.activations):
        raise InvalidInputError(f"match_one_layer takes networks of elementwise activations, got {network!r}")
    if not (isinstance(tol, int | float) and 0 < tol < 1e300):
        raise InvalidInputError(f"tol must be positive and finite, got {tol!r}")
    counted = isinstance(kinds, int) and not isinstance(kinds, bool) and 1 <= kinds <= _MOST
    if not counted and not (isinstance(kinds, str) and kinds == "auto"):
        raise InvalidInputError(f"kinds must be 'auto' or 1 ... {_MOST}, got {kinds!r}")
    if not isinstance(units, str) or units not in ("auto", "conditioned", "thresholds"):
        raise InvalidInputError(f"units must be 'auto', 'conditioned' or 'thresholds', got {units!r}")
    if units == "thresholds" and not (isinstance(network, DEQ) and network.homogeneous):
        raise InvalidInputError(f"units='thresholds' needs a homogeneous DEQ, got {network!r}; use units='conditioned'")


def _rule(deq: Network, kernel: Kernel, trains: str) -> Trains:
    if not isinstance(trains, str) or trains not in ("auto", "readout", "all"):
        raise InvalidInputError(f"trains must be 'auto', 'readout' or 'all', got {trains!r}")
    if trains == "all" and kernel != "ntk":
        raise InvalidInputError(
            f"one layer that trains all its weights has an NTK; for {kernel!r} only the readout trains"
        )
    if trains != "auto":
        return "all" if trains == "all" else "readout"
    return "all" if kernel == "ntk" and deq.homogeneous else "readout"


# ---- homogeneous -----------------------------------------------------------------------------------------


def _homogeneous(network: Network, kernel: Kernel, tol: float, kinds: int | str, units: str, trains: Trains) -> Twin:
    if kinds not in ("auto", 1):
        raise InvalidInputError(f"a homogeneous network needs one kind of units, got kinds={kinds}")
    tried: tuple[Tried, ...] = ()
    worthwhile = units == "auto" and trains == "readout" and tol >= _ORDINARY
    if isinstance(network, DEQ) and (units == "thresholds" or worthwhile):
        ordinary = _thresholds(network, kernel, tol, units, trains)
        if units == "thresholds" or ordinary.table[0].bound <= tol:
            return _accepted(ordinary, tol, kinds)
        tried = ordinary.table
    designs = homogeneous.design(network, kernel, trains, tol)
    layer, proof = min(designs, key=lambda pair: pair[1].bound)
    where = Location(1.0, 1.0, proof.norm, kernel)
    rows = (*tried, Tried(1, proof.bound, proof.sampled, _FAMILY, 1))
    reason = "homogeneous: one kind of units is exact for all norms, up to the elementary function that is evaluated"
    return _accepted(_twin(network, kernel, layer, proof, None, where, rows, trains, reason, 1), tol, kinds)


def _thresholds(deq: DEQ, kernel: Kernel, tol: float, units: str, trains: Trains) -> Twin:
    found = thresholds.design(deq, kernel, trains == "all", tol)
    where = Location(1.0, 1.0, found.proof.norm, kernel)
    rows = (Tried(1, found.proof.bound, found.proof.sampled, "thresholds", 1),)
    count = len(found.layer.thresholds)
    reason = f"ordinary units with {count} thresholds proportional to |x|, " + (
        "as asked for" if units == "thresholds" else f"within tol = {tol:.3g} and cheaper than units='conditioned'"
    )
    twin = _twin(deq, kernel, found.layer, found.proof, None, where, rows, trains, reason, 1)
    rates = None if found.rate is None else (found.rate, 1.0)
    return replace(twin, family="thresholds", learning_rates=rates)


def _accepted(twin: Twin, tol: float, kinds: int | str) -> Twin:
    """``kinds=1`` is used whatever it reaches."""
    reached = twin.table[-1].bound
    if kinds == "auto" and reached > tol:
        raise InfeasibleMatchError(
            f"one layer of {twin.family} units reaches {reached:.3g} for the {twin.kernel} of {twin.deq!r}, asked "
            f"for tol = {tol:.3g}. Raise tol to {reached:.3g} or more"
            + (", or take units='conditioned'" if twin.family == "thresholds" else ""),
            reached,
        )
    return twin


# ---- a range of norms ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    layer: NormUnits
    proof: Proof
    row: Tried


def _boxed(
    deq: Network, kernel: Kernel, norms: tuple[float, float], tol: float, kinds: int | str, trains: Trains
) -> Twin:
    resolution = tol if kinds == "auto" else min(tol, 10.0 ** (-2 * int(kinds)))
    target = measure(deq, kernel, norms, _known(deq, kernel, norms, resolution, kinds))
    rows: list[Tried] = []
    turned = functools.cache(lambda: remainders(target, trains))
    for count in range(1, _MOST + 1) if kinds == "auto" else (int(kinds),):
        aim, parts, reach = _aimed(target, count, turned, tol)
        if kinds == "auto" and reach > tol:
            rows.append(Tried(1, reach, reach, _FAMILY, count))
            continue
        found = _shipped(aim, parts, _allowed(reach, resolution, kinds), trains, count)
        rows.append(found.row)
        if kinds != "auto" or found.proof.bound <= tol:
            where = Location(found.proof.norm, found.proof.norm, 1.0, kernel)
            reason = f"the fewest kinds of units within tol = {tol:.3g}" if kinds == "auto" else "kinds as asked for"
            return _twin(deq, kernel, found.layer, found.proof, norms, where, tuple(rows), trains, reason, count)
    raise InfeasibleMatchError(_infeasible(deq, kernel, tol, rows), min(row.bound for row in rows))


def _aimed(
    target: Target, count: int, turned: Callable[[], list[Target]], tol: float
) -> tuple[Target, np.ndarray, float]:
    """What the kinds are made for, their parts, and what these leave: with one kind that the norm turns if it pays."""
    parts = factorise(target, count)
    found = (target, parts, projection_bound(target, parts))
    if count == 1 or found[2] <= tol or not turned():
        return found
    aim = min(turned(), key=lambda aim: remaining(aim, count - 1))
    parts = factorise(aim, count - 1)
    reach = projection_bound(aim, parts)
    return (aim, parts, reach) if reach < _PAYS * found[2] else found


def _known(deq: Network, kernel: Kernel, norms: tuple[float, float], resolution: float, kinds: int | str) -> float:
    """How well the kernel has to be known: beside what a number of kinds leaves, roughly, and the units may add."""
    if kinds == "auto" or norms[0] == norms[1] or any(phi.kinks for phi in deq.activations):
        return resolution
    rough = sketch(deq, kernel, norms)
    left = np.diag(deficit(rough, factorise(rough, int(kinds)))) / np.diag(rough.total)
    return max(float(left.max()), 0.0) + _ENOUGH * resolution


def _allowed(reach: float, tol: float, kinds: int | str) -> Allowance:
    """What the units may miss: little beside the projection's deficit or the tolerance, and no more than is left."""
    if kinds != "auto":
        return Allowance(*[max(_SHARE * reach, _ENOUGH * tol)] * 2)
    room = 0.5 * (tol - reach)
    return Allowance(min(max(_SHARE * reach, 30.0 * _ENOUGH * tol), room), room)


def _shipped(target: Target, parts: np.ndarray, allowed: Allowance, trains: Trains, count: int) -> _Found:
    """The smallest elementary units that add little to the deficit of the projection, or the best there are."""
    want = wanted(target, parts)
    basis = _basis(target, want, trains)
    gain = gains(trains, singular=basis.singular > 0)
    best = smallest(basis, want, gain, allowed=allowed)
    made = _proven(target, certify(target, parts, want, best, gain), best, count)
    return made if basis.singular else _rotated(target, parts, want, made, basis, gain, allowed)


def _rotated(
    target: Target,
    parts: np.ndarray,
    want: np.ndarray,
    made: _Found,
    basis: Basis,
    gain: np.ndarray,
    allowed: Allowance,
) -> _Found:
    """Where kinds do not change smoothly with the order: rotated ones and rich functions, if they pay."""
    best, enough = made, projection_bound(target, parts) + allowed.room
    for degree, alpha in _RICHER:
        if best.proof.bound <= _NEAR * enough:
            break
        rich = replace(basis, degree=degree, alpha=alpha)
        near = turned(target, want, rich, gain)
        found = fit(rich, near, gain, even=True)
        proof = certify(target, parts, near, found, gain)
        if proof.bound < _PAYS * best.proof.bound:
            best = _proven(target, proof, found, made.row.kinds or 1)
    return best


def _proven(target: Target, proof: Proof, found: Fit, count: int) -> _Found:
    plain = assemble(target, found)
    layer = replace(target.beside, base=plain) if isinstance(target.beside, Turned) else plain
    return _Found(layer, proof, Tried(1, proof.bound, proof.sampled, _FAMILY, count))


def _basis(target: Target, want: np.ndarray, trains: Trains) -> Basis:
    """Smooth functions; where all kinks of the network lie at zero, the singular ones that carry the orders best."""
    plain = Basis(0.6, 6, parity=_parity(target))
    kinks = {kink for phi in target.network.activations for kink in phi.kinks}
    if kinks != {0.0}:
        return plain
    gain = gains(trains, singular=True)
    # a jump or a logarithm has no NTK
    orders = (1, 2) if trains == "all" else (0, 1, 2)
    choices = [replace(plain, singular=_SINGULAR, order=order) for order in orders]
    return min(choices, key=lambda basis: fit(replace(basis, degree=12), want, gain).price)


def _parity(target: Target) -> Parity | None:
    """That of the kernel in the cosine: odd for odd activations; even ones feed a drive back that is odd."""
    size = np.abs(target.orders).max((1, 2))
    if size[0::2].max() <= 1e-14 * size.max():
        return "odd"
    return "even" if size[1::2].max() <= 1e-14 * size.max() else None


def _infeasible(deq: Network, kernel: str, tol: float, rows: list[Tried]) -> str:
    listing = "\n".join(f"  {row}" for row in rows)
    best = min(rows, key=lambda row: row.bound)
    return (
        f"no layer of up to {_MOST} kinds of units has the {kernel} of {deq!r} within tol = {tol:.3g}:\n{listing}\n"
        f"Raise tol to {best.bound:.3g} or more, narrow the range of norms, or take match_one_layer(..., "
        f"kinds={best.kinds}) as it is"
    )


# ---- the record ------------------------------------------------------------------------------------------


def _twin(
    deq: Network,
    kernel: Kernel,
    layer: NormUnits,
    proof: Proof,
    norms: tuple[float, float] | None,
    where: Location,
    rows: tuple[Tried, ...],
    trains: Trains,
    reason: str,
    kinds: int,
) -> Twin:
    high = torch.tensor([1.0 if norms is None else norms[1] ** 2], dtype=torch.float64)
    largest = float(diagonal(deq, high, (kernel,), check=False)[kernel])
    proven = UniformCertificate(proof.sampled, proof.bound, norms, where, rows, ((kernel, largest),), proof.assumes)
    return Twin(deq, ENN([layer]), kernel, _FAMILY, proven, None, reason, trains, kinds)
