"""One place for tolerances: they follow from the dtype or from the number of samples, never from the outcome."""

from __future__ import annotations

import math

import numpy as np
import torch


def tolerance(dtype: torch.dtype | np.dtype | type = torch.float64, samples: int | None = None) -> float:
    """How far a result may be from the truth, relative to its natural scale.

    Without ``samples``: rounding, a few thousand units in the last place of ``dtype`` (2e-12 in float64, 1e-3 in
    float32). With ``samples``: five standard errors of a mean of that many terms of unit variance.
    """
    eps = torch.finfo(dtype).eps if isinstance(dtype, torch.dtype) else float(np.finfo(dtype).eps)
    rounding = 8192.0 * eps
    return rounding if samples is None else rounding + 5.0 / math.sqrt(samples)
