"""One hidden layer with the kernel of a DEQ, for every input (theory, section 13)."""

from .api import match_one_layer

__all__ = ["match_one_layer"]
