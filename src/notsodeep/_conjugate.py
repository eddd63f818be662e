"""Conjugate gradients for many right-hand sides and many ridges: the one loop for large linear systems.

Every column has its own ridge, step lengths and stopping; they share the product with K, which is nearly all of the
work. Columns that have converged take no further part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .errors import ConvergenceError

Product = Callable[[Tensor], Tensor]
Precondition = Callable[[Tensor, Tensor], Tensor]
"""A function (r, ridges) -> P^(-1) r, with P near the matrix plus the ridge of each column."""


def unpreconditioned(r: Tensor, ridges: Tensor) -> Tensor:
    """Return the residual itself: no preconditioner."""
    return r


@dataclass
class Iterate:
    """The state of the iteration: everything needed for the next step."""

    z: Tensor  # solutions so far, (n, columns)
    residual: Tensor
    direction: Tensor
    energy: Tensor  # r' P^(-1) r of each column
    start_norms: Tensor  # of the residuals
    step: int = 0
    history: list[float] = field(default_factory=list)  # the largest relative residual, after each step

    @staticmethod
    def start(B: Tensor, ridges: Tensor, precondition: Precondition = unpreconditioned) -> Iterate:
        """Return the state that starts from the solution zero."""
        first = precondition(B, ridges)
        return Iterate(torch.zeros_like(B), B.clone(), first.clone(), (B * first).sum(0), B.norm(dim=0))


def conjugate_gradients(
    product: Product,
    ridges: Tensor,
    aims: Tensor,
    state: Iterate,
    scales: Tensor,
    precondition: Precondition = unpreconditioned,
    most: int = 2000,
) -> Iterator[Iterate]:
    """Advance ``state`` until the residual norm of every column is at most its aim; yield it after each step.

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
        _advance(product, ridges, active, state, precondition)
        state.history.append(float((state.residual.norm(dim=0) / scales).max()))
        yield state


def _advance(product: Product, ridges: Tensor, active: Tensor, state: Iterate, precondition: Precondition) -> None:
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
    following = precondition(r, mine)
    state.z[:, active] += length * p
    energy = (r * following).sum(0)
    state.direction[:, active] = following + energy / state.energy[active] * p
    state.residual[:, active] = r
    state.energy[active] = energy
    state.step += 1


def thin(A: Tensor, B: Tensor) -> Tensor:
    """Return A @ B for a B of few columns, as (B' A')', which matrix routines compute up to ten times as fast."""
    return A @ B if B.ndim == 1 else (B.T @ A.T).T
