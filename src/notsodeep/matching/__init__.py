"""The shallow explicit network that has a DEQ's kernel: families, solver, certificate."""

from .twin import Twin, Verification

__all__ = ["Twin", "Verification"]
