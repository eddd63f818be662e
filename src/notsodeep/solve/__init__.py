"""Solving: Cholesky, paths over ridges, conjugate gradients on tiles, leave-one-out (theory, section 16)."""

from .api import DIRECT, Solution, solve_dense, solve_kernel, solve_operator
from .dense import Factor, RidgePath, factorise, leave_one_out, ridge_path
from .iterative import leave_rows_out
from .network import FeatureSums, NetworkKernel, Source, features_of
from .operator import Eigenpairs, KernelFunction, KernelOperator, top_eigenpairs
from .pivoted import PivotedFactor, nystrom, pivoted_cholesky
from .preconditioners import NAMES, Preconditioner, PreconditionerName, precondition
from .tiles import KernelTiles, Store, triangle_bytes

__all__ = [
    "DIRECT",
    "NAMES",
    "Eigenpairs",
    "Factor",
    "FeatureSums",
    "KernelFunction",
    "KernelOperator",
    "KernelTiles",
    "NetworkKernel",
    "PivotedFactor",
    "Preconditioner",
    "PreconditionerName",
    "RidgePath",
    "Solution",
    "Source",
    "Store",
    "factorise",
    "features_of",
    "leave_one_out",
    "leave_rows_out",
    "nystrom",
    "pivoted_cholesky",
    "precondition",
    "ridge_path",
    "solve_dense",
    "solve_kernel",
    "solve_operator",
    "top_eigenpairs",
    "triangle_bytes",
]
