"""The uniform twin: one network for every pair of inputs, with a bound that holds for all of them."""

from .api import match_uniform, norm_range
from .record import DepthRow, Implications, Location, UniformTwin

__all__ = ["DepthRow", "Implications", "Location", "UniformTwin", "match_uniform", "norm_range"]
