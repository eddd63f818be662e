"""Units that see the norm of their input by a compiled loop on the CPU: ``units.cpp``."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._native import Loops
from .norm_units import How

if TYPE_CHECKING:
    from .conditioned import Conditioned

loops = Loops(
    Path(__file__).with_name("units.cpp"),
    *[ctypes.c_void_p] * 6,
    *[ctypes.c_long] * 3,
    *[ctypes.c_double] * 2,
    ctypes.c_long,
)
_LANES = 8
_LEAST = 1 << 13  # units that are worth a second thread


class Plan(ctypes.Structure):
    """What the loop has to know of a layer, as ``units.cpp`` reads it."""

    _fields_ = (
        ("table", ctypes.c_void_p),
        *((name, ctypes.c_double) for name in ("square", "low", "high", "centre", "half", "leak")),
        *((name, ctypes.c_int) for name in ("groups", "orders")),
        ("sizes", ctypes.c_int * 4),
        *((name, ctypes.c_int) for name in ("order", "chebyshev", "logarithmic", "power")),
    )

    @classmethod
    def of(cls, phi: Conditioned) -> Plan:
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
    plan: Plan,
    how: How,
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
        how.scale,
        how.gain,
        min(torch.get_num_threads(), 1 + before.numel() // _LEAST),
    )
