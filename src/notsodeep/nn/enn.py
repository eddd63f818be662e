"""The explicit network at finite width: what a DEQ becomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._arguments import checked, whole
from ..activations.forms import Scaled
from ..activations.norm_units import How, NormUnits, loops
from ..errors import InvalidInputError
from ..matching import Twin
from ..networks import ENN as Specification
from ..networks import rates_of
from .model import Gaussian, Model, check_input


class ENN(Model):
    """x_l = sigma_l(W_l x_{l-1}) / sqrt(m_l), l = 1 ... L, f(x) = a x_L.

    Parameters
    ----------
    network : an :class:`notsodeep.ENN`, or a twin, whose learning-rate multipliers are taken over
    in_features, width, out_features : p, m (a number, or one per layer) and the number of outputs
    seed : of the weights, which are standard normal
    init : ``"gaussian"``, the theory's independent weights, or ``"orthogonal"``: the same distribution of every neuron
        and the same kernel at infinite width, but rows orthogonal to each other, which bring a network of this width
        as near to it as a Gaussian one of several times the width. The readout is Gaussian either way
    train : ``"readout"``, ``"frozen"`` (all but W_1) or ``"all"``
    bias : whether the outputs have one
    learning_rates : one multiplier per weight matrix, W_1 ... W_L and the readout, see :meth:`parameter_groups`
    normalise : divide each input by its norm first, for twins on the sphere; a twin knows whether it wants that
    compile : evaluate units that see the norm in one compiled pass, on the CPU: the C++ compiler takes two seconds
        first, once per process. Without one there is a warning, and plain torch

    >>> import notsodeep as nsd, torch
    >>> model = nsd.nn.ENN(nsd.ENN(["tanh"]), in_features=3, width=64, out_features=2, learning_rates=(0.5, 1.0))
    >>> [group["lr"] for group in model.parameter_groups(lr=0.1)]
    [0.05, 0.1]
    """

    @checked
    def __init__(
        self,
        network: Specification | Twin,
        in_features: int,
        width: int | Sequence[int],
        out_features: int,
        seed: int = 0,
        *,
        init: str = "gaussian",
        train: str = "all",
        bias: bool = False,
        learning_rates: Sequence[float] | None = None,
        normalise: bool | None = None,
        compile: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.spec, inherited, unit = _specification(network)
        self.normalise = unit if normalise is None else normalise
        self.in_features = whole("in_features", in_features)
        self.out_features = whole("out_features", out_features)
        self.widths = _widths(width, self.spec.depth)
        self.learning_rates = rates_of(self.spec, inherited if learning_rates is None else learning_rates)
        if init not in ("gaussian", "orthogonal"):
            raise InvalidInputError(f"init must be 'gaussian' or 'orthogonal', got {init!r}")
        gaussian = Gaussian(seed, dtype, device)
        draw = gaussian.parameter if init == "gaussian" else gaussian.orthogonal
        sizes = (in_features, *self.widths)
        self.weights = nn.ParameterList(draw(m, k) for k, m in zip(sizes, self.widths, strict=False))
        self.readout = gaussian.parameter(out_features, self.widths[-1])
        self.bias = gaussian.bias(out_features, bias)
        self._fuse(bool(compile))
        self.set_trained(train)

    def _fuse(self, compiled: bool) -> None:
        functions: list[Any] = []
        scale = 1.0
        for phi, width in zip(self.spec.activations, self.widths, strict=True):
            # a negative or zero pending gain cannot be an input scale: the next layer takes it as a plain factor
            if isinstance(phi, NormUnits):
                how = How(scale, 1.0 / math.sqrt(width), compiled and loops.built, overwrite=True)
                functions.append(NormLayer(phi, how, self.readout, width))
                scale = 1.0
                continue
            function, gain = phi.fused(scale)
            if gain <= 0.0:
                function, gain = Scaled(phi, scale), 1.0
            functions.append(function)
            scale = gain / math.sqrt(width)
        self._functions, self._scale = tuple(functions), scale
        self._norm_units = nn.ModuleList(f for f in functions if isinstance(f, NormLayer))  # moves with the model

    # -- evaluation --------------------------------------------------------------------------------------
    def _hidden(self, x: Tensor) -> Tensor:
        """x_L up to the factor ``_scale``."""
        check_input(x, self.in_features)
        if self.normalise:
            x = nn.functional.normalize(x, dim=-1)
        for weight, function in zip(self.weights, self._functions, strict=True):
            before = nn.functional.linear(x, weight)
            x = function(before, x) if isinstance(function, NormLayer) else function(before)
        return x

    def features(self, x: Tensor) -> Tensor:
        """The last hidden state x_L, shape (..., width)."""
        hidden = self._hidden(x)
        return hidden if self._scale == 1.0 else hidden * self._scale

    def forward(self, x: Tensor) -> Tensor:
        if self._scale == 1.0:
            return self.read(self._hidden(x))
        outputs = nn.functional.linear(self._hidden(x), self.readout) * self._scale
        return outputs if self.bias is None else outputs + self.bias

    # -- description -------------------------------------------------------------------------------------
    @property
    def width(self) -> int:
        """The width of the last layer."""
        return self.widths[-1]

    def hidden_weights(self) -> list[tuple[str, nn.Parameter]]:
        return [(f"weights.{i}", weight) for i, weight in enumerate(self.weights)]

    def _rates(self) -> Mapping[str, float]:
        names = [name for name, _ in self.hidden_weights()] + ["readout"]
        return dict(zip(names, self.learning_rates, strict=True))

    def config(self) -> dict[str, Any]:
        return {
            "model": "ENN",
            "spec": self.spec.to_dict(),
            "in_features": self.in_features,
            "width": list(self.widths),
            "out_features": self.out_features,
            "train": self.trained,
            "bias": self.bias is not None,
            "learning_rates": list(self.learning_rates),
            "normalise": self.normalise,
        }

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, width={self.widths}, out_features={self.out_features}"
        return f"{self.spec!r}, {sizes}, train={self.trained!r}"


class NormLayer(nn.Module):
    """A layer of units that see the norm of their input; its table is a buffer."""

    table: Tensor

    def __init__(self, phi: NormUnits, how: How, like: Tensor, width: int) -> None:
        super().__init__()
        self.phi, self.how = phi, how
        self.register_buffer("table", phi.table(like.detach(), width).clone(), persistent=False)

    def forward(self, before: Tensor, inputs: Tensor) -> Tensor:
        return self.phi.units(before, inputs, self.table, self.how)


def _specification(network: Any) -> tuple[Specification, Sequence[float] | None, bool]:
    """The network, its learning-rate multipliers, and whether it lives on the sphere."""
    if isinstance(network, Specification):
        return network, None, False
    if isinstance(network, Twin):
        return network.network, network.learning_rates, network.normalise
    raise InvalidInputError(f"nn.ENN takes a notsodeep.ENN specification or a twin, got {network!r}")


def _widths(width: int | Sequence[int], depth: int) -> tuple[int, ...]:
    widths = tuple(width) if isinstance(width, list | tuple) else (width,) * depth
    if len(widths) != depth:
        raise InvalidInputError(f"width must be one number or one per layer ({depth}), got {len(widths)} of them")
    return tuple(whole("width", w) for w in widths)
