"""Exact infinite-width kernels of implicit and explicit networks, and their finite-width counterparts."""

from .equations import diagonal, pairwise
from .exact import ck, kernels_of, ntk
from .finite import finite_ck, finite_ntk

__all__ = ["ck", "diagonal", "finite_ck", "finite_ntk", "kernels_of", "ntk", "pairwise"]
