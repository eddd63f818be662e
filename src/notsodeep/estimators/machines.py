"""Weighted ridge regression three ways: with the exact kernel, with its equivalent, with random features.

Each way returns a :class:`Fitted`; all minimise sum_i w_i |y_i - f(x_i)|^2 + lift |f|^2 with weights w_i > 0 and
lift = ridge times the weighted mean of the kernel's diagonal. ``ridge=None`` chooses it by leave-one-out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..equivalents import EquivalentKernel, equivalent
from ..errors import InvalidInputError, warn
from ..matching import Twin
from ..mixtures import MixtureStatistics
from ..nn import ENN as Network
from ..solve import (
    DIRECT,
    FeatureSums,
    NetworkKernel,
    RidgePath,
    features_of,
    leave_one_out,
    ridge_path,
    solve_dense,
    solve_operator,
)
from .cluster import matrix_on, operator_on, sums_on
from .predictors import Embedding, Expansion, FeatureReadout, Fitted, LinearEquivalent

GRID = tuple(float(r) for r in np.logspace(-8, 1, 37))
"""The ridges that ``ridge="loo"`` tries, relative to the mean diagonal: four to a decade."""


def best_ridge(path: RidgePath, mean: float) -> float:
    """The ridge of the grid, relative to the ``mean`` diagonal, with the least mean squared leave-one-out error."""
    wrong = ((path.leave_one_out(ridge * mean) - path.targets).square().sum(1) for ridge in GRID)
    return GRID[int(np.argmin([float(path.weights @ each) for each in wrong]))]


# ---- a matrix ----------------------------------------------------------------------------------------------


_LOO_ROWS = 20_000  # beyond so many rows, leave-one-out of the structured machines would double the time
_CHUNK = 4096
_LEAST = 1e-280  # of a mean diagonal


def _dense(
    K: Tensor, T: Tensor, weights: Tensor, ridge: float | None, solver: str = "auto"
) -> tuple[Tensor, Tensor, float, float, dict[str, Any]]:
    """Coefficients, leave-one-out predictions, relative and absolute ridge, and a record of how."""
    mean = _mean_diagonal((weights * K.diagonal()).sum(), weights)
    if ridge is not None and solver != "eigh":
        plain = bool((weights == 1.0).all())
        found = solve_dense(K, T, [ridge * mean], weights=None if plain else weights, loo=True)
        assert found.leave_one_out is not None
        record = {"solver": "cholesky", "residual": float(found.residuals.max()), "jitter": found.jitter}
        return found.coefficients[0], found.leave_one_out[0], ridge, ridge * mean, record
    path = ridge_path(K, T, weights)
    chosen = best_ridge(path, mean) if ridge is None else ridge
    lift = chosen * mean
    return path.solution(lift), path.leave_one_out(lift), chosen, lift, {"solver": "eigh"}


def _mean_diagonal(total: Tensor, weights: Tensor) -> float:
    """What a ridge is relative to; it must leave room for a small part of itself, and for its inverse."""
    mean = float(total / weights.sum())
    if mean < _LEAST:
        raise InvalidInputError(
            "the kernel of these rows is zero, or too near to it to be divided by: scale the inputs up, or give "
            "sigma_c2 > 0"
        )
    return mean


# ---- the exact kernel ------------------------------------------------------------------------------------


def fit_exact(
    kernel: NetworkKernel,
    X: Tensor,
    T: Tensor,
    weights: Tensor,
    ridge: float | None,
    solver: str = "auto",
    client: Any = None,
    **options: Any,
) -> Fitted:
    """Cholesky, one eigendecomposition, or conjugate gradients on tiles with ``options`` of ``solve_kernel``.

    With a ``client`` the kernel is computed, and the tiles are kept, by the workers of its cluster.
    """
    if solver == "cg" or (solver == "auto" and len(X) > DIRECT):
        return _on_tiles(kernel, X, T, weights, ridge, client, **options)
    X = X.to(torch.float64)
    K = matrix_on(client, kernel, X, options.get("progress"))
    coefficients, loo, chosen, lift, record = _dense(K, T, weights, ridge, solver)
    return Fitted(Expansion(kernel, X, coefficients), chosen, lift, loo, record)


def _on_tiles(
    kernel: NetworkKernel, X: Tensor, T: Tensor, weights: Tensor, ridge: float | None, client: Any, **options: Any
) -> Fitted:
    if ridge is None:
        raise InvalidInputError(
            f"ridge='loo' takes a factorisation, and {len(X)} rows are solved by iteration; choose the ridge on a "
            f"sample of at most {DIRECT} rows, give a number, or solver='eigh'"
        )
    X, plain = X.to(torch.float64), bool((weights == 1.0).all())
    tiles = {name: options.pop(name) for name in ("dtype", "store", "folder")}
    scale, progress = None if plain else weights.sqrt(), options.get("progress")
    with operator_on(client, kernel, X, scale=scale, progress=progress, **tiles) as operator:
        lift = ridge * _mean_diagonal(operator.diagonal().sum(), weights)
        found = solve_operator(operator, T, [lift], **options)
    record = {
        "solver": "cg",
        "steps": found.steps,
        "refinements": found.refinements,
        "preconditioner": found.preconditioner,
        "rank": found.rank,
        "residual": float(found.residuals.max()),
    }
    record |= {} if client is None else {"workers_lost": operator.losses}
    return Fitted(Expansion(kernel, X, found.coefficients[0]), ridge, lift, None, record)


# ---- its equivalent --------------------------------------------------------------------------------------


def fit_equivalent(
    kernel: NetworkKernel, X: Tensor, T: Tensor, weights: Tensor, ridge: float | None, own_norms: bool = True
) -> Fitted:
    """With the high-dimensional equivalent of one class (new rows bring no labels): O(n p min(n, p))."""
    if isinstance(kernel.network, Twin):
        raise InvalidInputError("method='equivalent' takes a DEQ or an ENN; give twin.network or twin.deq")
    if len(X) < 2:
        raise InvalidInputError(f"method='equivalent' estimates statistics of the data, got n_samples = {len(X)}")
    operator = equivalent(kernel.network, MixtureStatistics.estimate(X), kernel.kernel, own_norms=own_norms)
    if len(X) > operator.rows.shape[1] + len(operator.core):
        if ridge is None:
            raise InvalidInputError("ridge='loo' with method='equivalent' is for fewer rows than columns")
        return _streamed(operator, T, weights, ridge)
    K = torch.as_tensor(operator.matrix()).to(torch.float64)
    coefficients, loo, chosen, lift, record = _dense(K, T, weights, ridge)
    readout = _middle(operator) @ (_coordinates(operator, slice(None)).T @ coefficients)
    return Fitted(LinearEquivalent(Embedding.of(operator), readout), chosen, lift, loo, record)


def _coordinates(operator: EquivalentKernel, rows: slice) -> Tensor:
    """Z: the equivalent is Z M Z' + a diagonal."""
    V = torch.from_numpy(operator.V[rows]).to(operator.rows.device)
    return torch.cat([operator.rows[rows].double(), V], dim=1)


