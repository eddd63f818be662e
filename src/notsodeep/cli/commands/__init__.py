"""One file per group of commands; importing it registers them."""

from . import design, kernels, runs, system

__all__ = ["design", "kernels", "runs", "system"]
