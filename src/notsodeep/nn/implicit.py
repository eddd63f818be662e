"""Equilibria as differentiable functions, by the implicit function theorem.

With u = sqrt(m) z the equilibrium is u = phi(c + g u A'), c = sigma_b x B', g = sigma_a / sqrt(m). Its derivatives
solve the linear equilibrium h = r + d * (g h M), d = phi'(c + g u A'): M = A' for tangents and M = A for adjoints.
That is closed under differentiation, so derivatives of every order exist; each costs one solve.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.overrides import handle_torch_function, has_torch_function

from .._arguments import uncompiled
from .._equilibrium import SolverOptions
from .._maps import Product
from ..activations import Activation
from .cell import find_equilibrium


@uncompiled
def equilibrium(recurrent: Tensor, drive: Tensor, layer: Product, phi: Activation, options: SolverOptions) -> Tensor:
    """Return the differentiable solution u of u = phi(drive + gain u A'); warn where there is none.

    Modes of torch see it as one of torch's own functions.
    """
    if has_torch_function((recurrent, drive)):
        return handle_torch_function(equilibrium, (recurrent, drive), recurrent, drive, layer, phi, options)
    return _NonlinearEquilibrium.apply(recurrent, drive, layer, phi, options)


class _NonlinearEquilibrium(Function):
    """(A, c) -> u."""

    @staticmethod
    def forward(recurrent: Tensor, drive: Tensor, layer: Product, phi: Activation, options: SolverOptions) -> Tensor:
        def step(u: Tensor | None, inputs: Tensor) -> Tensor:
            return phi(inputs if u is None else layer.affine(inputs, u, recurrent))

        found = find_equilibrium(step, [drive], options)
        found.require(options)
        return found.value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        recurrent, drive, ctx.layer, ctx.phi, ctx.options = inputs
        ctx.save_for_backward(recurrent, drive, output)
        ctx.save_for_forward(recurrent, drive, output)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        recurrent, drive, u = ctx.saved_tensors
        with torch.autocast(drive.device.type, enabled=False):
            slope = ctx.phi.derivative(ctx.layer.affine(drive, u, recurrent))
            adjoint = _LinearEquilibrium.apply(recurrent, slope, slope * cotangents[0], ctx.layer, ctx.options)
            # the factor goes on the rows: a second matrix of the size of A would double the memory
            weights = ctx.layer.outer(ctx.layer.gain * adjoint, u, recurrent) if ctx.needs_input_grad[0] else None
        return weights, adjoint, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        recurrent, drive, u = ctx.saved_tensors
        change = torch.zeros_like(u) if tangents[1] is None else tangents[1]
        if tangents[0] is not None:
            change = change + ctx.layer.gain * ctx.layer.forward(tangents[0], u)
        slope = ctx.phi.derivative(ctx.layer.affine(drive, u, recurrent))
        return _LinearEquilibrium.apply(ctx.layer.transposed(recurrent), slope, slope * change, ctx.layer, ctx.options)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        recurrent, drive = _lead(info.batch_size, in_dims[:2], inputs[:2], inputs[2].beyond)
        return _NonlinearEquilibrium.apply(recurrent, drive, *inputs[2:]), 0


class _LinearEquilibrium(Function):
    """(M, d, r) -> h with h = r + d * (g h M)."""

    @staticmethod
    def forward(matrix: Tensor, slope: Tensor, source: Tensor, layer: Product, options: SolverOptions) -> Tensor:
        def step(h: Tensor, slopes: Tensor, sources: Tensor) -> Tensor:
            return torch.addcmul(sources, slopes, layer.back(matrix, h), value=layer.gain)

        found = find_equilibrium(step, [slope, source], options, start=source)
        found.require(options, "the equilibrium of the derivative")
        return found.value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        matrix, slope, _, ctx.layer, ctx.options = inputs
        ctx.save_for_backward(matrix, slope, output)
        ctx.save_for_forward(matrix, slope, output)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        matrix, slope, h = ctx.saved_tensors
        back = ctx.layer.transposed(matrix)
        adjoint = _LinearEquilibrium.apply(back, slope, slope * cotangents[0], ctx.layer, ctx.options)
        source = cotangents[0] + ctx.layer.gain * ctx.layer.forward(matrix, adjoint)
        slopes = source * (ctx.layer.gain * ctx.layer.back(matrix, h)) if ctx.needs_input_grad[1] else None
        weights = ctx.layer.outer(ctx.layer.gain * h, adjoint, matrix) if ctx.needs_input_grad[0] else None
        return weights, slopes, source, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        matrix, slope, h = ctx.saved_tensors
        change = torch.zeros_like(h) if tangents[2] is None else tangents[2]
        if tangents[1] is not None:
            change = change + tangents[1] * (ctx.layer.gain * ctx.layer.back(matrix, h))
        if tangents[0] is not None:
            change = change + slope * (ctx.layer.gain * ctx.layer.back(tangents[0], h))
        return _LinearEquilibrium.apply(matrix, slope, change, ctx.layer, ctx.options)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        matrix, slope, source = _lead(info.batch_size, in_dims[:3], inputs[:3], inputs[3].beyond)
        return _LinearEquilibrium.apply(matrix, slope, source, *inputs[3:]), 0


def _lead(size: int, dims: tuple[Any, ...], tensors: tuple[Tensor, ...], beyond: int) -> list[Tensor]:
    """Batch dimensions to the front. The matrix stays as it is if it has none; the rows always get one."""
    rows = [
        t.unsqueeze(0).expand(size, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip(tensors[1:], dims[1:], strict=True)
    ]
    if dims[0] is None:
        return [tensors[0], *rows]
    matrix = tensors[0].movedim(dims[0], 0)
    while matrix.ndim < rows[0].ndim + beyond:
        matrix = matrix.unsqueeze(1)
    return [matrix, *rows]
