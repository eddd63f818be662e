"""Gaussian mixtures, their population and sample statistics; ``standardise`` scales real data (scikit-learn's way)."""

from .covariances import Covariance, LowRank
from .mixture import GaussianMixture, GrowthReport
from .statistics import MixtureStatistics

__all__ = [
    "Covariance",
    "GaussianMixture",
    "GrowthReport",
    "LowRank",
    "MixtureStatistics",
]
