"""notsodeep: deep equilibrium models, and the shallow explicit networks with the same kernels.

Public names are listed in ``__init__.pyi`` and imported on first use, so that ``import notsodeep`` takes no time.
"""

import importlib
from typing import Any

import lazy_loader

__version__ = "0.4.0"

_listed, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Return a public name, or a room that is not in the list: two for experts, one that needs an extra."""
    more = ("equivalents", "gaussian", "gpytorch")
    return importlib.import_module(f"{__name__}.{name}") if name in more else _listed(name)
