"""High-dimensional equivalents: the four numbers, and the structured matrix they make."""

from .distance import best_scalar, relative_spectral_error, spectral_norm
from .four_numbers import Coefficients, coefficients
from .operator import EquivalentKernel, equivalent

__all__ = [
    "Coefficients",
    "EquivalentKernel",
    "best_scalar",
    "coefficients",
    "equivalent",
    "relative_spectral_error",
    "spectral_norm",
]
