"""High-dimensional equivalents: the four numbers, the structured matrix they make, the sphere case."""

from .coefficients import Coefficients, KernelName, coefficients

__all__ = ["Coefficients", "KernelName", "coefficients"]
