"""One layer for a range of norms: the fewest kinds of units, and the smallest functions, within a tolerance.

The best J kinds are, for every order, a projection onto the J leading directions of sum_s mu(s) F_k(s) F_k(s)', where
F_k F_k' is the order k of the kernel. The weights mu(s) move towards the norms where the relative deficit is largest,
until it is level: a minimax design.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..._progress import track
from ...errors import InfeasibleMatchError
from ...networks import Kernel, Network
from ...units import Basis, Conditioned
from .._limits import LIMITS
from ..certificates import Supremum, Tried
from ..twin import Trains
from .bound import LayerDesign, certify, projection_bound
from .orders import NOISE, Array, KernelOrders, measure, parity_of, quadratic, resolved, sketch
from .units import FAMILY, Allowance, assemble, fit, gains, rotated, smallest, wanted

_NO_BOUND = 1e300


def design(
    network: Network, kernel: Kernel, norms: tuple[float, float], tol: float, kinds: int | str, trains: Trains
) -> LayerDesign:
    """Find the fewest kinds within ``tol``, or so many as are asked for."""
    resolution = tol if kinds == "auto" else min(tol, 10.0 ** (-2 * int(kinds)))
    _check_reach(network, kernel, norms[1], tol if kinds == "auto" else 0.5)
    target = measure(network, kernel, norms, _accuracy(network, kernel, norms, resolution, kinds))
    rows: list[Tried] = []
    counts = range(1, LIMITS.most_kinds + 1) if kinds == "auto" else (int(kinds),)
    for count in track(counts, len(counts), "kinds of units"):
        parts = _factorise(target, count)
        reach = projection_bound(target, parts)
        if kinds == "auto" and reach > tol:
            rows.append(Tried(count, reach, FAMILY))
            continue
        layer, proof = _finished(target, parts, _allowed(reach, resolution, kinds), trains)
        rows.append(Tried(count, min(proof.bound, _NO_BOUND), FAMILY))
        if proof.bound <= (tol if kinds == "auto" else 1.0):  # 1 is the error of a layer of zeros
            reason = f"the fewest kinds of units within tol = {tol:.3g}" if kinds == "auto" else "kinds as asked for"
            return LayerDesign(layer, proof, tuple(rows), reason)
    best, listing = min(rows, key=lambda row: row.bound), "\n".join(f"  {row}" for row in rows)
    if best.bound > 1.0:
        raise InfeasibleMatchError(
            f"on norms {norms[0]:.4g} to {norms[1]:.4g} no layer of {best.kinds} kinds of units is known to be nearer "
            f"to the {kernel} of {network!r} than a layer of zeros is: the norms that are computed do not resolve it. "
            "End the range at a smaller norm, begin it further from zero, or, for a DEQ, take norms=(0, inf)",
            best.bound,
        )
    raise InfeasibleMatchError(
        f"no layer of up to {LIMITS.most_kinds} kinds of units has the {kernel} of {network!r} within "
        f"tol = {tol:.3g}:\n{listing}\n"
        f"Raise tol to {best.bound:.3g} or more, narrow the range of norms, or take match_one_layer(..., "
        f"kinds={best.kinds}) as it is",
        best.bound,
    )


def _check_reach(network: Network, kernel: Kernel, high: float, most: float) -> None:
    """Refuse at once what no number of kinds reaches."""
    count, left = resolved(network, kernel, high, LIMITS.resolution * most)
    instead = (
        f"Raise tol above {left:.3g}, take what a number of kinds reaches (kinds=3)" if left < 0.5 else "Raise tol"
    )
    if left > most:
        raise InfeasibleMatchError(
            f"no layer has the {kernel} of {network!r} within {most:.3g} at norm {high:.4g}: the first {count} orders "
            f"in the cosine, which are all that is fitted, leave {left:.3g} of it. {instead}, or end the range at a "
            "smaller norm",
            left,
        )


def _accuracy(
    network: Network, kernel: Kernel, norms: tuple[float, float], resolution: float, kinds: int | str
) -> float:
    """Return how well the kernel has to be known, beside roughly what a number of kinds leaves and units may add."""
    if kinds == "auto" or norms[0] == norms[1] or network.kinked:
        return resolution
    rough = sketch(network, kernel, norms)
    left = np.diag(rough.deficit(_factorise(rough, int(kinds)))) / np.diag(rough.total)
    return max(float(left.max()), 0.0) + LIMITS.resolution * resolution


def _allowed(reach: float, tol: float, kinds: int | str) -> Allowance:
    """Return what units may miss: little beside the projection's deficit or the tolerance, no more than is left."""
    if kinds != "auto":
        return Allowance(*[max(LIMITS.unit_share * reach, LIMITS.resolution * tol)] * 2)
    spare = 0.5 * (tol - reach)
    return Allowance(min(max(LIMITS.unit_share * reach, 30.0 * LIMITS.resolution * tol), spare), spare)


