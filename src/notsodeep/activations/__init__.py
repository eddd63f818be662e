"""Elementwise activations with their calculus: values, slopes, kinks, Lipschitz constants, symmetries, closed forms."""

from .affine import Affine
from .base import Activation, ActivationLike, Parity, activation, activation_classes, activation_names
from .callables import CallableActivation
from .conditioned import Conditioned
from .elementary import Basis
from .piecewise import HardSwish, HardTanh, LeakyReLU, Linear, PiecewiseLinear, ReLU
from .polynomial import Hermite, Quadratic
from .smooth import ELU, GELU, SELU, Arctan, Cos, Erf, Mish, Sigmoid, SiLU, Sin, Softplus, Tanh
from .thresholds import Thresholds
from .turned import Turned

__all__ = [
    "ELU",
    "GELU",
    "SELU",
    "Activation",
    "ActivationLike",
    "Affine",
    "Arctan",
    "Basis",
    "CallableActivation",
    "Conditioned",
    "Cos",
    "Erf",
    "HardSwish",
    "HardTanh",
    "Hermite",
    "LeakyReLU",
    "Linear",
    "Mish",
    "Parity",
    "PiecewiseLinear",
    "Quadratic",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Sin",
    "Softplus",
    "Tanh",
    "Thresholds",
    "Turned",
    "activation",
    "activation_classes",
    "activation_names",
]
