"""Learning, predicted before training: accuracy, error and scores on Gaussian mixtures; estimates for real data."""

from .curve import Best, LearningCurve, learning_curve
from .estimate import HeldOut, LearningEstimate, estimate_learning
from .features import Concentration
from .predict import LearningPrediction, predict_learning

__all__ = [
    "Best",
    "Concentration",
    "HeldOut",
    "LearningCurve",
    "LearningEstimate",
    "LearningPrediction",
    "estimate_learning",
    "learning_curve",
    "predict_learning",
]
