"""Solving with kernels: Cholesky, paths over ridges, conjugate gradients on tiles, leave-one-out (theory, 16)."""

from .api import DIRECT, Solution, solve_dense, solve_kernel
from .dense import Factor, factorise, leave_one_out
from .path import RidgePath, ridge_path
from .pivoted import LowRank, nystrom, pivoted_cholesky
from .preconditioners import NAMES, Preconditioner, PreconditionerName, precondition
from .tiles import KernelFunction, KernelTiles, Store, triangle_bytes

__all__ = [
    "DIRECT",
    "NAMES",
    "Factor",
    "KernelFunction",
    "KernelTiles",
    "LowRank",
    "Preconditioner",
    "PreconditionerName",
    "RidgePath",
    "Solution",
    "Store",
    "factorise",
    "leave_one_out",
    "nystrom",
    "pivoted_cholesky",
    "precondition",
    "ridge_path",
    "solve_dense",
    "solve_kernel",
    "triangle_bytes",
]
