"""Display objects: build one with ``from_...``, draw it with ``.plot(ax=None)``."""

from .displays import KernelDisplay, LearningDisplay, TwinDisplay
from .spectrum import SpectrumDisplay

__all__ = ["KernelDisplay", "LearningDisplay", "SpectrumDisplay", "TwinDisplay"]
