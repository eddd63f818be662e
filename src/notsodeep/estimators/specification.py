"""From flat parameters to a network and its kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..errors import InvalidInputError
from ..kernels import VARIANCES, DEQSlope, kernels_of
from ..matching import Twin
from ..networks import DEQ, ENN, Kernel
from ..solve import Source

__all__ = ["VARIANCES", "deq_of", "network_of", "slopes_of"]


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


def slopes_of(activation: Any, kernel: Kernel, values: Mapping[str, Any], X: Tensor) -> dict[str, Tensor]:
    """dK / d log(variance) on the rows of X, exactly, for all variances that may move.

    sigma_b2 moves with sigma_a2 where it is tied to it.
    """
    slope = DEQSlope(deq_of(activation, values), kernel, tied=values.get("sigma_b2") is None)
    found: Mapping[Any, Tensor] = kernels_of(slope, X, kinds=slope.kinds, check=False)
    return {name: values[name] * matrix for name, matrix in found.items()}
