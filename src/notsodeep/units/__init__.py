"""Units of a layer that see more of their input than their pre-activation: the hidden layers of twins.

All files of this folder are read, so that :func:`activation` and stored networks know every class by its name.
"""

import importlib
import pkgutil

from ..activations import activation
from .conditioned import Conditioned
from .elementary import Basis
from .feedback import Feedback
from .norm_units import NormUnits, outside, row_norms
from .thresholds import Thresholds

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f".{_file.name}", __name__)  # a class registers itself

__all__ = ["Basis", "Conditioned", "Feedback", "NormUnits", "Thresholds", "activation", "outside", "row_norms"]
