"""Elementwise activations with their calculus: values, slopes, kinks, Lipschitz constants, symmetries, closed forms.

All files of this folder are read. Every class with a name is found by that name; elementwise ones are exported, too.
"""

import importlib
import pkgutil
from dataclasses import fields

from .affine import Affine as Affine
from .base import Activation as Activation
from .base import ActivationLike as ActivationLike
from .base import Parity as Parity
from .base import activation as activation
from .base import activation_classes as activation_classes
from .base import activation_names as activation_names
from .callables import CallableActivation as CallableActivation
from .piecewise import HardTanh as HardTanh
from .piecewise import LeakyReLU as LeakyReLU
from .piecewise import Linear as Linear
from .polynomial import Hermite as Hermite
from .polynomial import Quadratic as Quadratic
from .smooth import Tanh as Tanh

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f".{_file.name}", __name__)  # a class registers itself

_CLASSES = {cls.__name__: cls for cls in activation_classes()}
globals().update(_CLASSES)  # a new class needs no import above, which serves type checkers alone

_WITH_PARAMETERS = [name for name, cls in _CLASSES.items() if fields(cls)]  # the others are known by their names
__all__ = sorted(["Activation", "activation", "activation_names", *_WITH_PARAMETERS])
