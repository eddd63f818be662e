"""One file per group of commands; importing it registers them."""

from . import design, kernels, learning, runs, system

__all__ = ["design", "kernels", "learning", "runs", "system"]
