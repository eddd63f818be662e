"""Display objects: build one with ``from_...``, draw it with ``.plot(ax=None)``."""

from .learning import LearningDisplay
from .movement import LazyDisplay, LazyReport, lazy
from .spectrum import SpectrumDisplay

__all__ = ["LazyDisplay", "LazyReport", "LearningDisplay", "SpectrumDisplay", "lazy"]
