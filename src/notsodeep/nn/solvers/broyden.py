"""Broyden's good method with limited memory, one inverse Jacobian per row."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Broyden"]


@dataclass(slots=True)
class Broyden:
    """z <- z - H g, g = f(z) - z; H = -I + sum_j u_j v_j' is updated by Sherman and Morrison's formula.

    It starts as Picard iteration and needs no contraction. The memory is cleared once ``memory`` pairs are held.
    """

    memory: int = 20
    _step: Tensor | None = field(default=None, repr=False)
    _gap: Tensor | None = field(default=None, repr=False)
    _left: list[Tensor] = field(default_factory=list, repr=False)
    _right: list[Tensor] = field(default_factory=list, repr=False)

    def advance(self, z: Tensor, image: Tensor) -> Tensor:
        gap = image - z
        if self._step is not None and self._gap is not None:
            self._learn(self._step, gap - self._gap)
        step = -self._apply(gap)
        self._step, self._gap = step, gap
        return z + step

    def keep(self, rows: Tensor) -> None:
        self._step = None if self._step is None else self._step[rows]
        self._gap = None if self._gap is None else self._gap[rows]
        self._left = [u[rows] for u in self._left]
        self._right = [v[rows] for v in self._right]

    def _learn(self, step: Tensor, change: Tensor) -> None:
        """H <- H + (s - H y) (s' H) / (s' H y)."""
        if len(self._left) >= self.memory:
            self._left, self._right = [], []
        image = self._apply(change)
        row = self._apply_transposed(step)
        pivot = (row * change).sum(-1, keepdim=True)
        floor = torch.finfo(pivot.dtype).eps * row.norm(dim=-1, keepdim=True) * change.norm(dim=-1, keepdim=True)
        # a vanishing pivot carries no information: leave that row's matrix as it is
        update = torch.where(pivot.abs() > floor, (step - image) / pivot, 0.0)
        self._left.append(update)
        self._right.append(row)

    def _apply(self, x: Tensor) -> Tensor:
        return _low_rank(self._left, self._right, x)

    def _apply_transposed(self, x: Tensor) -> Tensor:
        return _low_rank(self._right, self._left, x)


def _low_rank(left: list[Tensor], right: list[Tensor], x: Tensor) -> Tensor:
    """-x + sum_j left_j (right_j . x)."""
    out = -x
    for u, v in zip(left, right, strict=True):
        out = out + u * (v * x).sum(-1, keepdim=True)
    return out
