"""Display objects: build one with ``from_...``, draw it with ``.plot(ax=None)``."""

from .learning import LearningDisplay
from .spectrum import SpectrumDisplay

__all__ = ["LearningDisplay", "SpectrumDisplay"]
