"""Scikit-learn estimators with the kernels of deep equilibrium models; the ridge is relative to the mean diagonal."""

from .kernel import DEQFeatures, DEQKernel
from .process import DEQGaussianProcess
from .ridge import DEQClassifier, DEQRegressor

__all__ = [
    "DEQClassifier",
    "DEQFeatures",
    "DEQGaussianProcess",
    "DEQKernel",
    "DEQRegressor",
]
