"""What can be matched, what a twin trains, and for which norms."""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

import numpy as np

from .._arguments import checked, shown
from .._arrays import as_floats, as_rows, squared_norms
from .._words import Kernel
from .._words import MatchKernel as MatchKernel
from ..errors import InvalidInputError

Trains = Literal["all", "readout"]


def kernel_names(kernel: Any) -> tuple[Kernel, ...]:
    """The kernels that a request speaks of: ``"both"`` means the CK and the NTK of all weights."""
    allowed = get_args(MatchKernel)
    if not isinstance(kernel, str) or kernel not in allowed:
        raise InvalidInputError(f"kernel must be one of {sorted(allowed)}, got {kernel!r}")
    return ("ck", "ntk") if kernel == "both" else (cast(Kernel, kernel),)


# ---- ranges of norms ---------------------------------------------------------------------------------------


DEFAULT_NORMS = (0.5, 1.5)


def check_range(norms: Any) -> tuple[float, float]:
    """(low, high) with 0 <= low <= high; the default range for ``None``."""
    if norms is None:
        return DEFAULT_NORMS
    pair = as_floats(norms, "norms")
    if len(pair) != 2:
        raise InvalidInputError(f"norms must be a pair (low, high) as norm_range(X) makes one, got {shown(norms)}")
    low, high = pair
    if not (0.0 <= low <= high and high > 0.0):
        raise InvalidInputError(f"norms must satisfy 0 <= low <= high, high positive and finite, got {shown(norms)}")
    return low, high


@checked
def norm_range(X: Any, coverage: float = 1.0) -> tuple[float, float]:
    """The range that holds the given share of the row norms of X, for ``match_one_layer(..., norms=...)``.

    >>> norm_range([[3.0, 4.0], [0.0, 1.0]])
    (1.0, 5.0)
    """
    norms = squared_norms(as_rows(X)).sqrt().cpu().numpy()
    if not 0.0 < coverage <= 1.0:
        raise InvalidInputError(f"coverage must lie in (0, 1], got {coverage!r}")
    tail = 0.5 * (1.0 - coverage)
    low, high = np.quantile(norms, [tail, 1.0 - tail])
    if not high > 0:
        raise InvalidInputError("all rows of X are zero; there is no range of norms to speak of")
    return float(low), float(high)
