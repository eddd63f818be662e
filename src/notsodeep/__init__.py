"""notsodeep: deep equilibrium models, and the shallow explicit networks with the same kernels."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# public name -> the room that holds it; rooms are imported on first use, so that `import notsodeep` stays light
_ROOMS = {
    "activations": ["Activation", "activation", "activation_names"],
    "gaussian": ["Moments", "expectation", "hermite_coefficients", "moments"],
    "networks": ["DEQ", "ENN", "network_from_dict"],
    "mixtures": ["GaussianMixture", "MixtureStatistics", "Standardiser", "standardise"],
    "kernels": ["ck", "finite_ck", "finite_ntk", "kernels_of", "ntk"],
    "equivalents": [
        "Coefficients",
        "coefficients",
        "equivalent",
        "relative_spectral_error",
        "sphere_equivalent",
        "universality",
    ],
    "spectra": ["spectral_law"],
    "matching": ["Twin", "match", "match_sphere", "match_uniform", "norm_range"],
    "codegen": ["pytorch_code"],
    "nn": ["compare", "distil", "fit", "twin_of"],
    "plots": ["ErrorDisplay", "KernelDisplay", "SpectrumDisplay", "TwinDisplay"],
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}
_MODULES = {"activations", "errors", "datasets", "experiments", "matching", "nn", "plots"}

__all__ = sorted([*_HOME, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
