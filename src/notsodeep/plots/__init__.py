"""Display objects: build with ``from_...``, draw with ``.plot(ax=None)``."""

from .displays import ErrorDisplay, KernelDisplay, LearningDisplay
from .spectrum import SpectrumDisplay
from .twin import ComparisonDisplay, TwinDisplay

__all__ = ["ComparisonDisplay", "ErrorDisplay", "KernelDisplay", "LearningDisplay", "SpectrumDisplay", "TwinDisplay"]
