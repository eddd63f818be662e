"""Layers whose units see the norm of their input as well as their pre-activation (theory, section 13).

Such a layer is an expression that torch may differentiate, compile and export. Where numbers are all that is wanted it
is evaluated in few passes over memory: in place, block by block, or by the loop in ``units.cpp``.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from .._native import Loops
from ..errors import ActivationError
from .base import Activation, differentiate
from .elementary import Basis, Free

if TYPE_CHECKING:
    from .conditioned import Conditioned

_GRAIN = 1 << 17  # units per core: what a block needs of them fits its cache, and calls are few
_MOST_CORES = 8
_space = threading.local()
loops = Loops(
    Path(__file__).with_name("units.cpp"),
    *[ctypes.c_void_p] * 6,
    *[ctypes.c_long] * 3,
    *[ctypes.c_double] * 2,
    ctypes.c_long,
)
_LANES = 8
_LEAST = 1 << 13  # units that are worth a second thread


@dataclass(frozen=True)
class EvaluationOptions:
    """How a layer is evaluated."""

    scale: float = 1.0
    """Both arguments are still to be times this."""
    gain: float = 1.0
    """The units are times this."""
    compiled: bool = False
    """By loops in C++, on the CPU, where they can be built."""
    overwrite: bool = False
    """``before`` may be overwritten where it is not needed for derivatives."""


PLAIN = EvaluationOptions()


class NormUnits(Activation):
    """Abstract. A layer of units psi_i(w_i.x, |x|), which is no elementwise function."""

    elementwise: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:  # without what was computed and kept
        return (Activation.from_dict, (self.to_dict(),))

    @property
    def slope_range(self) -> tuple[float, float]:
        return (-float("inf"), float("inf"))

    def table(self, like: Tensor, width: int) -> Tensor:
        """The constants of a layer of this width, with the dtype and on the device of ``like``."""
        raise NotImplementedError

    def units(
        self, before: Tensor, inputs: Tensor, table: Tensor | None = None, options: EvaluationOptions = PLAIN
    ) -> Tensor:
        """The layer: ``before`` = W x (..., width), ``inputs`` = x (..., p)."""
        raise NotImplementedError

    def at_norm(self, x: Any, norm: float) -> Any:
        before = torch.as_tensor(x, dtype=torch.float64).unsqueeze(-1)
        return self.units(before, torch.full_like(before, norm)).squeeze(-1).numpy()

    def unit_slopes(self, before: Tensor, inputs: Tensor) -> Tensor:
        return differentiate(lambda b: self.units(b, inputs), before)

    def _value(self, x: Tensor) -> Tensor:
        raise ActivationError(
            f"{type(self).__name__} units see the norm of their input, so they are no function of the pre-activation "
            "alone; use units(W x, x)"
        )


def row_norms(inputs: Tensor) -> Tensor:
    """|x| of the last dimension."""
    return torch.linalg.vector_norm(inputs, dim=-1)


def doubled(x: Tensor) -> Tensor:
    """In double precision, on devices that have it."""
    return x if x.device.type == "mps" else x.double()


# ---- evaluation --------------------------------------------------------------------------------------------


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


# ---- block by block: what a block needs stays in the processor's cache ------------------------------------


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
        steep = repeat(None) if slopes is None else slopes.tensor_split(groups, 1)
        for args in zip(u.tensor_split(groups, 1), rows.split(1, 1), steep, strict=False):
            _evaluate_(basis, *args)
        return
    shape, step = (groups, width // groups), max(1, len(u))
    if u.device.type == "cpu":
        step = max(1, _GRAIN * min(torch.get_num_threads(), _MOST_CORES) // max(width, 1))
    u, slopes = u.unflatten(1, shape), None if slopes is None else slopes.unflatten(1, shape)
    for start in range(0, len(u), step):
        place = slice(start, start + step)  # quicker than split
        part = u[place]
        basis.combine(part, rows[place], _free(part), part, None if slopes is None else slopes[place])


def _free(like: Tensor) -> Free:
    """Tensors of the shape of ``like``, by name; on the CPU they are those of the last call."""
    shape, dtype, device = like.shape, like.dtype, like.device

    def make(name: str) -> Tensor:
        with torch.inference_mode(False):
            return torch.empty(shape, dtype=dtype, device=device)

    if device.type != "cpu":
        return functools.cache(make)
    if getattr(_space, "key", None) != (shape, dtype):
        _space.key, _space.free = (shape, dtype), functools.cache(make)
    return _space.free


# ---- the compiled loop -------------------------------------------------------------------------------------


class LoopPlan(ctypes.Structure):
    """What the loop has to know of a layer, as ``units.cpp`` reads it."""

    _fields_ = (
        ("table", ctypes.c_void_p),
        *((name, ctypes.c_double) for name in ("square", "low", "high", "centre", "half", "leak")),
        *((name, ctypes.c_int) for name in ("groups", "orders")),
        ("sizes", ctypes.c_int * 4),
        *((name, ctypes.c_int) for name in ("order", "chebyshev", "logarithmic", "power")),
    )

    @classmethod
    def of(cls, phi: Conditioned) -> LoopPlan:
        basis, table = phi.basis, phi.table(torch.empty(0, dtype=torch.float64))
        table = torch.nn.functional.pad(table, (0, -table.shape[1] % _LANES)).contiguous()
        centre, half = phi.variable
        ranged = (basis.alpha**2, phi.low, phi.high, centre, half, 0.0)
        sizes = (ctypes.c_int * 4)(*basis.sizes)
        shape = (phi.groups, len(table), sizes, basis.order, basis.chebyshev, phi.logarithmic, phi.power)
        plan = cls(table.data_ptr(), *ranged, *shape)
        plan.kept = table  # the pointer does not keep it
        return plan


def fused_units(
    plan: LoopPlan,
    options: EvaluationOptions,
    before: Tensor,
    inputs: Tensor,
    out: Tensor,
    slopes: Tensor | None,
    thresholds: Tensor | None = None,
) -> None:
    """The units of before (..., width) and inputs (..., features), and their derivatives in ``before``."""
    before, inputs = before.contiguous(), inputs.contiguous()
    width, features = before.shape[-1], inputs.shape[-1]
    loops[before.dtype](
        ctypes.addressof(plan),
        before.data_ptr(),
        inputs.data_ptr(),
        0 if thresholds is None else thresholds.data_ptr(),
        out.data_ptr(),
        0 if slopes is None else slopes.data_ptr(),
        before.numel() // width,
        width,
        features,
        options.scale,
        options.gain,
        min(torch.get_num_threads(), 1 + before.numel() // _LEAST),
    )
