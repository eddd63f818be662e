"""The explicit network at finite width, what a DEQ becomes; and its forms for ONNX, torch.export and TorchScript."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._arguments import a_path, checked, whole
from .._files import write_with
from .._words import Init
from ..activations import Activation
from ..activations.norm_units import NormUnits
from ..errors import InvalidInputError, MissingExtraError
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

    >>> import notsodeep as nsd, torch
    >>> model = nsd.nn.ENN(nsd.ENN(["tanh"]), in_features=3, width=64, out_features=2, learning_rates=(0.5, 1.0))
    >>> [group["lr"] for group in model.parameter_groups(lr=0.1)]
    [0.05, 0.1]
    """

    spec: Specification

    @checked
    def __init__(
        self,
        network: Specification | Twin,
        in_features: int,
        width: int | Sequence[int],
        out_features: int,
        seed: int = 0,
        *,
        init: Init = "gaussian",
        train: str = "all",
        bias: bool = False,
        learning_rates: Sequence[float] | None = None,
        normalise: bool | None = None,
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
        gaussian = Gaussian(seed, dtype, device)
        draw = gaussian.parameter if init == "gaussian" else gaussian.orthogonal
        sizes = (in_features, *self.widths)
        self.weights = nn.ParameterList(draw(m, k) for k, m in zip(sizes, self.widths, strict=False))
        self.readout = gaussian.parameter(out_features, self.widths[-1])
        self.bias = gaussian.bias(out_features, bias)
        self._scale = 1.0 / math.sqrt(self.widths[-1])
        self._layers = nn.ModuleList(
            NormLayer(phi, self.readout, m) if isinstance(phi, NormUnits) else ElementwiseLayer(phi)
            for phi, m in zip(self.spec.activations, self.widths, strict=True)
        )
        self.set_trained(train)

    # -- evaluation --------------------------------------------------------------------------------------
    def _hidden(self, x: Tensor) -> Tensor:
        check_input(x, self.in_features)
        if self.normalise:
            x = nn.functional.normalize(x, dim=-1)
        for i, (weight, layer) in enumerate(zip(self.weights, self._layers, strict=True)):
            x = x if i == 0 else x / math.sqrt(self.widths[i - 1])  # that of the last layer is ``_scale``
            x = layer(nn.functional.linear(x, weight), x)
        return x

    # -- description -------------------------------------------------------------------------------------
    def hidden_weights(self) -> list[tuple[str, nn.Parameter]]:
        return [(f"weights.{i}", weight) for i, weight in enumerate(self.weights)]

    def _rates(self) -> Mapping[str, float]:
        names = [name for name, _ in self.hidden_weights()] + ["readout"]
        return dict(zip(names, self.learning_rates, strict=True))

    def config(self) -> dict[str, Any]:
        own = {"learning_rates": list(self.learning_rates), "normalise": self.normalise}
        return {"model": "ENN", **super().config(), "width": list(self.widths), **own}


class ElementwiseLayer(nn.Module):
    """An activation of the pre-activations alone."""

    def __init__(self, phi: Activation) -> None:
        super().__init__()
        self.phi = phi

    def forward(self, before: Tensor, inputs: Tensor) -> Tensor:
        return self.phi(before)


class NormLayer(nn.Module):
    """A layer of units that see the norm of their input; its table is a buffer."""

    table: Tensor

    def __init__(self, phi: NormUnits, like: Tensor, width: int) -> None:
        super().__init__()
        self.phi = phi
        self.register_buffer("table", phi.table(like.detach(), width).clone(), persistent=False)

    def forward(self, before: Tensor, inputs: Tensor) -> Tensor:
        return self.phi.units(before, inputs, self.table)


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


# ---- for other runtimes ------------------------------------------------------------------------------------


_IN_ONE_FILE = 1 << 30  # bytes of weights; ONNX holds less than two GiB


def export_program(model: ENN) -> torch.export.ExportedProgram:
    """The network as a ``torch.export`` program with a free batch size."""
    _check(model)
    batch = torch.export.Dim("batch")
    return torch.export.export(model.eval(), (_example(model),), dynamic_shapes={"x": {0: batch}})


def export_onnx(model: ENN, path: str | Path) -> Path:
    """Write the network as ONNX, input ``x`` (batch, in_features), output ``y`` (batch, out_features)."""
    _check(model)
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "onnx")
    path = a_path("path", path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch's exporter about its own internals
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.onnx.export(
            model.eval(),
            (_example(model),),
            dynamo=True,
            input_names=["x"],
            output_names=["y"],
            dynamic_shapes={"x": {0: torch.export.Dim("batch")}},
            verbose=False,
        )
        assert program is not None
        if sum(p.numel() * p.element_size() for p in model.parameters()) > _IN_ONE_FILE:
            program.save(str(path))  # the weights go to a second file that the first one names
        else:
            write_with(path, lambda temporary: program.save(str(temporary)))
    return path


def export_torchscript(model: ENN) -> Any:
    """The network as a traced TorchScript module."""
    _check(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch recommends torch.export; both are offered
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # the sizes it finds are those of the model's tables
        # torch's own check compares names that it changes itself from trace to trace
        return torch.jit.trace(model.eval(), _example(model), check_trace=False)


def _example(model: ENN) -> Tensor:
    return torch.zeros(2, model.in_features, dtype=model.readout.dtype, device=model.readout.device)


def _check(model: Any) -> None:
    if not isinstance(model, ENN):
        raise InvalidInputError(
            f"only an explicit network can be exported, got {type(model).__name__}: a DEQ iterates until its "
            "equilibrium is reached, which no static graph holds. Export its twin (notsodeep.nn.twin_of)"
        )
