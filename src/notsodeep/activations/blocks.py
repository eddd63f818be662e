"""Units evaluated in place, block by block: every pass over them stays in the processor's cache."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .elementary import Basis

__all__ = ["eager", "evaluated"]

_GRAIN = 1 << 17  # units per core: what a block needs of them fits its cache, and calls are few
_MOST_CORES = 8
_space = threading.local()


def eager(before: Tensor, inputs: Tensor) -> bool:
    """Whether numbers are wanted, of one type, and no graph of operations."""
    recorded = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return not recorded and before.dtype == inputs.dtype and before.dtype in (torch.float32, torch.float64)


def evaluated(basis: Basis, before: Tensor, scale: Tensor, rows: Tensor) -> Tensor:
    """``basis.grouped(scale * before, rows)``: before (..., units), scale (...), rows (..., groups, size)."""
    width, groups = before.shape[-1], rows.shape[-2]
    slopes = torch.is_grad_enabled() and before.requires_grad
    flat = (before.reshape(-1, width), scale.reshape(-1, 1), rows.reshape(-1, groups, basis.size))
    return _Evaluated.apply(*flat, basis, slopes)[0].reshape(before.shape)


class _Evaluated(Function):
    """(before, scale, rows) -> the units, and their slopes in scale * before where they are wanted."""

    @staticmethod
    def forward(before: Tensor, scale: Tensor, rows: Tensor, basis: Basis, slopes: bool) -> tuple[Tensor, Tensor]:
        out, slope = before * scale, torch.empty_like(before) if slopes else before.new_empty(0)
        _evaluate_(basis, out, rows, slope if slopes else None)
        return out, slope

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        before, scale, rows, ctx.basis, ctx.slopes = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(before, scale, rows, output[1])
        ctx.save_for_forward(before, scale, rows, output[1])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        before, scale, rows, slope = ctx.saved_tensors
        if ctx.slopes and not (torch.is_grad_enabled() or any(ctx.needs_input_grad[1:])):
            return (cotangents[0] * slope).mul_(scale), None, None, None, None
        pull = torch.func.vjp(lambda b, s, r: ctx.basis.grouped(b * s, r), before, scale, rows)[1]
        return (*pull(cotangents[0]), None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, None]:
        before, scale, rows, slope = ctx.saved_tensors
        u = before * scale
        if not ctx.slopes:
            slope = torch.func.vjp(lambda v: ctx.basis.grouped(v, rows), u)[1](torch.ones_like(u))[0]
        change = torch.zeros_like(u)
        change = change if tangents[0] is None else change + slope * scale * tangents[0]
        change = change if tangents[1] is None else change + slope * before * tangents[1]
        return change if tangents[2] is None else change + ctx.basis.grouped(u, tangents[2]), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, Any]]:
        tensors = [
            t.unsqueeze(0).expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip(inputs[:3], in_dims[:3], strict=True)
        ]
        out, slope = _Evaluated.apply(*(t.flatten(0, 1) for t in tensors), *inputs[3:])
        shape = tensors[0].shape
        return (out.reshape(shape), slope.reshape(shape) if inputs[4] else slope), (0, 0 if inputs[4] else None)


def _evaluate_(basis: Basis, u: Tensor, rows: Tensor, slopes: Tensor | None) -> None:
    """Rows of u (n, units), block by block."""
    cores = min(torch.get_num_threads(), _MOST_CORES)
    step = max(1, _GRAIN * cores // max(u.shape[1], 1)) if u.device.type == "cpu" else max(1, len(u))
    count = basis.buffers(slopes is not None)
    for start in range(0, len(u), step):
        place = slice(start, start + step)
        for part, own, group in _groups(u[place], None if slopes is None else slopes[place], rows.shape[1]):
            basis.evaluate_(part, rows[place, group], _free(count, part), own)


def _groups(values: Tensor, slope: Tensor | None, groups: int) -> list[tuple[Tensor, Tensor | None, Any]]:
    """All groups at once where they are of one size, as (rows, groups, units), one after the other where not."""
    if values.shape[1] % groups == 0:
        shape = (groups, values.shape[1] // groups)
        return [(values.unflatten(1, shape), None if slope is None else slope.unflatten(1, shape), slice(None))]
    parts = values.tensor_split(groups, 1)
    slopes = [None] * groups if slope is None else slope.tensor_split(groups, 1)
    return [(part, own, h) for h, (part, own) in enumerate(zip(parts, slopes, strict=True))]


def _free(count: int, like: Tensor) -> list[Tensor]:
    """So many tensors of the shape of ``like``; on the CPU they are those of the last call."""
    size = like.numel()
    if like.device.type != "cpu":
        return list(torch.empty((count, *like.shape), dtype=like.dtype, device=like.device).unbind(0))
    kept: dict[torch.dtype, Tensor] = _space.__dict__.setdefault("kept", {})
    if like.dtype not in kept or kept[like.dtype].numel() < count * size:
        with torch.inference_mode(False):
            kept[like.dtype] = torch.empty(count * size, dtype=like.dtype)
    return [part.view(like.shape) for part in kept[like.dtype][: count * size].split(size)] if size else [like] * count
