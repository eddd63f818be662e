"""Display objects: build with ``from_...``, draw with ``.plot(ax=None)``."""

from .error import ErrorDisplay
from .kernel import KernelDisplay
from .spectrum import SpectrumDisplay
from .twin import TwinDisplay

__all__ = ["ErrorDisplay", "KernelDisplay", "SpectrumDisplay", "TwinDisplay"]
