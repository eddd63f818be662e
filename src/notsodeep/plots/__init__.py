"""Display objects: build one with ``from_...`` and draw it with ``.plot(ax=None)``. Results have ``.plot()``, too."""

import functools
from typing import Any

import numpy as np

from ..errors import InvalidInputError
from ..learning import LearningCurve, LearningEstimate
from ..matching import Twin
from ..nn import LazyReport, Replacement
from ..spectra import SpectralLaw
from .results import FeaturesDisplay, LazyDisplay, LearningDisplay, ReplacementDisplay, TwinDisplay
from .spectrum import Display, SpectrumDisplay

__all__ = [
    "FeaturesDisplay",
    "LazyDisplay",
    "LearningDisplay",
    "ReplacementDisplay",
    "SpectrumDisplay",
    "TwinDisplay",
]


@functools.singledispatch
def display_of(result: Any) -> Display:
    """Return the display that draws a result."""
    raise InvalidInputError(f"there is no display of {type(result).__name__}")


display_of.register(Twin, TwinDisplay.from_twin)
display_of.register(LazyReport, LazyDisplay)
display_of.register(Replacement, ReplacementDisplay.from_replacement)
display_of.register(SpectralLaw, lambda law: SpectrumDisplay(np.empty(0), law))
for curve in (LearningCurve, LearningEstimate):
    display_of.register(curve, LearningDisplay.from_curve)