def _finished(target: KernelOrders, parts: Array, allowed: Allowance, trains: Trains) -> tuple[Conditioned, Supremum]:
    """Find the smallest elementary units that add little to the deficit of the projection, or the best there are."""
    want = wanted(target, parts)
    basis = _basis(target, want, trains)
    gain = gains(trains)
    best = smallest(basis, want, gain, allowed=allowed)
    proof = certify(target, parts, want, best, gain)
    enough = projection_bound(target, parts) + allowed.most
    # where kinds do not change smoothly with the order: rotated ones and rich functions, if they pay
    for degree, alpha in () if basis.singular else ((24, 0.7), (32, 0.4)):
        if proof.bound <= 1.3 * enough:
            break
        rich = replace(basis, degree=degree, alpha=alpha)
        near = rotated(target, want, rich, gain)
        fitted = fit(rich, near, gain, even=True)
        other = certify(target, parts, near, fitted, gain)
        if other.bound < LIMITS.worthwhile * proof.bound:
            best, proof = fitted, other
    return assemble(target, best), proof


def _basis(target: KernelOrders, want: Array, trains: Trains) -> Basis:
    """Smooth functions; where all kinks lie at zero, the singular ones that carry the orders best."""
    plain = Basis(0.6, 6, parity=parity_of(np.abs(target.orders).max((1, 2))))
    if {kink for phi in target.network.activations for kink in phi.kinks} != {0.0}:
        return plain
    gain = gains(trains)
    # a jump or a logarithm has no NTK
    orders = (1, 2) if trains == "all" else (0, 1, 2)
    choices = [replace(plain, singular=4, order=order) for order in orders]
    return min(choices, key=lambda basis: fit(replace(basis, degree=12), want, gain).cost)


# ---- kinds -----------------------------------------------------------------------------------------------------


def _factorise(target: KernelOrders, kinds: int) -> Array:
    """Return c_k(s_i) with c_k c_k' the projected order k at the nodes: (K, N, kinds)."""
    rows = target.at(3 * len(target.nodes))[1]
    diagonal = quadratic(rows, target.total)
    weights = np.ones(len(rows))
    best, least = np.empty(0), np.inf
    for _ in range(10):
        parts = _leading(target, rows, weights / diagonal, kinds)
        left = np.maximum(quadratic(rows, target.deficit(parts)), 0.0) / diagonal
        worst = float(left.max())
        if worst < least:
            best, least = parts, worst
        if worst <= 0.0 or float(left.min()) > 0.9 * worst:
            break
        weights = weights * (left / worst) ** 0.6 + 1e-9
    return _oriented(best)


def _leading(target: KernelOrders, rows: Array, weights: Array, kinds: int) -> Array:
    features = target.features
    weighted = rows.T @ (rows * weights[:, None])
    covariance = features.transpose(0, 2, 1) @ weighted @ features
    values, vectors = np.linalg.eigh(covariance)
    keep = values[:, -kinds:] > NOISE * values.max()
    return (features @ (vectors[:, :, -kinds:] * keep[:, None, :]))[:, :, ::-1]


def _oriented(parts: Array) -> Array:
    """Choose the signs of eigenvectors, which are arbitrary: each order takes the one nearest to the order before."""
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
