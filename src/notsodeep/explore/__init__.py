"""The explorer: one self-contained page on which the theory moves with the sliders.

>>> from notsodeep.explore import page
>>> page().startswith("<!doctype html>")
True
"""

from .bundle import bundle, page

__all__ = ["bundle", "page"]
