"""Display objects: build with ``from_...``, draw with ``.plot(ax=None)``."""

from .compare import ComparisonDisplay
from .error import ErrorDisplay
from .kernel import KernelDisplay
from .learning import LearningDisplay
from .spectrum import SpectrumDisplay
from .twin import TwinDisplay

__all__ = ["ComparisonDisplay", "ErrorDisplay", "KernelDisplay", "LearningDisplay", "SpectrumDisplay", "TwinDisplay"]
