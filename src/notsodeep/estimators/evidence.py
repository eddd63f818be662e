"""The log marginal likelihood of a Gaussian process, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..solve import factorise

__all__ = ["Evidence", "evidence"]


@dataclass(frozen=True)
class Evidence:
    """log p(y), and its derivatives by the logarithms of what was asked for."""

    value: float
    gradient: tuple[float, ...]


def evidence(
    K: Tensor,
    Y: Tensor,
    amplitude: float,
    noise: float,
    names: Sequence[str] = (),
    slopes: Mapping[str, Tensor] | None = None,
) -> Evidence:
    """-1/2 sum_j y_j' C^(-1) y_j - k/2 log det C - n k/2 log(2 pi), C = amplitude K + noise I.

    d/dv = 1/2 <S, dC/dv> with S = sum_j a_j a_j' - k C^(-1), a_j = C^(-1) y_j; ``slopes[name]`` is dK / d log v.
    All derivatives are by logarithms.
    """
    n, k = Y.shape
    factor = factorise(amplitude * K, noise)
    a = factor.solve(Y)
    value = -0.5 * float((Y * a).sum()) - 0.5 * k * factor.logdet - 0.5 * n * k * math.log(2.0 * math.pi)
    if not names:
        return Evidence(value, ())
    S = a @ a.T - k * factor.inverse()

    def along(name: str) -> float:
        if name == "noise":
            return 0.5 * noise * float(S.diagonal().sum())
        return 0.5 * amplitude * float((S * ({"amplitude": K} | dict(slopes or {}))[name]).sum())

    return Evidence(value, tuple(along(name) for name in names))
