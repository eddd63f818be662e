"""Chebyshev series of the angle on tiles, and for single entries.

A tile is sum_m T_m(x) left_m right_m'; odd and even kernels hold every second order and recur in T_2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .lookup import Level, placed

_DEPTH = 208  # columns in a sum of float32


class Room:
    """Memory for tiles that is used again and again: fresh pages would cost as much as the arithmetic."""

    def __init__(self) -> None:
        self._kept: dict[object, Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of this shape, void; it stays until the same name is asked for again."""
        size, key = math.prod(shape), (name, like.dtype, like.device)
        if key not in self._kept or self._kept[key].numel() < size:
            self._kept[key] = torch.empty(size, dtype=like.dtype, device=like.device)
        return self._kept[key][:size].view(shape)


def products(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    """x y'; in float32 on a GPU, which adds up one by one, in short sums: a long one of 784 is wrong by 1e-6."""
    short = _DEPTH if x.is_cuda and x.dtype == torch.float32 else max(1, x.shape[1])
    torch.mm(x[:, :short], y[:, :short].T, out=out)
    for k in range(short, x.shape[1], short):
        out.addmm_(x[:, k : k + short], y[:, k : k + short].T)
    return out


def tile(level: Level, left: Tensor, right: Tensor, r: Tensor, room: Room) -> Tensor:
    """The kernel at cosines ``r`` (a, b), left (a, rank) and right (rank, b) the norm factors; it lies in the room."""
    ranks = level.series.ranks
    parts = list(zip(left.split(ranks, dim=1), right.split(ranks), strict=True))
    x2, y2, b1, b2 = _prepared(level, r, room)
    torch.mm(*parts[-1], out=b1)
    beta = 0.0
    for m in range(len(parts) - 2, -1, -1):
        # b_m = c_m + 2 y b_(m+1) - b_(m+2)
        b2.addmm_(*parts[m], beta=beta).addcmul_(y2, b1, value=_last(level, m))
        b1, b2, beta = b2, b1, -1.0
    return _closing(level, x2, b1, b2 if beta else None)


def tile_scalar(level: Level, r: Tensor, room: Room) -> Tensor:
    """The same where the norms do not matter."""
    c = torch.tensor(level.series.scalars(), dtype=torch.float64).to(r)  # infinite where it overflows
    x2, y2, b1, b2 = _prepared(level, r, room)
    b1.copy_(c[-1])
    step, before = room("step", r.shape, r), False
    for m in range(len(c) - 2, -1, -1):
        torch.addcmul(c[m], y2, b1, value=_last(level, m), out=step if before else b2)
        if before:
            torch.sub(step, b2, out=b2)
        b1, b2, before = b2, b1, True
    return _closing(level, x2, b1, b2 if before else None)


def at_entries(level: Level, left: Tensor, right: Tensor, x: Tensor) -> Tensor:
    """The kernel at single entries, given the angle variable in [-1, 1] itself; left and right are (rank, entries)."""
    return at_points(level, placed(level.series.sums, left.device) @ (left * right), x)


def at_points(level: Level, parts: Tensor, x: Tensor) -> Tensor:
    """sum_m T_m(x) parts_m, at single points or with the same parts for all."""
    x2 = 2.0 * x
    y2 = x2 if level.parity is None else x2 * x2 - 2.0
    b2, b1 = torch.zeros_like(x), parts[-1].expand_as(x).clone()
    for m in range(len(parts) - 2, -1, -1):
        torch.sub(parts[m], b2, out=b2).addcmul_(y2, b1, value=_last(level, m))
        b1, b2 = b2, b1
    return b1.sub_(b2).mul_(x) if level.parity == "odd" else b1


def _prepared(level: Level, r: Tensor, room: Room) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Twice the angle variable, twice what the recurrence runs in, and room for two terms."""
    x2, b1, b2 = (room(name, r.shape, r) for name in ("x2", "b1", "b2"))
    torch.mul(torch.asin(r, out=x2) if level.warped else r, level.scale(), out=x2)
    if level.parity is None:
        return x2, x2, b1, b2
    return x2, torch.mul(x2, x2, out=room("y2", r.shape, r)).sub_(2.0), b1, b2


def _last(level: Level, m: int) -> float:
    """The weight of y b_1: the sum is c_0 + y b_1 - b_2, but for odd orders."""
    return 1.0 if m or level.parity == "odd" else 0.5


def _closing(level: Level, x2: Tensor, b0: Tensor, b1: Tensor | None) -> Tensor:
    # T_(2m+1)(x) = x W_m with W_1 = 2 T_2 - 1, so that the sum is x (b_0 - b_1)
    if level.parity != "odd":
        return b0
    return (b0 if b1 is None else b0.sub_(b1)).mul_(x2).mul_(0.5)
