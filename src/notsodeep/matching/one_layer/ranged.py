"""One layer for a range of norms: the fewest kinds of units, and the smallest functions, within a tolerance.

The best J kinds are a projection of rank J for every order, chosen in the maximum norm over the range. Order k of the
kernel is a Gram matrix F_k F_k'. For weights mu(s) the projection that leaves the least of sum_s mu(s) delta(s) is onto
the J leading directions of sum_s mu(s) F_k(s) F_k(s)', for every order by itself. The weights move towards the norms
where the relative deficit is largest, until it is level: a minimax design.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...activations import Basis, Parity, Turned
from ...activations.norm_units import NormUnits
from ...errors import InfeasibleMatchError
from ...networks import Kernel, Network
from ..certificates import Proof, Tried
from ..names import Trains
from .certificate import LayerDesign, certify, projection_bound
from .measuring import measure, sketch
from .target import NOISE, Array, KernelOrders, quadratic
from .turning import remainders, remaining
from .units import FAMILY, Allowance, assemble, fit, gains, smallest, turned, wanted

MOST = 8
_SINGULAR = 4
_RICHER = ((24, 0.7), (32, 0.4))  # degree and slope of functions that rotated kinds may need
_PAYS = 0.8  # of the bound: they cost more, and have to bring this
_SHARE = 0.1  # of the projection's deficit: what the elementary functions may add
_NEAR = 1.3  # times what the projection leaves and units may add: rotating kinds would not bring much
_ENOUGH = 1e-3  # of the tolerance: less than this is not worth larger functions
_ROUNDS = 10
_SPEED = 0.6  # exponent of the multiplicative step of the weights


def design(
    deq: Network, kernel: Kernel, norms: tuple[float, float], tol: float, kinds: int | str, trains: Trains
) -> LayerDesign:
    """The fewest kinds within ``tol``, or so many as are asked for."""
    resolution = tol if kinds == "auto" else min(tol, 10.0 ** (-2 * int(kinds)))
    target = measure(deq, kernel, norms, _known(deq, kernel, norms, resolution, kinds))
    rows: list[Tried] = []
    turned = functools.cache(lambda: remainders(target, trains))
    for count in range(1, MOST + 1) if kinds == "auto" else (int(kinds),):
        aim, parts, reach = _aimed(target, count, turned, tol)
        if kinds == "auto" and reach > tol:
            rows.append(Tried(1, reach, reach, FAMILY, count))
            continue
        layer, proof = _shipped(aim, parts, _allowed(reach, resolution, kinds), trains)
        rows.append(Tried(1, proof.bound, proof.sampled, FAMILY, count))
        if kinds != "auto" or proof.bound <= tol:
            reason = f"the fewest kinds of units within tol = {tol:.3g}" if kinds == "auto" else "kinds as asked for"
            return LayerDesign(layer, proof, tuple(rows), reason)
    best, listing = min(rows, key=lambda row: row.bound), "\n".join(f"  {row}" for row in rows)
    raise InfeasibleMatchError(
        f"no layer of up to {MOST} kinds of units has the {kernel} of {deq!r} within tol = {tol:.3g}:\n{listing}\n"
        f"Raise tol to {best.bound:.3g} or more, narrow the range of norms, or take match_one_layer(..., "
        f"kinds={best.kinds}) as it is",
        best.bound,
    )


def _aimed(
    target: KernelOrders, count: int, turned: Callable[[], list[KernelOrders]], tol: float
) -> tuple[KernelOrders, Array, float]:
    """What the kinds are made for, their parts, and what these leave: with one kind that the norm turns if it pays."""
    parts = _factorise(target, count)
    found = (target, parts, projection_bound(target, parts))
    if count == 1 or found[2] <= tol or not turned():
        return found
    aim = min(turned(), key=lambda aim: remaining(aim, count - 1))
    parts = _factorise(aim, count - 1)
    reach = projection_bound(aim, parts)
    return (aim, parts, reach) if reach < _PAYS * found[2] else found


def _known(deq: Network, kernel: Kernel, norms: tuple[float, float], resolution: float, kinds: int | str) -> float:
    """How well the kernel has to be known: beside what a number of kinds leaves, roughly, and the units may add."""
    if kinds == "auto" or norms[0] == norms[1] or deq.kinked:
        return resolution
    rough = sketch(deq, kernel, norms)
    left = np.diag(rough.deficit(_factorise(rough, int(kinds)))) / np.diag(rough.total)
    return max(float(left.max()), 0.0) + _ENOUGH * resolution


def _allowed(reach: float, tol: float, kinds: int | str) -> Allowance:
    """What the units may miss: little beside the projection's deficit or the tolerance, and no more than is left."""
    if kinds != "auto":
        return Allowance(*[max(_SHARE * reach, _ENOUGH * tol)] * 2)
    room = 0.5 * (tol - reach)
    return Allowance(min(max(_SHARE * reach, 30.0 * _ENOUGH * tol), room), room)


