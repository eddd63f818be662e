"""Gaussian mixtures, their statistics, and the standardisation of real data."""

from .mixture import Covariance, GaussianMixture
from .statistics import MixtureStatistics

__all__ = ["Covariance", "GaussianMixture", "MixtureStatistics"]
