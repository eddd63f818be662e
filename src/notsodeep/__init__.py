"""notsodeep: deep equilibrium models, and the shallow explicit networks with the same kernels.

Public names are listed in ``__init__.pyi`` and imported on first use, so that ``import notsodeep`` takes no time.
"""

import lazy_loader

__version__ = "0.3.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
