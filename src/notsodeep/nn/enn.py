"""The explicit network at finite width, what a DEQ becomes; and its form for ONNX."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from .._arguments import ambient, checked, positive_int
from .._files import write_with
from .._words import Init, Kernel, Parametrisation
from ..activations import Activation
from ..errors import InvalidInputError, MissingExtraError, warn
from ..matching import Twin
from ..networks import ENN as Specification
from ..units.norm_units import NormUnits, outside, row_norms
from .model import LIMITS, Factory, Gaussian, Model, check_input


class ENN(Model):
    """Run x_l = sigma_l(W_l x_{l-1}) / sqrt(m_l), l = 1 ... L, f(x) = a x_L.

    ``torch.compile(model, fullgraph=True)`` and ``torch.export.export(model, (x,))`` take it as it is.

    Parameters
    ----------
    network : notsodeep.ENN or Twin
        The specification. A twin brings its learning-rate multipliers (``learning_rates``, one per weight matrix).
    in_features, out_features : int
        The number of inputs p and of outputs.
    width : int
        The number of units m of every layer.
    seed : int
        The seed of the weights, the same on every device.
    init : {"gaussian", "orthogonal"}
        Independent standard normal hidden weights, or rows of the same distribution that are orthogonal to each other:
        the same kernel at infinite width with smaller fluctuations.
    kernel : {"ntk", "ntk_frozen", "ck"}, optional
        What trains: every weight; every weight but W_1; the readout alone. By default what the twin says
        (``twin.trains``), and every weight of a plain specification.
    bias, parametrisation, **factory
        The options of :class:`DEQ`.

    Examples
    --------
    >>> import notsodeep as nsd, torch
    >>> model = nsd.nn.ENN(nsd.ENN(["tanh"]), in_features=3, width=64, out_features=2)
    >>> model(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    >>> model.learning_rates = (0.5, 1.0)
    >>> [group["lr"] for group in model.parameter_groups(lr=0.1)]
    [0.05, 0.1]
    """

    spec: Specification

    @ambient
    def __init__(
        self,
        network: Specification | Twin,
        in_features: int,
        width: int,
        out_features: int,
        seed: int = 0,
        *,
        init: Init = "gaussian",
        kernel: Kernel | None = None,
        bias: bool = False,
        parametrisation: Parametrisation = "ntk",
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__()
        twin = network if isinstance(network, Twin) else None
        self.spec = network.network if isinstance(network, Twin) else network
        self.learning_rates: Sequence[float] = self.spec.rates(None if twin is None else twin.learning_rates)
        self.in_features = positive_int("in_features", in_features)
        self.out_features = positive_int("out_features", out_features)
        self.width = positive_int("width", width)
        self.parametrisation = parametrisation
        gaussian = Gaussian(seed, parametrisation, **factory)
        draw = gaussian.parameter if init == "gaussian" else gaussian.orthogonal
        inputs = (in_features, *[width] * (self.spec.depth - 1))
        self.weights = nn.ParameterList(draw(width, size) for size in inputs)
        self.readout = gaussian.parameter(out_features, width)
        self.bias = gaussian.bias(out_features, bias)
        span = None if twin is None else twin.certificate.norms
        self._layers = nn.ModuleList(
            UnitLayer(phi, self.readout.detach(), width, span) for phi in self.spec.activations
        )
        self._steep = any(phi.homogeneity is None and phi.polynomial() is not None for phi in self.spec.activations)
        trains = twin.kernel if twin is not None and twin.kernel == "ntk_frozen" else "ntk"
        self.set_kernel(kernel or ("ck" if twin is not None and twin.trains == "readout" else trains))

    def features(self, x: Tensor) -> Tensor:
        check_input(x, self.in_features, self.readout.dtype)
        for weight, layer in zip(self.weights, self._layers, strict=True):
            x = layer(nn.functional.linear(self._spread(x, weight), weight), x) / math.sqrt(len(weight))
        if self._steep and not torch.compiler.is_compiling() and not _is_finite(x):
            raise InvalidInputError(
                f"the polynomial units of this network leave the range of {x.dtype} on these inputs; scale them "
                "(notsodeep.standardise), or use float64"
            )
        return x

    def hidden_weights(self) -> list[tuple[str, nn.Parameter]]:
        return [(f"weights.{i}", weight) for i, weight in enumerate(self.weights)]

    def _rates(self) -> Mapping[str, float]:
        names = [name for name, _ in self.hidden_weights()] + ["readout"]
        return dict(zip(names, self.spec.rates(self.learning_rates), strict=True))

    def config(self) -> dict[str, Any]:
        return {"model": "ENN", **super().config(), "learning_rates": list(self.learning_rates)}


class UnitLayer(nn.Module):
    """The units of one layer. Those that see the norm of their input have a table of constants, which is a buffer."""

    table: Tensor

    def __init__(self, phi: Activation, like: Tensor, width: int, span: tuple[float, float] | None = None) -> None:
        super().__init__()
        self.phi, self.width = phi, width
        self.span = span or (phi.span if isinstance(phi, NormUnits) else None)
        self.silent = self.span is None
        table = phi.table(like, width).clone() if isinstance(phi, NormUnits) else None
        self.register_buffer("table", table, persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> UnitLayer:
        """Make the table anew when the module moves, since a cast to fewer digits and back would round it for good."""
        super()._apply(fn, recurse)
        if isinstance(self.phi, NormUnits):
            self.table = self.phi.table(self.table, self.width).clone()
        return self

    def forward(self, before: Tensor, inputs: Tensor) -> Tensor:
        if not (self.silent or torch.compiler.is_compiling()):
            self._watch(inputs.detach())
        return self.phi.units(before, inputs, self.table) if isinstance(self.phi, NormUnits) else self.phi(before)

    def _watch(self, inputs: Tensor) -> None:
        """Warn once of rows outside the range that the units are made for."""
        if inputs.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        with contextlib.suppress(RuntimeError):  # inside vmap and on meta tensors there are no numbers to look at
            if said := outside(row_norms(inputs), self.span):
                self.silent = True
                warn(said)


def _is_finite(x: Tensor) -> bool:
    try:
        return bool(torch.isfinite(x.detach().sum()))
    except RuntimeError:  # within a vmap there are no numbers to look at
        return True


# ---- for other runtimes ------------------------------------------------------------------------------------


def export_onnx(model: ENN, path: str | Path) -> Path:
    """Write the network as ONNX, input ``x`` (batch, in_features), output ``y`` (batch, out_features).

    Parameters
    ----------
    model : nsd.nn.ENN
    path : str or Path

    Returns
    -------
    Path
        The file that was written.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> model = nsd.nn.ENN(nsd.ENN(["tanh"]), 3, 8, 2)
    >>> nsd.nn.export_onnx(model, "model.onnx")  # doctest: +SKIP
    """
    if not isinstance(model, ENN):
        raise InvalidInputError(
            f"only an explicit network can be exported, got {type(model).__name__}: a DEQ iterates until its "
            "equilibrium is reached, which no static graph holds. Export a twin of it (notsodeep.match_one_layer), or "
            "the student of its replacement (notsodeep.replace)"
        )
    return write_onnx(model, (model.in_features,), path, ["y"])


@checked
def write_onnx(module: nn.Module, shape: tuple[int, ...], path: str | Path, outputs: list[str]) -> Path:
    """Write any module that takes rows of one shape as ONNX with a free batch size."""
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "onnx")
    path = Path(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch's exporter about its own internals
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.onnx.export(
            module.eval(),
            (torch.zeros(2, *shape).to(next(module.parameters())),),
            dynamo=True,
            input_names=["x"],
            output_names=outputs,
            dynamic_shapes={"x": {0: torch.export.Dim("batch")}},
            verbose=False,
        )
        assert program is not None
        if sum(p.numel() * p.element_size() for p in module.parameters()) > LIMITS.onnx_bytes:
            program.save(str(path))  # the weights go to a second file that the first one names
        else:
            write_with(path, lambda temporary: program.save(str(temporary)))
    return path
