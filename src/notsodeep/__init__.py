"""notsodeep: deep equilibrium models, and the shallow explicit networks with the same kernels."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:  # the same names, for type checkers and editors; a test holds the two lists together
    from . import activations as activations
    from . import datasets as datasets
    from . import distributed as distributed
    from . import errors as errors
    from . import estimators as estimators
    from . import experiments as experiments
    from . import matching as matching
    from . import nn as nn
    from . import plots as plots
    from . import solve as solve
    from ._caches import clear_caches as clear_caches
    from .activations import Activation as Activation
    from .activations import activation as activation
    from .activations import activation_names as activation_names
    from .codegen import pytorch_code as pytorch_code
    from .equivalents import Coefficients as Coefficients
    from .equivalents import coefficients as coefficients
    from .equivalents import equivalent as equivalent
    from .equivalents import relative_spectral_error as relative_spectral_error
    from .equivalents import sphere_equivalent as sphere_equivalent
    from .equivalents import universality as universality
    from .estimators import DEQClassifier as DEQClassifier
    from .estimators import DEQFeatures as DEQFeatures
    from .estimators import DEQGaussianProcess as DEQGaussianProcess
    from .estimators import DEQKernel as DEQKernel
    from .estimators import DEQRegressor as DEQRegressor
    from .gaussian import Moments as Moments
    from .gaussian import expectation as expectation
    from .gaussian import hermite_coefficients as hermite_coefficients
    from .gaussian import moments as moments
    from .kernels import TabulatedKernel as TabulatedKernel
    from .kernels import ck as ck
    from .kernels import finite_ck as finite_ck
    from .kernels import finite_ntk as finite_ntk
    from .kernels import kernel_function as kernel_function
    from .kernels import kernels_of as kernels_of
    from .kernels import ntk as ntk
    from .learning import LearningCurve as LearningCurve
    from .learning import LearningEstimate as LearningEstimate
    from .learning import LearningPrediction as LearningPrediction
    from .learning import estimate_learning as estimate_learning
    from .learning import learning_curve as learning_curve
    from .learning import predict_learning as predict_learning
    from .matching import Twin as Twin
    from .matching import match_one_layer as match_one_layer
    from .matching import match_sphere as match_sphere
    from .matching import match_uniform as match_uniform
    from .matching import norm_range as norm_range
    from .matching.match import match as match
    from .mixtures import GaussianMixture as GaussianMixture
    from .mixtures import MixtureStatistics as MixtureStatistics
    from .mixtures.standardise import Standardiser as Standardiser
    from .mixtures.standardise import standardise as standardise
    from .networks import DEQ as DEQ
    from .networks import ENN as ENN
    from .networks import network_from_dict as network_from_dict
    from .nn import distil as distil
    from .nn import fit as fit
    from .nn import twin_of as twin_of
    from .nn.compare import compare as compare
    from .plots import ErrorDisplay as ErrorDisplay
    from .plots import KernelDisplay as KernelDisplay
    from .plots import LearningDisplay as LearningDisplay
    from .plots import SpectrumDisplay as SpectrumDisplay
    from .plots import TwinDisplay as TwinDisplay
    from .spectra import spectral_law as spectral_law

# public name -> the room that holds it; rooms are imported on first use, so that `import notsodeep` stays light
_ROOMS = {
    "_caches": ["clear_caches"],
    "activations": ["Activation", "activation", "activation_names"],
    "gaussian": ["Moments", "expectation", "hermite_coefficients", "moments"],
    "networks": ["DEQ", "ENN", "network_from_dict"],
    "mixtures": ["GaussianMixture", "MixtureStatistics"],
    "mixtures.standardise": ["Standardiser", "standardise"],
    "kernels": ["TabulatedKernel", "ck", "finite_ck", "finite_ntk", "kernel_function", "kernels_of", "ntk"],
    "equivalents": [
        "Coefficients",
        "coefficients",
        "equivalent",
        "relative_spectral_error",
        "sphere_equivalent",
        "universality",
    ],
    "spectra": ["spectral_law"],
    "matching": ["Twin", "match", "match_one_layer", "match_sphere", "match_uniform", "norm_range"],
    "codegen": ["pytorch_code"],
    "learning": [
        "LearningCurve",
        "LearningEstimate",
        "LearningPrediction",
        "estimate_learning",
        "learning_curve",
        "predict_learning",
    ],
    "nn": ["compare", "distil", "fit", "twin_of"],
    "plots": ["ErrorDisplay", "KernelDisplay", "LearningDisplay", "SpectrumDisplay", "TwinDisplay"],
    "estimators": ["DEQClassifier", "DEQFeatures", "DEQGaussianProcess", "DEQKernel", "DEQRegressor"],
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}
_MODULES = {
    "activations",
    "datasets",
    "distributed",
    "errors",
    "estimators",
    "experiments",
    "matching",
    "nn",
    "plots",
    "solve",
}

__all__ = sorted([*_HOME, *_MODULES, "__version__"])


if not TYPE_CHECKING:  # to a type checker a misspelt name is an error, not Any

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        elif name in _MODULES:
            value = importlib.import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
