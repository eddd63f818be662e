"""The equilibrium of any cell as a differentiable function, by vector-Jacobian products.

Cells of one layer have a quicker way with derivatives of every order (``implicit.py``); this one has the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._arguments import uncompiled
from .._equilibrium import Equilibrium, SolverOptions, solve_equilibrium

Step = Callable[[Tensor | None, Tensor], Tensor]
"""(state, drive) -> the next state, row by row; None stands for zero."""


def find_equilibrium(
    step: Callable[..., Tensor], inputs: Sequence[Tensor], options: SolverOptions, start: Tensor | None = None
) -> Equilibrium:
    """Solve u = step(u, *inputs) for every row of the inputs, without derivatives."""

    def map_of(rows: Any) -> Callable[[Tensor], Tensor]:
        own = [part[rows] for part in inputs]
        return lambda u: step(u, *own)

    with torch.no_grad(), torch.autocast(inputs[0].device.type, enabled=False):
        start = step(None, *inputs) if start is None else start
        return solve_equilibrium(map_of(slice(None)), start, options, restrict=map_of)


@uncompiled
def cell_equilibrium(step: Step, drive: Tensor, options: SolverOptions) -> Tensor:
    """Return the solution u of u = step(u, drive), with its first derivatives; warn where there is none."""
    found = find_equilibrium(step, [drive.detach()], options)
    found.require(options)
    if not torch.is_grad_enabled():
        return found.value
    u = found.value.detach().requires_grad_(True)
    with torch.autocast(drive.device.type, enabled=False):
        image = step(u, drive)
    # only the graph of a step from the equilibrium is kept, not that of the iteration
    return _Adjoint.apply(image, u, options) if image.requires_grad else found.value


class _Adjoint(Function):
    """step(u) -> u: the cotangent v becomes the solution h of h = v + J' h."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, u: Tensor, options: SolverOptions) -> Tensor:
        ctx.image, ctx.u, ctx.options = image, u, options
        return u.detach().clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        source = cotangents[0].detach()
        if torch.is_grad_enabled():
            raise RuntimeError("a DEQ whose cell is not one layer has first derivatives only (create_graph=False)")

        def step(h: Tensor) -> Tensor:
            return source + torch.autograd.grad(ctx.image, ctx.u, h, retain_graph=True)[0]

        found = solve_equilibrium(step, source, ctx.options)
        found.require(ctx.options, "the equilibrium of the derivative")
        return found.value, None, None
