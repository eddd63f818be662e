"""The shallow explicit network that has a DEQ's kernel: families, solver, certificate."""

from .api import match
from .family import Family
from .sphere import match_sphere
from .twin import Twin, Verification

__all__ = ["Family", "Twin", "Verification", "match", "match_sphere"]
