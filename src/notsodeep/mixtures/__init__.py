"""Gaussian mixtures, their statistics, and the standardisation of real data."""

from .covariances import Covariance
from .mixture import GaussianMixture
from .statistics import MixtureStatistics

__all__ = ["Covariance", "GaussianMixture", "MixtureStatistics"]
