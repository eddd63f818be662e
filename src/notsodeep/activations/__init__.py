"""Elementwise activations with their calculus: values, slopes, kinks, Lipschitz constants, symmetries."""

from .base import Activation, ActivationLike, Affine, Parity, activation, activation_names
from .callables import CallableActivation
from .piecewise import HardTanh, LeakyReLU, Linear, PiecewiseLinear, ReLU
from .polynomial import Hermite, Quadratic
from .smooth import ELU, GELU, SELU, Arctan, Cos, Erf, Sigmoid, SiLU, Sin, Softplus, Tanh

__all__ = [
    "ELU",
    "GELU",
    "SELU",
    "Activation",
    "ActivationLike",
    "Affine",
    "Arctan",
    "CallableActivation",
    "Cos",
    "Erf",
    "HardTanh",
    "Hermite",
    "LeakyReLU",
    "Linear",
    "Parity",
    "PiecewiseLinear",
    "Quadratic",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Sin",
    "Softplus",
    "Tanh",
    "activation",
    "activation_names",
]