def _shipped(target: KernelOrders, parts: Array, allowed: Allowance, trains: Trains) -> tuple[NormUnits, Proof]:
    """The smallest elementary units that add little to the deficit of the projection, or the best there are."""
    want = wanted(target, parts)
    basis = _basis(target, want, trains)
    gain = gains(trains, singular=basis.singular > 0)
    best = smallest(basis, want, gain, allowed=allowed)
    proof = certify(target, parts, want, best, gain)
    enough = projection_bound(target, parts) + allowed.room
    # where kinds do not change smoothly with the order: rotated ones and rich functions, if they pay
    for degree, alpha in () if basis.singular else _RICHER:
        if proof.bound <= _NEAR * enough:
            break
        rich = replace(basis, degree=degree, alpha=alpha)
        near = turned(target, want, rich, gain)
        found = fit(rich, near, gain, even=True)
        other = certify(target, parts, near, found, gain)
        if other.bound < _PAYS * proof.bound:
            best, proof = found, other
    plain = assemble(target, best)
    return replace(target.beside, base=plain) if isinstance(target.beside, Turned) else plain, proof


def _basis(target: KernelOrders, want: Array, trains: Trains) -> Basis:
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


def _parity(target: KernelOrders) -> Parity | None:
    """That of the kernel in the cosine: odd for odd activations; even ones feed a drive back that is odd."""
    size = np.abs(target.orders).max((1, 2))
    if size[0::2].max() <= 1e-14 * size.max():
        return "odd"
    return "even" if size[1::2].max() <= 1e-14 * size.max() else None


# ---- kinds -----------------------------------------------------------------------------------------------------


def _factorise(target: KernelOrders, kinds: int) -> Array:
    """c_k(s_i) with c_k c_k' the projected order k at the nodes: (K, N, kinds)."""
    rows = target.at(3 * len(target.nodes))[1]
    diagonal = quadratic(rows, target.total)
    weights = np.ones(len(rows))
    best, least = np.empty(0), np.inf
    for _ in range(_ROUNDS):
        parts = _leading(target, rows, weights / diagonal, kinds)
        left = np.maximum(quadratic(rows, target.deficit(parts)), 0.0) / diagonal
        worst = float(left.max())
        if worst < least:
            best, least = parts, worst
        if worst <= 0.0 or float(left.min()) > 0.9 * worst:
            break
        weights = weights * (left / worst) ** _SPEED + 1e-9
    return _oriented(best)


def _leading(target: KernelOrders, rows: Array, weights: Array, kinds: int) -> Array:
    features = target.features
    weighted = rows.T @ (rows * weights[:, None])
    covariance = features.transpose(0, 2, 1) @ weighted @ features
    values, vectors = np.linalg.eigh(covariance)
    keep = values[:, -kinds:] > NOISE * values.max()
    return (features @ (vectors[:, :, -kinds:] * keep[:, None, :]))[:, :, ::-1]


def _oriented(parts: Array) -> Array:
    """Signs of eigenvectors are arbitrary: each order takes the one nearest to the order before."""
    out = parts.copy()
    for j in range(out.shape[2]):
        before = None
        for column in out[:, :, j]:
            size = float(np.linalg.norm(column))
            if size == 0.0:
                continue
            if before is None:
                column *= np.sign(column[0]) or 1.0
            elif float(column @ before) < 0.0:
                column *= -1.0
            before = column / size
    return out
