"""Units of a layer that see more of their input than their pre-activation: the hidden layers of twins."""

from .conditioned import Conditioned
from .elementary import Basis
from .feedback import Feedback
from .norm_units import NormUnits, outside, row_norms
from .thresholds import Thresholds

__all__ = ["Basis", "Conditioned", "Feedback", "NormUnits", "Thresholds", "outside", "row_norms"]
