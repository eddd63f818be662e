"""One-dimensional Gaussian expectations, exact to rounding also at kinks and jumps.

Everything the theory needs of an activation phi at scale tau is one :class:`Moments` record; everything the
kernels need is a row of Hermite coefficients. Derivatives at kinks enter through their point masses, so
``E[phi'']`` of ReLU is right and no finite difference or division by tau is involved.
"""

from .integrals import Moments, moments, spread
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
    "spread",
]
