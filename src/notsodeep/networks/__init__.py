"""Networks as expressions: nodes, and the specifications that build them."""

from .._words import Kernel as Kernel
from .._words import Readout as Readout
from .nodes import is_tangent
from .specifications import (
    DEQ,
    ENN,
    KERNELS,
    SCALES,
    ConvDEQ,
    ConvENN,
    Convolutional,
    Dense,
    Network,
    Specification,
    check_kernel,
    check_kernels,
    check_tau0,
    check_unbiased,
    network_from_dict,
)

__all__ = [
    "DEQ",
    "ENN",
    "KERNELS",
    "SCALES",
    "ConvDEQ",
    "ConvENN",
    "Convolutional",
    "Dense",
    "Network",
    "Specification",
    "check_kernel",
    "check_kernels",
    "check_tau0",
    "check_unbiased",
    "is_tangent",
    "network_from_dict",
]
