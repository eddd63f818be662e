"""Predicted spectra: limiting density, support, isolated eigenvalues and eigenvector alignments, without sampling."""

from .law import Atom, SpectralLaw, spectral_law
from .spikes import Spike

__all__ = ["Atom", "SpectralLaw", "Spike", "spectral_law"]
