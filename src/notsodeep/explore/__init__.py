"""The explorer: a page that shows numbers of this library and computes none.

:func:`serve` answers the page on this machine; :func:`stored_page` is the same page with numbers computed ahead.
"""

from .document import page, stored_page
from .server import Explorer, serve

__all__ = ["Explorer", "page", "serve", "stored_page"]
