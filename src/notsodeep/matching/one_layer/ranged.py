"""One layer for a range of norms: the fewest kinds of units, and the smallest functions, within a tolerance."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ...activations import Basis, Parity, Turned
from ...activations.norm_units import NormUnits
from ...errors import InfeasibleMatchError
from ...networks import Kernel, Network
from ..certificates import Proof, Tried
from ..names import Trains
from .certificate import certify, projection_bound
from .factor import deficit, factorise
from .measuring import measure, sketch
from .target import Target
from .turning import remainders, remaining
from .units import Allowance, Fit, assemble, fit, gains, smallest, turned, wanted

MOST = 8
_SINGULAR = 4
_RICHER = ((24, 0.7), (32, 0.4))  # degree and slope of functions that rotated kinds may need
_PAYS = 0.8  # of the bound: they cost more, and have to bring this
FAMILY = "conditioned"
_SHARE = 0.1  # of the projection's deficit: what the elementary functions may add
_NEAR = 1.3  # times what the projection leaves and units may add: rotating kinds would not bring much
_ENOUGH = 1e-3  # of the tolerance: less than this is not worth larger functions


@dataclass(frozen=True)
class _Found:
    layer: NormUnits
    proof: Proof
    row: Tried


def design(
    deq: Network, kernel: Kernel, norms: tuple[float, float], tol: float, kinds: int | str, trains: Trains
) -> tuple[NormUnits, Proof, tuple[Tried, ...]]:
    """The layer, what is proven of it, and all that was tried; its kinds are those of the last row."""
    resolution = tol if kinds == "auto" else min(tol, 10.0 ** (-2 * int(kinds)))
    target = measure(deq, kernel, norms, _known(deq, kernel, norms, resolution, kinds))
    rows: list[Tried] = []
    turned = functools.cache(lambda: remainders(target, trains))
    for count in range(1, MOST + 1) if kinds == "auto" else (int(kinds),):
        aim, parts, reach = _aimed(target, count, turned, tol)
        if kinds == "auto" and reach > tol:
            rows.append(Tried(1, reach, reach, FAMILY, count))
            continue
        found = _shipped(aim, parts, _allowed(reach, resolution, kinds), trains, count)
        rows.append(found.row)
        if kinds != "auto" or found.proof.bound <= tol:
            return found.layer, found.proof, tuple(rows)
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
    return _Found(layer, proof, Tried(1, proof.bound, proof.sampled, FAMILY, count))


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
        f"no layer of up to {MOST} kinds of units has the {kernel} of {deq!r} within tol = {tol:.3g}:\n{listing}\n"
        f"Raise tol to {best.bound:.3g} or more, narrow the range of norms, or take match_one_layer(..., "
        f"kinds={best.kinds}) as it is"
    )
