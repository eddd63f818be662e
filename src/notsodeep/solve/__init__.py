"""Kernel ridge regression: Cholesky, paths over ridges, preconditioned conjugate gradients (theory, section 16)."""

from .dense import RidgePath, Solution, factorise, leave_one_out, ridge_path, solve_dense
from .iterative import CG, solve_kernel, solve_operator
from .network import NetworkKernel
from .operators import KernelTiles

__all__ = [
    "CG",
    "KernelTiles",
    "NetworkKernel",
    "RidgePath",
    "Solution",
    "factorise",
    "leave_one_out",
    "ridge_path",
    "solve_dense",
    "solve_kernel",
    "solve_operator",
]
