"""Display objects: build one with ``from_...``, draw it with ``.plot(ax=None)``."""

from .displays import LearningDisplay, TwinDisplay
from .spectrum import SpectrumDisplay

__all__ = ["LearningDisplay", "SpectrumDisplay", "TwinDisplay"]
