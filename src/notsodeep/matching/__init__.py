"""The shallow explicit network that has a DEQ's kernel: families, solver, certificate."""

from .api import match
from .family import Family
from .sphere import match_sphere
from .table import tabulate
from .twin import Twin, Verification
from .uniform import UniformTwin, match_uniform, norm_range

__all__ = [
    "Family",
    "Twin",
    "UniformTwin",
    "Verification",
    "match",
    "match_sphere",
    "match_uniform",
    "norm_range",
    "tabulate",
]
