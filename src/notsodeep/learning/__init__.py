"""Learning, predicted before training: accuracy, error and scores on Gaussian mixtures; estimates for real data."""

from .predict import LearningPrediction, predict_learning

__all__ = ["LearningPrediction", "predict_learning"]
