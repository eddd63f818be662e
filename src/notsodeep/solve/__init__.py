"""Kernel ridge regression: Cholesky, paths over ridges, preconditioned conjugate gradients (theory, section 16)."""

from .dense import Solution, solve_dense
from .iterative import CG, solve_operator
from .network import NetworkKernel
from .operators import KernelTiles

__all__ = ["CG", "KernelTiles", "NetworkKernel", "Solution", "solve_dense", "solve_operator"]
