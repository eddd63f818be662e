"""Kernel ridge regression of any size: one call that factorises what fits and iterates on the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from .._arguments import checked
from ..equivalents import EquivalentKernel
from ..errors import InvalidInputError, NotSoDeepError
from .dense import factorise, leave_one_out
from .iterative import solve_tiles
from .operator import KernelFunction, KernelOperator
from .preconditioners import PreconditionerName, default_rank, precondition
from .tiles import KernelTiles, Store

DIRECT = 10_000
"""Up to so many rows Cholesky is the quicker way (theory, section 16)."""


@dataclass(frozen=True, eq=False)
class Solution:
    """Coefficients a with f(x) = sum_i a_i k(x, x_i), for every ridge and every right-hand side."""

    coefficients: Tensor
    """Shape (ridges, n, k)."""
    ridges: tuple[float, ...]
    method: Literal["cholesky", "cg"]
    residuals: Tensor
    """Relative residuals, (ridges, k)."""
    leave_one_out: Tensor | None = None
    """Predictions of each row from all others, (ridges, n, k); with Cholesky, and where it was asked for."""
    steps: int = 0
    refinements: int = 0
    history: tuple[float, ...] = ()
    """The largest relative residual after each step."""
    preconditioner: str = "none"
    rank: int = 0
    jitter: float = 0.0


@checked
def solve_kernel(
    kernel: KernelFunction,
    X: Tensor,
    targets: Tensor,
    ridges: Sequence[float],
    *,
    method: Literal["auto", "cholesky", "cg"] = "auto",
    weights: Tensor | None = None,
    loo: bool = False,
    preconditioner: PreconditionerName | Literal["auto"] = "auto",
    rank: int | None = None,
    equivalent: EquivalentKernel | None = None,
    tol: float = 1e-6,
    dtype: Literal["auto", "float32", "float64"] = "auto",
    refine: bool = True,
    store: Store = "auto",
    folder: str | Path | None = None,
    checkpoint: str | Path | None = None,
    max_steps: int = 2000,
    seed: int = 0,
    progress: bool | None = None,
) -> Solution:
    """argmin sum_i w_i |y_i - f(x_i)|^2 + ridge |f|^2 in the space of the kernel, for all ridges at once.

    Parameters
    ----------
    kernel : k(X, Y) -> matrix of rows of X against rows of Y (of X itself if Y is None), in the precision of X
    X, targets : (n, p) and (n, k), on one device
    ridges : absolute; the matrix solved with is K + ridge W^(-1)
    method : ``"cholesky"`` up to what fits, ``"cg"`` on tiles beyond; ``"auto"`` by the number of rows
    weights : w, not negative; a row of weight 2 counts as two
    loo : also the closed-form leave-one-out predictions (Cholesky); a row of weight above one loses one unit of it
    preconditioner, rank, equivalent, seed : see :mod:`notsodeep.solve.preconditioners`; ``"auto"`` tries them on a
        sample of rows if ``equivalent`` (:func:`notsodeep.equivalent` of the same rows) is given
    tol : relative residual of every right-hand side
    dtype : of the stored tiles; float32 halves the memory, and ``refine`` then computes residuals in float64 until
        ``tol`` is reached, at the price of one more kernel each time
    store, folder : tiles in ``"memory"``, on ``"disk"`` in a folder, or computed again for each product (``"none"``)
    checkpoint : a file from which a killed solve goes on; removed at the end

    >>> import notsodeep as nsd
    >>> X, y = torch.eye(4, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64)
    >>> found = solve_kernel(lambda a, b: nsd.ck(nsd.ENN(["relu"]), a, b), X, y, ridges=[0.5])
    >>> found.method, found.coefficients.shape
    ('cholesky', torch.Size([1, 4, 1]))
    """
    _check(X, targets, ridges, tol)
    if method == "cholesky" or (method == "auto" and len(X) <= DIRECT):
        try:
            K = kernel(X.to(torch.float64), None)
        except TypeError as error:
            raise InvalidInputError(f"a kernel is a function of rows and of others or None: {error}") from error
        return solve_dense(K, targets, ridges, weights=weights, loo=loo)
    scale = scale_of(weights, len(X), X.device)
    tiles = KernelTiles(kernel, X, scale=scale, dtype=dtype, store=store, folder=folder, progress=progress)
    return solve_operator(
        tiles,
        targets,
        ridges,
        preconditioner=preconditioner,
        rank=rank,
        equivalent=equivalent,
        tol=tol,
        refine=refine,
        checkpoint=checkpoint,
        max_steps=max_steps,
        seed=seed,
        progress=progress,
    )


@checked
def solve_operator(
    operator: KernelOperator,
    targets: Tensor,
    ridges: Sequence[float],
    *,
    preconditioner: PreconditionerName | Literal["auto"] = "auto",
    rank: int | None = None,
    equivalent: EquivalentKernel | None = None,
    tol: float = 1e-6,
    refine: bool = True,
    checkpoint: str | Path | None = None,
    max_steps: int = 2000,
    seed: int = 0,
    progress: bool | None = None,
) -> Solution:
    """:func:`solve_kernel` by conjugate gradients with an operator: tiles of this process, or of a cluster.

    The operator's scale D is the root of the weights; its products are with D K D.
    """
    _check(operator.X, targets, ridges, tol)
    B, scale = targets.to(operator.X.device, torch.float64), operator.scale
    columns, lifts = _columns(B if scale is None else scale * B, ridges)
    name = choose(operator, lifts, rank, equivalent, seed) if preconditioner == "auto" else preconditioner
    chosen = precondition(name, operator, rank=rank, equivalent=equivalent, seed=seed)
    found = solve_tiles(
        operator,
        columns,
        lifts,
        chosen,
        tol=tol,
        refine=refine,
        max_steps=max_steps,
        checkpoint=checkpoint,
        progress=progress,
    )
    z = found.z.reshape(operator.n, len(ridges), -1).transpose(0, 1)
    return Solution(
        z if scale is None else scale * z,
        tuple(ridges),
        "cg",
        found.residuals.reshape(len(ridges), -1),
        None,
        found.steps,
        found.refinements,
        found.history,
        chosen.name,
        chosen.rank,
    )


@checked
def solve_dense(
    K: Tensor, targets: Tensor, ridges: Sequence[float], *, weights: Tensor | None = None, loo: bool = False
) -> Solution:
    """:func:`solve_kernel` with a matrix: Cholesky of S K S + ridge I, S = W^(1/2), once per ridge."""
    _check(K, targets, ridges)
    B, scale = targets.to(K.device, torch.float64), scale_of(weights, len(K), K.device)
    d = torch.ones(len(K), dtype=K.dtype, device=K.device) if scale is None else scale
    scaled = K if scale is None else d[:, None] * K * d
    right = d[:, None] * B
    parts, residuals, left_out, jitter = [], [], [], 0.0
    for ridge in ridges:
        factor = factorise(scaled, ridge)
        z = factor.solve(right)
        z = z + factor.solve(right - scaled @ z - ridge * z)  # one refinement: the last digits of a stiff system
        left = (right - scaled @ z - ridge * z).norm(dim=0)
        parts.append(d[:, None] * z)
        residuals.append(left / right.norm(dim=0).clamp_min(torch.finfo(K.dtype).tiny))
        jitter = max(jitter, factor.jitter)
        if loo:
            left_out.append(_left_out(K, B, parts[-1], d**2 * factor.inverse().diagonal(), d**2, ridge))
    return Solution(
        torch.stack(parts),
        tuple(ridges),
        "cholesky",
        torch.stack(residuals),
        torch.stack(left_out) if loo else None,
        jitter=jitter,
    )


def _left_out(
    K: Tensor, B: Tensor, coefficients: Tensor, inverse_diagonal: Tensor, weights: Tensor, ridge: float
) -> Tensor:
    """A row of weight 0 was left out already: there the prediction itself is the answer."""
    some = weights > 0
    out = K @ coefficients
    out[some] = leave_one_out(B[some], coefficients[some], inverse_diagonal[some], weights[some], ridge)
    return out


def _check(X: Tensor, targets: Tensor, ridges: Sequence[float], tol: float = 0.5) -> None:
    if X.ndim != 2 or targets.ndim != 2 or len(X) != len(targets):
        raise InvalidInputError(
            f"rows (n, p) and targets (n, k) are needed, got {tuple(X.shape)} and {tuple(targets.shape)}"
        )
    if not len(ridges) or not all(0.0 < r < float("inf") for r in ridges):
        raise InvalidInputError(f"ridges must be positive and finite, got {list(ridges)!r}")
    if not 0.0 < tol < 1.0:
        raise InvalidInputError(f"tol must lie between 0 and 1, got {tol!r}")


def scale_of(weights: Tensor | None, n: int, device: torch.device) -> Tensor | None:
    """The roots of the weights, or None without any."""
    if weights is None:
        return None
    w = weights.to(device, torch.float64)
    if w.shape != (n,) or not bool(torch.isfinite(w).all()) or bool((w < 0).any()) or not bool((w > 0).any()):
        raise InvalidInputError(f"weights must be {n} finite numbers, none negative and not all zero")
    return w.sqrt()


def _columns(B: Tensor, ridges: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Every right-hand side with every ridge, side by side: (n, ridges * k) and the ridge of each column."""
    lifts = torch.tensor(list(ridges), dtype=B.dtype, device=B.device).repeat_interleave(B.shape[1])
    return B.repeat(1, len(ridges)), lifts


