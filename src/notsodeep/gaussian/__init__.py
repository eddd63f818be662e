"""One-dimensional Gaussian expectations, exact to rounding also at kinks: moments and Hermite coefficients."""

from .integrals import Moments, moments
from .rule import coefficients_at, function_coefficients, hermite_coefficients, means, normal_density, portions

__all__ = [
    "Moments",
    "coefficients_at",
    "function_coefficients",
    "hermite_coefficients",
    "means",
    "moments",
    "normal_density",
    "portions",
]
