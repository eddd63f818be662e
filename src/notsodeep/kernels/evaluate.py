"""Chebyshev series of the angle on tiles: the same sum eagerly, compiled, and for single entries.

A tile is sum_m T_m(x) left_m right_m'; odd and even kernels hold every second order and recur in T_2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from .lookup import Level

__all__ = ["at_entries", "fused_tile", "fused_tile_scalar", "tile", "tile_scalar"]


def tile(level: Level, left: Tensor, right: Tensor, r: Tensor) -> Tensor:
    """The kernel at cosines ``r`` (a, b), left (a, rank) and right (rank, b) the norm factors."""
    ranks = level.series.ranks
    parts = list(zip(left.split(ranks, dim=1), right.split(ranks), strict=True))
    x2, y2 = _variables(level, r)
    b2, b1 = torch.zeros_like(y2), torch.mm(*parts[-1])
    for m in range(len(parts) - 2, -1, -1):
        # b_m = c_m + 2 y b_(m+1) - b_(m+2)
        b2.addmm_(*parts[m], beta=-1.0).addcmul_(y2, b1, value=_last(level, m))
        b1, b2 = b2, b1
    return _closing(level, x2, b1, b2)


def tile_scalar(level: Level, r: Tensor) -> Tensor:
    """The same where the norms do not matter."""
    c = torch.tensor(level.series.scalars(), dtype=torch.float64).to(r.dtype).tolist()  # infinite where it overflows
    x2, y2 = _variables(level, r)
    b2, b1 = torch.zeros_like(y2), torch.full_like(y2, c[-1])
    for m in range(len(c) - 2, -1, -1):
        b2.neg_().add_(c[m]).addcmul_(y2, b1, value=_last(level, m))
        b1, b2 = b2, b1
    return _closing(level, x2, b1, b2)


def at_entries(level: Level, left: Tensor, right: Tensor, x: Tensor) -> Tensor:
    """The kernel at single entries, given the angle variable in [-1, 1] itself; left and right are (entries, rank)."""
    parts = [part.sum(1) for part in (left * right).split(level.series.ranks, dim=1)]
    x2 = 2.0 * x
    y2 = x2 if level.parity is None else x2 * x2 - 2.0
    b2, b1 = torch.zeros_like(x), parts[-1].clone()
    for m in range(len(parts) - 2, -1, -1):
        b2 = parts[m] - b2 + _last(level, m) * y2 * b1
        b1, b2 = b2, b1
    return _closing(level, x2, b1, b2)


def _variables(level: Level, r: Tensor) -> tuple[Tensor, Tensor]:
    """Twice the angle variable, and twice what the recurrence runs in; overwrites ``r``."""
    x2 = (r.asin_() if level.warped else r).mul_(level.scale())
    return x2, x2 if level.parity is None else torch.addcmul(
        torch.full((), -2.0, dtype=r.dtype, device=r.device), x2, x2
    )


def _last(level: Level, m: int) -> float:
    """The weight of y b_1: the sum is c_0 + y b_1 - b_2, but for odd orders."""
    return 1.0 if m or level.parity == "odd" else 0.5


def _closing(level: Level, x2: Tensor, b0: Tensor, b1: Tensor) -> Tensor:
    # T_(2m+1)(x) = x W_m with W_1 = 2 T_2 - 1, so that the sum is x (b_0 - b_1)
    return b0.sub_(b1).mul_(x2).mul_(0.5) if level.parity == "odd" else b0


# ---- compiled --------------------------------------------------------------------------------------------


def _unrolled(
    ranks: tuple[int, ...], parity: str | None, warped: bool, left: Tensor, right: Tensor, r: Tensor, scale: Tensor
) -> Tensor:
    x2 = (torch.asin(r) if warped else r) * scale
    y2 = x2 if parity is None else x2 * x2 - 2.0
    b1 = b2 = torch.zeros_like(x2)
    end = sum(ranks)
    for m in range(len(ranks) - 1, -1, -1):
        start = end - ranks[m]
        c = (y2 if m or parity == "odd" else 0.5 * y2) * b1 - b2
        for k in range(start, end):
            c = c + left[:, k, None] * right[k]
        b1, b2, end = c, b1, start
    return 0.5 * x2 * (b1 - b2) if parity == "odd" else b1


def _unrolled_scalar(parity: str | None, warped: bool, c: Tensor, r: Tensor, scale: Tensor) -> Tensor:
    x2 = (torch.asin(r) if warped else r) * scale
    y2 = x2 if parity is None else x2 * x2 - 2.0
    b1 = b2 = torch.zeros_like(x2)
    for m in range(len(c) - 1, -1, -1):
        b1, b2 = c[m] + (y2 if m or parity == "odd" else 0.5 * y2) * b1 - b2, b1
    return 0.5 * x2 * (b1 - b2) if parity == "odd" else b1


@functools.cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function, dynamic=True)


def fused_tile(level: Level, left: Tensor, right: Tensor, r: Tensor) -> Tensor:
    """:func:`tile` as one compiled loop: no intermediate tile is written."""
    scale = torch.tensor(level.scale(), dtype=r.dtype, device=r.device)
    return _compiled(_unrolled)(level.series.ranks, level.parity, level.warped, left, right, r, scale)


def fused_tile_scalar(level: Level, r: Tensor) -> Tensor:
    """:func:`tile_scalar` as one compiled loop."""
    c, scale = (torch.tensor(v, dtype=r.dtype, device=r.device) for v in (level.series.scalars(), level.scale()))
    return _compiled(_unrolled_scalar)(level.parity, level.warped, c, r, scale)
