"""Exact infinite-width kernels of implicit and explicit networks, and their finite-width counterparts."""

from .convolution import convolutional_diagonal
from .finite import finite_ck, finite_ntk
from .matrix import KernelFunction, ck, kernel_function, kernels_of, ntk
from .pointwise import diagonal, pairwise
from .series import power_series, sphere_diagonal

__all__ = [
    "KernelFunction",
    "ck",
    "convolutional_diagonal",
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
