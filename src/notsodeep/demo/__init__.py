"""``make demo``: two deep equilibrium models, the shallow networks with the same kernels, a table and a report.

``notsodeep demo`` runs it; the report is one file, ``demo/report.html``.
"""

from .main import main
from .study import Case, Size, Study, run

__all__ = ["Case", "Size", "Study", "main", "run"]
