"""One file per group of commands; importing it registers them."""

from . import design, kernels, learners, learning, runs, system

__all__ = ["design", "kernels", "learners", "learning", "runs", "system"]
