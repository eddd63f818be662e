"""First derivatives of kernels, by ``backward()`` and the transforms of ``torch.func``; others are refused in words.

Kernels are computed by loops that look at numbers, which no transform can follow. Here they are one function, with one
more for its gradients, so that ``grad``, ``vjp``, ``jacrev`` and ``vmap`` see nothing of the loops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._arguments import uncompiled
from ..errors import InvalidInputError

Inputs = Sequence[Tensor | None]


@dataclass
class _Call:
    """A function, the inputs for which gradients are wanted, and the graph of one call; transforms see none of it."""

    function: Callable[..., tuple[Tensor, ...]]
    wanted: Sequence[bool]
    graph: tuple[Inputs, tuple[Tensor, ...]] | None = None

    def record(self, inputs: Inputs) -> tuple[Inputs, tuple[Tensor, ...]]:
        """Return the inputs as leaves of a graph, and what the function makes of them."""
        with torch.enable_grad():
            leaves = [
                v if v is None else v.detach().requires_grad_(w) for v, w in zip(inputs, self.wanted, strict=True)
            ]
            return leaves, self.function(*leaves)


@uncompiled
def differentiable(function: Callable[..., tuple[Tensor, ...]], inputs: Inputs) -> tuple[Tensor, ...]:
    """Return function(*inputs), differentiable once, as ``function`` is where an input requires a gradient."""
    wanted = [v is not None and v.requires_grad and torch.is_grad_enabled() for v in inputs]
    return _Value.apply(_Call(function, wanted), *inputs)


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse graphs of derivatives: they would lack how the rates of Newton's steps move, and be wrong."""

    @functools.wraps(backward)
    def inside(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():  # create_graph=True
            _refuse(ctx)
        return backward(ctx, *grads)

    return inside


def _refuse(ctx: Any, *_: Any) -> Any:
    raise InvalidInputError(
        "kernels have first derivatives only, by backward(), torch.func.grad, vjp and jacrev; for second derivatives "
        "(hessian, create_graph=True) and for forward mode (jvp, jacfwd) take differences"
    )


class _Value(Function):
    @staticmethod
    def forward(call: _Call, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        if not any(call.wanted):
            return call.function(*inputs)
        call.graph = call.record(inputs)  # the backward pass need not compute the function anew
        return tuple(v.detach() for v in call.graph[1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        wanted = ctx.needs_input_grad[1:]
        unforeseen = any(w and not known for w, known in zip(wanted, ctx.call.wanted, strict=True))  # within vmap
        asked = replace(ctx.call, wanted=wanted, graph=None if unforeseen else ctx.call.graph)
        found = iter(_Gradient.apply(asked, *cotangents, *ctx.saved_tensors))
        return None, *(next(found) if w else None for w in wanted)

    jvp = staticmethod(_refuse)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], call: _Call, *inputs: Any) -> tuple[Any, Any]:
        # each call records a graph of its own
        return _one_by_one(lambda *one: _Value.apply(replace(call), *one), info.batch_size, dims[1:], inputs)


class _Gradient(Function):
    @staticmethod
    def forward(call: _Call, *given: Any) -> tuple[Tensor, ...]:
        count = len(call.wanted)
        leaves, values = call.graph or call.record(given[-count:])
        asked = [leaf for leaf, wanted in zip(leaves, call.wanted, strict=True) if wanted and leaf is not None]
        options: Any = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        with torch.enable_grad():  # of one number: given cotangents, torch loads a library of symbols for seconds
            total = torch.stack([(v * c).sum() for v, c in zip(values, given[:-count], strict=True)]).sum()
        return torch.autograd.grad(total, asked, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass  # there is nothing to differentiate

    backward = staticmethod(_refuse)
    jvp = staticmethod(_refuse)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], call: _Call, *given: Any) -> tuple[Any, Any]:
        return _one_by_one(lambda *one: _Gradient.apply(call, *one), info.batch_size, dims[1:], given)


def _one_by_one(apply: Callable[..., Any], size: int, dims: Sequence[int | None], inputs: Inputs) -> tuple[Any, Any]:
    """Return the results of a batch of inputs, stacked, and that their first dimension is the batch."""
    pairs = list(zip(inputs, dims, strict=True))
    calls = [apply(*(v if v is None or d is None else v.select(d, i) for v, d in pairs)) for i in range(size)]
    stacked = tuple(map(torch.stack, zip(*calls, strict=True)))
    return stacked, (0,) * len(stacked)
