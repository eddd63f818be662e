"""One file per group of commands; importing it registers them."""

from . import design, explorer, kernels, learners, learning, runs, system

__all__ = ["design", "explorer", "kernels", "learners", "learning", "runs", "system"]
