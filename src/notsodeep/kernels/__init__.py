"""Exact infinite-width kernels of implicit and explicit networks, and their finite-width counterparts."""

from .finite import finite_ck, finite_ntk
from .matrix import TabulatedKernel, ck, kernel_function, kernels_of, ntk
from .pointwise import diagonal, pairwise
from .series import power_series, sphere_diagonal

__all__ = [
    "TabulatedKernel",
    "ck",
    "diagonal",
    "finite_ck",
    "finite_ntk",
    "kernel_function",
    "kernels_of",
    "ntk",
    "pairwise",
    "power_series",
    "sphere_diagonal",
]