def _middle(operator: EquivalentKernel) -> Tensor:
    """M"""
    p, device = operator.rows.shape[1], operator.rows.device
    gram = operator.gain * torch.eye(p, dtype=torch.float64, device=device)
    return torch.block_diag(gram, torch.from_numpy(operator.core).to(device))


def _shift(operator: EquivalentKernel, T: Tensor) -> Tensor:
    return torch.as_tensor(operator.shift, dtype=torch.float64, device=T.device).expand(len(T))


def _streamed(operator: EquivalentKernel, T: Tensor, weights: Tensor, ridge: float) -> Fitted:
    """C = Z M Z' + L, L a diagonal: Woodbury, with sums over rows that never hold more than a chunk of Z.

    C^(-1) = L^(-1) - L^(-1) Z H Z' L^(-1), H = M (I + Z' L^(-1) Z M)^(-1), and f(x) = z(x) H Z' L^(-1) T.
    """
    n, M = len(T), _middle(operator)
    parts = [slice(start, min(start + _CHUNK, n)) for start in range(0, n, _CHUNK)]
    shift = _shift(operator, T)
    own = torch.cat([operator.structured_diagonal(part) for part in parts]) + shift
    lift = ridge * float((weights * own).sum() / weights.sum())
    L = shift + lift / weights
    if float(L.min()) <= 0.0:
        lifted = _shift(operator.lifted(), T)
        warn(
            f"the equivalent takes too much from the diagonal of {int((lifted > shift).sum())} of {n} rows, as their "
            f"norms lie far from the others: a jitter of up to {float((lifted - shift).max()):.3g} was added there. A "
            "larger ridge, or own_norms=False, avoids this"
        )
        L = lifted + lift / weights
    G, c = torch.zeros_like(M), torch.zeros(len(M), T.shape[1], dtype=M.dtype, device=M.device)
    for part in parts:
        z = _coordinates(operator, part)
        swept = z / L[part, None]
        G += swept.T @ z
        c += swept.T @ T[part]
    H = M @ torch.linalg.inv(torch.eye(len(M), dtype=M.dtype, device=M.device) + G @ M)
    readout, loo = H @ c, None
    if n <= _LOO_ROWS:
        Z = torch.cat([_coordinates(operator, part) for part in parts])
        solution = (T - Z @ readout) / L[:, None]
        loo = leave_one_out(T, solution, 1.0 / L - ((Z @ H) * Z).sum(1) / L**2, weights, lift)
    record = {"solver": "cholesky", "size": len(M)}
    return Fitted(LinearEquivalent(Embedding.of(operator), readout), ridge, lift, loo, record)


