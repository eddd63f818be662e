"""Units evaluated in place, block by block: every pass over them stays in the processor's cache."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from .elementary import Basis

_GRAIN = 1 << 17  # units per core: what a block needs of them fits its cache, and calls are few
_MOST_CORES = 8
_space = threading.local()


def eager(before: Tensor, inputs: Tensor) -> bool:
    """Whether numbers are wanted, or derivatives in the weights alone: no graph, no transform, no mixture of types."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if inputs.requires_grad or inputs.dtype != before.dtype or before.dtype not in (torch.float32, torch.float64):
        return False
    return _has_memory(before) and _has_memory(inputs) and forward_ad.unpack_dual(before).tangent is None


def _has_memory(x: Tensor) -> bool:
    """Not so the tensors that torch.func and tracers work with."""
    try:
        return x.data_ptr() != 0
    except RuntimeError:
        return False


Fill = Callable[[Tensor, Tensor, Tensor | None], None]
Definition = Callable[[Tensor], Tensor]


def needs_slopes(before: Tensor) -> bool:
    """Whether derivatives in ``before`` will be asked for."""
    return torch.is_grad_enabled() and before.requires_grad


def evaluated(before: Tensor, fill: Fill, definition: Definition, overwrite: bool = False) -> Tensor:
    """``definition(before)`` by ``fill(before, out, slopes)``; slopes are derivatives in ``before``, if wanted."""
    if needs_slopes(before):
        return _Evaluated.apply(before, fill, definition)
    out = before if overwrite and before.is_contiguous() else _empty(before)
    fill(before, out, None)
    return out


def _empty(like: Tensor) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)


class _Evaluated(Function):
    """before -> units; their slopes are computed along with them."""

    @staticmethod
    def forward(ctx: Any, before: Tensor, fill: Fill, definition: Definition) -> Tensor:
        out, slopes = _empty(before), _empty(before)
        fill(before, out, slopes)
        ctx.definition = definition
        ctx.save_for_backward(before, slopes)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        before, slopes = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return gradients[0] * slopes, None, None
        values = ctx.definition(before)  # derivatives of this one are wanted
        return torch.autograd.grad(values, before, gradients[0], create_graph=True)[0], None, None


def passes(basis: Basis, before: Tensor, scale: Tensor, rows: Tensor, out: Tensor, slopes: Tensor | None) -> None:
    """``basis.grouped(scale * before, rows)``: before (..., units), scale (...), rows (..., groups, size)."""
    factor, flat = scale.unsqueeze(-1), (-1, before.shape[-1])
    torch.mul(before, factor, out=out)
    _evaluate_(basis, out.view(flat), rows.reshape(-1, *rows.shape[-2:]), None if slopes is None else slopes.view(flat))
    if slopes is not None:
        slopes.mul_(factor)


def _evaluate_(basis: Basis, u: Tensor, rows: Tensor, slopes: Tensor | None) -> None:
    """Rows of u (n, units), block by block, all groups at once where they are of one size."""
    groups, width = rows.shape[1], u.shape[1]
    if width % groups:
        parts = zip(u.tensor_split(groups, 1), _split(slopes, groups), rows.split(1, 1), strict=True)
        for part, slope, own in parts:
            _evaluate_(basis, part, own, slope)
        return
    shape = (groups, width // groups)
    u = u.unflatten(1, shape)
    slopes = None if slopes is None else slopes.unflatten(1, shape)
    count, step = basis.buffers(slopes is not None), len(u)
    if u.device.type == "cpu":
        step = max(1, _GRAIN * min(torch.get_num_threads(), _MOST_CORES) // max(width, 1))
    if step >= len(u):
        basis.evaluate_(u, rows, _free(count, u), slopes)
        return
    for start in range(0, len(u), step):
        place = slice(start, start + step)
        part = u[place]
        basis.evaluate_(part, rows[place], _free(count, part), None if slopes is None else slopes[place])


def _split(slopes: Tensor | None, groups: int) -> Any:
    return [None] * groups if slopes is None else slopes.tensor_split(groups, 1)


def _free(count: int, like: Tensor) -> list[Tensor]:
    """So many tensors of the shape of ``like``; on the CPU they are those of the last call."""
    if like.device.type != "cpu":
        return list(torch.empty((count, *like.shape), dtype=like.dtype, device=like.device).unbind(0))
    key = (count, like.shape, like.dtype)
    if getattr(_space, "key", None) != key:
        with torch.inference_mode(False):
            _space.key, _space.free = key, [torch.empty(like.shape, dtype=like.dtype) for _ in range(count)]
    return _space.free
