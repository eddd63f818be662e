"""Networks as expressions: nodes, and the specifications that build them."""

from .._words import Kernel as Kernel
from .._words import Readout as Readout
from .base import (
    KERNELS,
    Dense,
    Specification,
    check_kernel,
    check_kernels,
    check_tau0,
    check_unbiased,
    network_from_dict,
)
from .dense import DEQ, ENN
from .images import ConvDEQ, ConvENN
from .nodes import is_tangent

Convolutional = ConvDEQ | ConvENN
Network = DEQ | ENN

__all__ = [
    "DEQ",
    "ENN",
    "KERNELS",
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