# ---- random features -------------------------------------------------------------------------------------


def fit_features(
    model: Network, X: Tensor, T: Tensor, weights: Tensor, ridge: float | None, client: Any = None
) -> Fitted:
    """On random features: through the n x n matrix if that is smaller, through sums over rows otherwise."""
    if len(X) <= model.width or ridge is None:
        if len(X) > _LOO_ROWS:
            raise InvalidInputError(f"ridge='loo' with method='features' is for at most {_LOO_ROWS} rows")
        phi = features_of(model, X).double()
        coefficients, loo, chosen, lift, record = _dense(phi @ phi.T, T, weights, ridge)
        return Fitted(FeatureReadout(model, phi.T @ coefficients), chosen, lift, loo, record)
    sums = sums_on(client, model, X, T, weights)
    return fit_sums(model, sums, ridge, (X, T, weights) if len(X) <= _LOO_ROWS else None)


def fit_sums(model: Network, sums: FeatureSums, ridge: float, seen: tuple[Tensor, ...] | None = None) -> Fitted:
    """(S + lift I) w = c; leave-one-out for the rows in ``seen``, which must be part of the sums.

    Row i has a = w_i (y_i - f(x_i)) / lift and C^(-1)_ii = w_i (1 - w_i h_i) / lift, h_i = phi' (S + lift I)^(-1) phi.
    """
    lift = ridge * float(sums.gram.diagonal().sum()) / sums.weight
    found = solve_dense(sums.gram, sums.cross, [lift])
    readout = FeatureReadout(model, found.coefficients[0])
    record = {"solver": "cholesky", "size": model.width, "rows": sums.rows, "residual": float(found.residuals.max())}
    if seen is None:
        return Fitted(readout, ridge, lift, None, record)
    X, T, w = seen
    phi = features_of(model, X).double()
    leverage = (phi * solve_dense(sums.gram, phi.T, [lift]).coefficients[0].T).sum(1)
    solution = w[:, None] * (T - phi @ readout.weights) / lift
    loo = leave_one_out(T, solution, w * (1.0 - w * leverage) / lift, w, lift)
    return Fitted(readout, ridge, lift, loo, record)


_RETAINED = 4000  # rows of a stream that are kept, to know their leave-one-out predictions


@dataclass
class Stream:
    """A features machine that grows: sums over all rows, and the first rows themselves."""

    model: Network
    sums: FeatureSums | None = None
    seen: tuple[Tensor, ...] = ()
    """Rows, targets and weights of the first rows."""

    def add(self, X: Tensor, T: Tensor, weights: Tensor, client: Any = None) -> None:
        fresh = sums_on(client, self.model, X, T, weights)
        self.sums = fresh if self.sums is None else self.sums.merge(fresh)
        given = (X, T, weights)
        seen = self.seen or tuple(part[:0] for part in given)
        room = _RETAINED - len(seen[0])
        self.seen = tuple(torch.cat([old, new[:room]]) for old, new in zip(seen, given, strict=True))

    def fit(self, ridge: float) -> Fitted:
        assert self.sums is not None
        return fit_sums(self.model, self.sums, ridge, self.seen)
