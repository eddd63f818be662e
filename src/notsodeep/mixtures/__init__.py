"""Gaussian mixtures, their population and sample statistics, and the scaling of real data."""

from .covariances import Covariance, LowRank
from .mixture import GaussianMixture, GrowthReport
from .standardise import Standardiser, standardise
from .statistics import MixtureStatistics

__all__ = [
    "Covariance",
    "GaussianMixture",
    "GrowthReport",
    "LowRank",
    "MixtureStatistics",
    "Standardiser",
    "standardise",
]
