"""Layers whose units see the norm of their input as well as their pre-activation (theory, section 13)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..activations.base import Activation
from ..activations.panels import LIMITS
from ..errors import ActivationError


class NormUnits(Activation):
    """A layer of units psi_i(w_i.x, |x|), which is no elementwise function; this class is abstract.

    A subclass names functions of torch alone, or gives :meth:`table` and :meth:`formula`. They have no control flow
    that depends on data, so that torch can differentiate, compile and export them.
    """

    functions: ClassVar[tuple[Callable[..., Any], ...]] = ()
    """What the last two need, and these: ``f(like, width, *constants)`` and ``f(before, x, table, *settings)``."""
    conical: ClassVar[bool] = False  # they bring logarithms of the angle

    def __reduce__(self) -> tuple[Any, ...]:  # cached properties are not pickled
        return (_restored, (self.to_dict(),))

    @property
    def constants(self) -> tuple[Any, ...]:
        """What a table is made of."""
        raise NotImplementedError

    @property
    def settings(self) -> tuple[Any, ...]:
        """What units take beside their table."""
        raise NotImplementedError

    @property
    def span(self) -> tuple[float, float] | None:
        """The norms that the units are made for; ``None``: all."""
        return None

    @property
    def slope_range(self) -> tuple[float, float]:
        return (-float("inf"), float("inf"))

    def at(self, domain: Any, points: Any) -> tuple[Any, Any]:
        return domain.units(self.layer, points)

    def layer(self, qx: Tensor, qy: Tensor) -> Any:
        """Return the map of covariances, with ``value(lam)`` and ``both(lam)``, at two squared norms of inputs."""
        raise NotImplementedError

    def table(self, like: Tensor, width: int) -> Tensor:
        """Return the constants of a layer of this width, with the dtype and on the device of ``like``."""
        return self.functions[-2](like, width, *self.constants)

    def formula(self, before: Tensor, inputs: Tensor, table: Tensor) -> Tensor:
        """Return the layer as one expression of torch functions."""
        return self.functions[-1](before, inputs, table, *self.settings)

    def source_lines(self, name: str) -> list[str]:
        if not self.functions:
            return super().source_lines(name)
        bases = [value for value in self.settings if isinstance(value, Activation)]
        numbers = [f"{name}_phi" if value in bases else repr(value) for value in self.settings]
        table, units = (function.__name__ for function in self.functions[-2:])
        sources = [inspect.getsource(function).splitlines() for function in self.functions]
        sources += [phi.source_lines(f"{name}_phi") for phi in bases]
        return [
            *(line for source in sources for line in (*source, "", "")),
            f"def {name}(before, x):",
            f"    table = {table}(before, before.shape[-1], {', '.join(map(repr, self.constants))})",
            f"    return {units}(before, x, table, {', '.join(numbers)})",
        ]

    def units(self, before: Tensor, inputs: Tensor, table: Tensor | None = None) -> Tensor:
        """Return the layer at ``before`` = W x of shape (..., width) and ``inputs`` = x of shape (..., p)."""
        table = self.table(before, before.shape[-1]) if table is None else table
        if torch.compiler.is_compiling() or before.ndim < 2:
            return self.formula(before, inputs, table)
        blocks = [self.formula(b, x, table) for b, x in _blocks(before, inputs)]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    def _value(self, x: Tensor) -> Tensor:
        raise ActivationError(
            f"{type(self).__name__} units see the norm of their input, so they are no function of the pre-activation "
            "alone; use units(W x, x)"
        )


def _restored(document: dict[str, Any]) -> Activation:
    """Return pickled units; that this function lies here makes sure that their classes are known."""
    return Activation.from_dict(document)


def _blocks(before: Tensor, inputs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield blocks of rows so small that the intermediate results stay in the processor's cache."""
    units = max(1, before[0].numel()) if len(before) else 1
    step = max(1, LIMITS.block * torch.get_num_threads() // units) if before.device.type == "cpu" else len(before)
    return zip(before.split(max(1, step)), inputs.split(max(1, step)), strict=True)


def row_norms(inputs: Tensor) -> Tensor:
    """Return |x| of the last dimension."""
    return torch.linalg.vector_norm(inputs, dim=-1)


def outside(norms: Tensor, span: tuple[float, float] | None) -> str:
    """Return what to say of rows whose norms lie outside a range, by more than rounding; nothing if there are none."""
    if span is None or not norms.numel():
        return ""
    count = int(((norms < (1.0 - 1e-5) * span[0]) | (norms > (1.0 + 1e-5) * span[1])).sum())
    if not count:
        return ""
    return (
        f"{count} of {norms.numel()} rows have norms outside {span[0]:.4g} to {span[1]:.4g} (the norms are "
        f"{float(norms.min()):.4g} to {float(norms.max()):.4g}): this one-layer twin was made for that range, and its "
        "error is not bounded beyond. Take match_one_layer(..., norms=matching.norm_range(X)), or norms=(0, inf)"
    )
