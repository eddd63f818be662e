"""The one loop for large linear systems: conjugate gradients for many right-hand sides and many ridges.

Every column has its own ridge, step lengths and stopping; what they share is the product with K, which is nearly all
of the work. Columns that are done take no further part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .errors import ConvergenceError

Product = Callable[[Tensor], Tensor]
Sweep = Callable[[Tensor, Tensor], Tensor]
"""(r, ridges) -> P^(-1) r with P near the matrix plus the ridge of each column: the preconditioner."""


def unswept(r: Tensor, ridges: Tensor) -> Tensor:
    """No preconditioner."""
    return r


@dataclass
class Iterate:
    """Where the iteration stands; everything needed to go on from here."""

    z: Tensor
    """Solutions so far, (n, columns)."""
    residual: Tensor
    direction: Tensor
    energy: Tensor
    """r' P^(-1) r of each column."""
    start_norms: Tensor
    """Of the residuals at the start."""
    step: int = 0
    history: list[float] = field(default_factory=list)
    """The largest relative residual over the columns, at each step."""

    @staticmethod
    def start(B: Tensor, ridges: Tensor, sweep: Sweep = unswept) -> Iterate:
        """From zero."""
        swept = sweep(B, ridges)
        return Iterate(torch.zeros_like(B), B.clone(), swept.clone(), (B * swept).sum(0), B.norm(dim=0))


def conjugate_gradients(
    product: Product,
    ridges: Tensor,
    aims: Tensor,
    state: Iterate,
    scales: Tensor,
    sweep: Sweep = unswept,
    most: int = 2000,
) -> Iterator[Iterate]:
    """Advance ``state`` until the residual norm of every column is at most its aim; yields it after each step.

    ``scales`` are the norms that residuals are reported against. Raises :class:`ConvergenceError` where the matrix is
    not positive definite in the precision of its products, or after ``most`` steps.
    """
    while True:
        norms = state.residual.norm(dim=0)
        active = (norms > aims).nonzero()[:, 0]
        if not len(active):
            return
        if state.step >= most:
            worst = float((norms / scales).max())
            raise ConvergenceError(
                f"conjugate gradients stopped after {most} steps at a relative residual of {worst:.1e}; use a larger "
                "ridge, a preconditioner of higher rank, or more max_steps"
            )
        _advance(product, ridges, active, state, sweep)
        state.history.append(float((state.residual.norm(dim=0) / scales).max()))
        yield state


def _advance(product: Product, ridges: Tensor, active: Tensor, state: Iterate, sweep: Sweep) -> None:
    mine, p = ridges[active], state.direction[:, active]
    image = product(p) + mine * p
    curvature = (p * image).sum(0)
    if bool((curvature <= 0).any()) or not bool(torch.isfinite(curvature).all()):
        raise ConvergenceError(
            f"the kernel plus a ridge of {float(mine.min()):.3g} is not positive definite in the precision of its "
            "products; use a larger ridge, or dtype='float64'"
        )
    length = state.energy[active] / curvature
    r = state.residual[:, active] - length * image
    swept = sweep(r, mine)  # this may fail, like the product: until here nothing has changed
    state.z[:, active] += length * p
    energy = (r * swept).sum(0)
    state.direction[:, active] = swept + energy / state.energy[active] * p
    state.residual[:, active] = r
    state.energy[active] = energy
    state.step += 1


def thin(A: Tensor, B: Tensor) -> Tensor:
    """A @ B for a B of few columns, as (B' A')': matrix routines take a few rows times a matrix up to ten times as
    fast as a matrix times a few columns.

    >>> thin(torch.eye(2), torch.ones(2, 1)).tolist()
    [[1.0], [1.0]]
    """
    return A @ B if B.ndim == 1 else (B.T @ A.T).T