# ---- which preconditioner ----------------------------------------------------------------------------------


_PROBE = 1000
_CLEARLY = 0.5  # a step with the equivalent passes over the data several times


def choose(
    tiles: KernelOperator, ridges: Tensor, rank: int | None, equivalent: EquivalentKernel | None, seed: int = 0
) -> PreconditionerName:
    """Randomly pivoted Cholesky (theory, section 16), unless the equivalent needs half its steps or less.

    Both are tried on a sample of rows, to 1e-4, with the rank itself: more of it than the whole would have, but what
    pivots capture hardly depends on how many other rows there are.
    """
    if equivalent is None or tiles.scale is not None:
        return "rpcholesky"
    few = min(_PROBE, tiles.n)
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(tiles.n, generator=generator)[:few].to(tiles.X.device)
    sample = KernelTiles(tiles.kernel, tiles.X[index], store="memory", progress=False)
    b = torch.randn(few, 1, generator=generator, dtype=torch.float64).to(tiles.X)
    full = default_rank(tiles.n) if rank is None else rank
    part, lowest = min(full, few // 2), ridges.min().reshape(1)
    operator = _restricted(equivalent, index)
    candidates: tuple[PreconditionerName, ...] = ("rpcholesky", "equivalent", "equivalent+rpcholesky")
    costs = {}
    for name in candidates:
        try:
            tried = precondition(name, sample, rank=part, equivalent=operator, seed=seed)
            costs[name] = solve_tiles(sample, b, lowest, tried, tol=1e-4, max_steps=500, progress=False).steps
        except NotSoDeepError:  # an equivalent that is not positive definite here is no candidate
            continue
    usual = costs.get("rpcholesky", 500)
    better = {name: steps for name, steps in costs.items() if steps <= _CLEARLY * usual}
    return min(better, key=lambda name: better[name]) if better else "rpcholesky"


def _restricted(operator: EquivalentKernel, index: Tensor) -> EquivalentKernel:
    """The equivalent on some of its rows."""
    where = index.cpu().numpy()
    shift = operator.shift if isinstance(operator.shift, float) else operator.shift[where]
    return replace(operator, X=operator.rows[index], V=operator.V[where], shift=shift)
