"""Learning, predicted before training: accuracy, error and scores on Gaussian mixtures; estimates for real data."""

from ..spectra.products import Concentration
from .estimate import LearningEstimate, estimate_learning
from .predict import LearningCurve, LearningPrediction, learning_curve, predict_learning

__all__ = [
    "Concentration",
    "LearningCurve",
    "LearningEstimate",
    "LearningPrediction",
    "estimate_learning",
    "learning_curve",
    "predict_learning",
]
