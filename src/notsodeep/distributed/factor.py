"""Randomly pivoted Cholesky with the rows of its factor on the workers, beside the rows of the data.

Let S be the pivots and C the Cholesky factor of k(S, S): the rows of block b are F_b = k(X_b, S) C^(-T). So they follow
from the pivots and C alone, which the client holds (rank x p and rank x rank): what a lost worker had is made again.
The factor is that of the kernel without its scale D; with it F is D F, and C is D_S C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from ..solve.pivoted import choose_pivots
from .cluster import Call
from .share import BEHIND, Array

if TYPE_CHECKING:
    from .operator import ClusterKernel


class ClusterFactor:
    """F F' ~ D k(X, X) D; every worker holds F for the blocks of rows that are its own."""

    def __init__(self, operator: ClusterKernel, rank: int, seed: int) -> None:
        self.operator, self.name = operator, uuid4().hex[:16]
        self.pivots = torch.zeros(0, dtype=torch.long)
        self.lower = torch.zeros(rank, rank, dtype=torch.float64)
        self._widths: dict[tuple[str, int], int] = {}
        self.residual, _ = choose_pivots(self, operator.diagonal(), rank, seed)

    @property
    def rank(self) -> int:
        return len(self.pivots)

    # -- growing -------------------------------------------------------------------------------------------
    def corner(self, proposed: Tensor) -> Tensor:
        """K - F F' between these rows; the client computes it from the pivots."""
        X, kernel, done = self.operator.X, self.operator.kernel, self.rank
        known = kernel(X[self.pivots], X[proposed]) if done else torch.zeros(0, len(proposed), dtype=torch.float64)
        self._rows = torch.linalg.solve_triangular(self.lower[:done, :done], known, upper=False).T
        d = self._scale[proposed]
        return d * (kernel(X[proposed], None) - self._rows @ self._rows.T) * d.T

    def grow(self, proposed: Tensor, kept: Tensor, lower: Tensor) -> Tensor:
        """Workers append the columns of ``proposed[kept]`` to their rows."""
        done, index = self.rank, proposed[kept]
        mine = slice(done, done + len(kept))
        self.lower[mine, :done] = self._rows[kept]
        self.lower[mine, mine] = lower / self._scale[index]
        self.pivots = torch.cat([self.pivots, index])
        taken = self._by_rows("grow", (), lambda _: np.array(float(len(kept))))
        return taken * self._scale[:, 0] ** 2

    # -- use -----------------------------------------------------------------------------------------------
    def gram(self) -> Tensor:
        """F' F."""
        weights = self._scale.numpy() ** 2
        return self._summed("gram", lambda blocks: self._part(weights, blocks))

    def inner(self, R: Tensor) -> Tensor:
        """F' R."""
        given = (self._scale * R).numpy()
        return self._summed("inner", lambda blocks: self._part(given, blocks))

    def outer(self, Z: Tensor) -> Tensor:
        """F Z."""
        given = np.ascontiguousarray(Z.numpy())
        return self._scale * self._by_rows("outer", (Z.shape[1],), lambda _: given)

    @property
    def _scale(self) -> Tensor:
        scale = self.operator.scale
        return torch.ones(self.operator.n, 1, dtype=torch.float64) if scale is None else scale

    # -- messages ------------------------------------------------------------------------------------------
    def _part(self, values: Array, blocks: list[int]) -> Array:
        return np.concatenate([values[self.operator.grid.span(b)] for b in blocks])

    def _summed(self, step: str, values: Callable[[list[int]], Array]) -> Tensor:
        parts = [torch.as_tensor(found) for _, found in self._ask(step, values)]
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]

    def _by_rows(self, step: str, width: tuple[int, ...], values: Callable[[list[int]], Array]) -> Tensor:
        out = torch.empty(self.operator.n, *width, dtype=torch.float64)
        grid = self.operator.grid
        for blocks, found in self._ask(step, values):
            sizes = [grid.rows(b) for b in blocks]
            for block, part in zip(blocks, torch.as_tensor(found).split(sizes), strict=True):
                out[grid.span(block)] = part
        return out

    def _ask(self, step: str, values: Callable[[list[int]], Array]) -> Any:
        """(blocks, answer) of all workers; one that lacks rows says so, and is told what they follow from."""
        crew, total = self.operator.crew, self.rank
        pending = set(range(self.operator.grid.count))

        def call(worker: str, mine: list[int]) -> Call:
            start = min(self._widths.get((worker, b), 0) for b in mine)
            lacking = (self.operator.X[self.pivots[start:]].numpy(), self.lower[start:total, :total].numpy())
            arrays = (values(mine), *(lacking if start < total else ()))
            given = (self.name, step, mine, start, total)
            return crew.ask(worker, f"factor-{step}", "factored", *given, arrays=arrays, items=mine)

        while pending:
            for done, found in crew.over(sorted(pending), call):
                behind = isinstance(found, str) and found == BEHIND
                self._widths |= {(done.worker, b): 0 if behind else total for b in done.items}
                if not behind:
                    pending -= set(done.items)
                    yield done.items, found
