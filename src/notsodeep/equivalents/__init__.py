"""High-dimensional equivalents: the four numbers, the structured matrix they make, the sphere case."""

from .coefficients import Coefficients, KernelName, coefficients
from .series import power_series, sphere_diagonal

__all__ = ["Coefficients", "KernelName", "coefficients", "power_series", "sphere_diagonal"]
