"""Display objects: build with ``from_...``, draw with ``.plot(ax=None)``."""

from .error import ErrorDisplay
from .kernel import KernelDisplay
from .twin import TwinDisplay

__all__ = ["ErrorDisplay", "KernelDisplay", "TwinDisplay"]
