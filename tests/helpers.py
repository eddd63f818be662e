"""One place for tolerances: each follows from what limits the comparison, never from its outcome."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

Dtype = torch.dtype | np.dtype | type


def ulps(count: float = 64, dtype: Dtype = torch.float64) -> float:
    """The same few operations in another order: so many units in the last place (the default: 1.4e-14 in float64)."""
    return count * (torch.finfo(dtype).eps if isinstance(dtype, torch.dtype) else float(np.finfo(dtype).eps))


def tolerance(dtype: Dtype = torch.float64, samples: int | None = None, amplified: float = 1.0) -> float:
    """How far a result may be from the truth, relative to its natural scale.

    Without ``samples``: rounding, a few thousand units in the last place of ``dtype`` (2e-12 in float64, 1e-3 in
    float32), ``amplified`` by the condition number of what is computed. With ``samples``: five standard errors of a
    mean of that many terms of unit variance.
    """
    rounding = ulps(8192, dtype) * amplified
    return rounding if samples is None else rounding + 5.0 / math.sqrt(samples)


def printed(decimals: int) -> float:
    """A reference value printed with so many decimals: half a unit of the last one, and rounding."""
    return 0.5 * 10.0**-decimals + tolerance()


def differences(step: float, order: int = 1, accuracy: int = 2) -> float:
    """Central differences of a function of unit scale: truncation step^accuracy and rounding eps / step^order, each
    with a constant of a few units."""
    return 4.0 * (step**accuracy + ulps(4) / step**order)


def solved(tol: float, contraction: float = 0.9) -> float:
    """An iteration that stops when its residual is below ``tol``: a map that contracts so much is that far from its
    fixed point."""
    return tol / (1.0 - contraction)


def sampled(finite, network, X, draws, seed=0, **options):
    """The mean of a kernel of finite width over networks with seeds of their own, and its standard error."""
    each = np.stack([finite(network, X, seed=1000 * seed + draw, **options) for draw in range(draws)])
    return each.mean(0), each.std(0, ddof=1) / math.sqrt(draws)


def interpret_triton(monkeypatch: Any) -> None:
    """Let Triton's interpreter count loops: NumPy 2.4 takes no arrays of one number for it."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
