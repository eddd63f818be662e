"""A head start in bfloat16, where the processor multiplies it faster than float32.

The first steps of an iteration need few digits. A few of them in half the bits bring the iterate to the rounding error
of bfloat16, about 1e-3; the float32 iteration goes on from there and alone decides when the tolerance is met.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["rough_linear", "rough_nonlinear"]

_STEPS = 6  # random weights contract by about 1/3 a step: as far as bfloat16 can see
_SMALLEST = 256  # width and rows * width / 32 below which the conversions cost more than they save


@functools.cache
def quick_bfloat16() -> bool:
    """Whether this processor has instructions for products of bfloat16."""
    try:
        known = torch.cpu.get_capabilities()
    except AttributeError:  # torch below 2.11
        return False
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def rough_nonlinear(
    drive: Tensor, recurrent: Tensor, gain: float, phi: Callable[[Tensor], Tensor], start: Tensor
) -> Tensor:
    """A few rough steps of u <- phi(drive + gain u A') from ``start``, or ``start`` itself where they do not pay."""
    if not _pays(start):
        return start
    matrix = recurrent.mT.to(torch.bfloat16)
    for _ in range(_STEPS):
        start = phi(torch.add(drive, start.to(torch.bfloat16) @ matrix, alpha=gain))
    return start


def rough_linear(matrix: Tensor, slope: Tensor, source: Tensor, gain: float) -> Tensor:
    """A few rough steps of h <- source + slope * (gain h M) from ``source``, or ``source`` where they do not pay."""
    if not _pays(source):
        return source
    rough, start = matrix.to(torch.bfloat16), source
    for _ in range(_STEPS):
        start = torch.addcmul(source, slope, (start.to(torch.bfloat16) @ rough).to(source.dtype), value=gain)
    return start


def _pays(rows: Tensor) -> bool:
    large = rows.shape[-1] >= _SMALLEST and rows.numel() >= 32 * _SMALLEST
    return large and rows.device.type == "cpu" and rows.dtype == torch.float32 and quick_bfloat16()
