"""High-dimensional equivalents: the four numbers, the structured matrix they make, the sphere case."""

from .coefficients import Coefficients, coefficients
from .distance import best_scalar, relative_spectral_error, spectral_norm
from .operator import CrossBlock, EquivalentKernel, equivalent, sphere_equivalent
from .universality import TermReport, UniversalityReport, gaussian_like, universality

__all__ = [
    "Coefficients",
    "CrossBlock",
    "EquivalentKernel",
    "TermReport",
    "UniversalityReport",
    "best_scalar",
    "coefficients",
    "equivalent",
    "gaussian_like",
    "relative_spectral_error",
    "spectral_norm",
    "sphere_equivalent",
    "universality",
]
