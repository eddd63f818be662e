"""The shallow explicit network that has a DEQ's kernel: families, solver, certificate."""

from .api import match
from .family import Family
from .twin import Twin, Verification

__all__ = ["Family", "Twin", "Verification", "match"]
