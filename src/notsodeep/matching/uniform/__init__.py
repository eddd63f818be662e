"""The uniform twin: one network for every pair of inputs, with a bound that holds for all of them."""

from .match import match_uniform

__all__ = ["match_uniform"]
