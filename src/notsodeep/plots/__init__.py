"""Display objects: build one with ``from_...``, draw it with ``.plot(ax=None)``."""

from .features import FeaturesDisplay
from .learning import LearningDisplay
from .movement import LazyDisplay, LazyReport, lazy
from .spectrum import SpectrumDisplay

__all__ = ["FeaturesDisplay", "LazyDisplay", "LazyReport", "LearningDisplay", "SpectrumDisplay", "lazy"]
