"""High-dimensional equivalents: the four numbers, the structured matrix they make, the sphere case."""

from .distance import best_scalar, relative_spectral_error, spectral_norm
from .four_numbers import Coefficients, coefficients
from .operator import EquivalentKernel, equivalent, sphere_equivalent

__all__ = [
    "Coefficients",
    "EquivalentKernel",
    "best_scalar",
    "coefficients",
    "equivalent",
    "relative_spectral_error",
    "spectral_norm",
    "sphere_equivalent",
]
