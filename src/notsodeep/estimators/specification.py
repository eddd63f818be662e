"""From flat parameters to a network and its kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..errors import InvalidInputError
from ..matching import Twin
from ..networks import DEQ, ENN, Kernel
from ..solve import NetworkKernel, Source

__all__ = ["VARIANCES", "deq_of", "network_of", "slope_of"]

VARIANCES = ("sigma_a2", "sigma_b2", "sigma_c2")
_STEP = 5e-3  # of differences, in the logarithm of a variance


def network_of(estimator: Any) -> Source:
    """The network of an estimator: ``network`` if it has one, else the DEQ of its flat parameters."""
    network = estimator.network
    if network is None:
        deq = deq_of(estimator.activation, {name: getattr(estimator, name) for name in VARIANCES})
        deq.check_contraction()
        return deq
    if not isinstance(network, DEQ | ENN | Twin):
        raise InvalidInputError(f"network must be a DEQ, an ENN or a twin, got {type(network).__name__}")
    return network


def deq_of(activation: Any, values: Mapping[str, float | None]) -> DEQ:
    """The DEQ of these variances; those that are left out are zero, sigma_b2 is tied to sigma_a2."""
    return DEQ(activation, values.get("sigma_a2") or 0.0, values.get("sigma_b2"), values.get("sigma_c2") or 0.0)


def slope_of(activation: Any, kernel: Kernel, values: Mapping[str, Any], name: str, X: Tensor) -> Tensor:
    """dK / d log(variance) on the rows of X: a central difference of fourth order between exact kernels.

    Good to about 1e-10 of the kernel, and some twenty times quicker than the gradient of every entry.
    """

    def at(steps: int) -> Tensor:
        moved = {**values, name: values[name] * math.exp(steps * _STEP)}
        return NetworkKernel(deq_of(activation, moved), kernel, check=False)(X)

    return (8.0 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12.0 * _STEP)
