"""From a DEQ to its explicit twin: measure, design, build, and hand the behaviour over."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._equilibrium import SolverOptions
from .._words import Init
from ..activations import activation
from ..errors import InfeasibleMatchError, InvalidInputError
from ..gaussian import moments
from ..matching import Twin, match_one_layer, norm_range
from ..matching.match import match
from ..networks import DEQ
from ..networks import ENN as ENNSpec
from .enn import ENN
from .foreign import DEQParts, Measured, measure, parts_of
from .implicit import find_equilibrium
from .model import as_inputs, as_pair, compute_features, evaluating, hold_out, in_batches, one_hot, set_readout
from .train import fit

Design = Literal["auto", "match", "uniform"]


@dataclass(frozen=True)
class Distillation:
    """How well a twin stands in for its DEQ, on rows that were not used to fit it.

    ``agreement`` is the share of rows with the same predicted class (None for a single output), ``error`` the
    relative root mean square difference of the outputs; accuracies are those against y where it was given.
    """

    model: ENN
    agreement: float | None
    error: float
    rows: int
    deq_accuracy: float | None = None
    twin_accuracy: float | None = None

    @property
    def accuracy_kept(self) -> float | None:
        """The twin's accuracy over the DEQ's."""
        if self.deq_accuracy is None or self.twin_accuracy is None or self.deq_accuracy == 0.0:
            return None
        return self.twin_accuracy / self.deq_accuracy

    def __str__(self) -> str:
        lines = [f"on {self.rows} rows the twin did not see: relative error of the outputs {self.error:.3f}"]
        if self.agreement is not None:
            lines.append(f"same prediction as the DEQ  {self.agreement:.2%}")
        if self.deq_accuracy is not None and self.twin_accuracy is not None:
            lines.append(f"accuracy  DEQ {self.deq_accuracy:.2%}, twin {self.twin_accuracy:.2%}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Conversion:
    """A DEQ's twin: what was measured, what was designed, the network that runs, and how well it does.

    ``plain`` is the baseline: random features of the same size with the DEQ's own activation, fitted in the same way.
    A twin has the kernel of the random DEQ, so it can replace random features; what training wrote into a DEQ's hidden
    weights it does not know, and ``distil`` with epochs is the way to that. Calling a conversion calls the network.
    """

    measured: Measured
    twin: Twin
    model: ENN
    distillation: Distillation | None
    plain: Distillation | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return self.model(x)

    def __str__(self) -> str:
        seen = self.measured
        lines = [f"measured  {seen.spec!r}, tau0 = {seen.tau0:.6g}, width {seen.width}", str(self.twin)]
        lines += [] if self.distillation is None else [str(self.distillation)]
        if self.plain is not None:
            same = "" if self.plain.agreement is None else f", same prediction {self.plain.agreement:.2%}"
            lines.append(f"a plain network of this size, fitted alike: relative error {self.plain.error:.3f}{same}")
        return "\n".join(lines)


@checked
def twin_of(
    module: Any,
    X: Any,
    y: Any = None,
    *,
    parts: DEQParts | None = None,
    kernel: str = "ck",
    design: Design = "auto",
    ridge: float = 1e-4,
    holdout: float = 0.2,
    seed: int = 0,
    init: Init = "gaussian",
) -> Conversion:
    """The explicit twin of a user's DEQ, of the same width, its readout fitted to the DEQ's outputs (or to ``y``).

    Parameters
    ----------
    module : an ``nn.DEQ``, a module with a method ``deq_parts()``, :class:`DEQParts`, or any module with ``parts``
    X, y : data of the kind the DEQ is used on; with ``y`` the readout is fitted to it, else to the module's outputs
    kernel : ``"ck"`` if only the readout will train, ``"ntk"`` or ``"ntk_frozen"`` if more will
    design : ``"match"`` (at the data's tau0; the centred DEQ), ``"uniform"`` (for all inputs of the data's norms; the
        DEQ as it is, with its bias if it has one), or ``"auto"``: matched if phi has mean zero at the data's scale, as
        odd and centred activations do, and there is no bias, else uniform, which is one layer
    ridge, holdout, seed : see :func:`distil`; the seed is also that of the twin's weights
    init : of the twin's weights, ``"gaussian"`` or ``"orthogonal"``, see :class:`ENN`
    """
    found = parts_of(module) if parts is None else parts
    inputs = as_inputs(X, found.input)
    measured = measure(found, inputs)
    outputs = _outputs(module, found)
    if isinstance(module, nn.Module) and found.readout is not None:
        _check_parts(module, found, inputs[:16])
    twin = _design(measured, inputs, kernel, design)
    size = 1 if outputs is None else outputs(inputs[:1]).shape[-1]
    labels = None if y is None else as_pair((inputs, y), inputs)[1]
    if labels is not None and outputs is None:
        size = labels.shape[1] if labels.is_floating_point() else int(labels.max()) + 1
    sizes = (inputs.shape[1], measured.width, size)
    model = ENN(twin, *sizes, seed, init=init, bias=True, dtype=inputs.dtype, device=inputs.device)
    if labels is not None:
        set_readout(model, compute_features(model, inputs), one_hot(labels, size, inputs), ridge)
        return Conversion(measured, twin, model, None)
    if outputs is None:
        return Conversion(measured, twin, model, None)
    baseline = ENNSpec([measured.spec.activation] * model.spec.depth)
    plain = ENN(baseline, *sizes, seed, init=init, bias=True, dtype=inputs.dtype, device=inputs.device)
    reports = [distil(outputs, m, inputs, ridge=ridge, holdout=holdout, seed=seed) for m in (model, plain)]
    return Conversion(measured, twin, model, *reports)


@checked
def distil(
    deq: Callable[[Tensor], Tensor],
    twin: ENN,
    X: Any,
    y: Any = None,
    *,
    ridge: float = 1e-4,
    epochs: int = 0,
    lr: float = 1e-3,
    batch_size: int = 128,
    holdout: float = 0.2,
    seed: int = 0,
) -> Distillation:
    """Fit ``twin`` in place to the outputs of ``deq`` on X: ridge for the readout, then ``epochs`` of Adam on what
    the twin trains. A share ``holdout`` of the rows is kept apart for the report.
    """
    if not 0 < holdout < 1:
        raise InvalidInputError(f"holdout must lie between 0 and 1, got {holdout!r}")
    inputs = as_inputs(X, twin.readout)
    labels = None if y is None else as_pair((inputs, y), inputs)[1]
    targets = _call(deq, inputs)
    if targets.shape != (len(inputs), twin.out_features):
        raise InvalidInputError(
            f"the DEQ gives outputs of shape {tuple(targets.shape)}, the twin has {twin.out_features} outputs"
        )
    train, test = hold_out(len(inputs), holdout, seed)
    set_readout(twin, compute_features(twin, inputs[train]), targets[train], ridge)
    if epochs:
        pair = (inputs[train], targets[train])
        fit(twin, pair, optimiser="adam", lr=lr, epochs=epochs, batch_size=batch_size, seed=seed)
    return _report(twin, inputs[test], targets[test], None if labels is None else labels[test])


def _report(twin: ENN, inputs: Tensor, targets: Tensor, labels: Tensor | None) -> Distillation:
    outputs = _call(twin, inputs)
    error = float((outputs - targets).norm() / targets.norm().clamp_min(torch.finfo(targets.dtype).tiny))
    several = targets.shape[1] > 1
    agreement = float((outputs.argmax(1) == targets.argmax(1)).double().mean()) if several else None
    if labels is None or labels.is_floating_point() or not several:
        return Distillation(twin, agreement, error, len(inputs))
    right = [float((o.argmax(1) == labels).double().mean()) for o in (targets, outputs)]
    return Distillation(twin, agreement, error, len(inputs), *right)


def _design(measured: Measured, X: Tensor, kernel: Any, design: str) -> Twin:
    if design == "uniform" or (design == "auto" and not _is_centred(measured)):
        return _uniform(measured.spec, X, kernel)
    return match(measured.spec, measured.tau0, kernel=kernel)  # refuses a bias


def _is_centred(measured: Measured) -> bool:
    """Whether E[phi] is below a hundredth of phi's size; sigma_a2 and tau0 are measured, so zero is not to be had.

    A bias correlates all inputs, as a mean of phi does.
    """
    if measured.spec.activation.homogeneity == 1.0 or measured.spec.variances[2] > 0.0:
        return False
    m = moments(measured.spec.activation, measured.spec.centred_scale(measured.tau0))
    return m.mean**2 <= 1e-4 * m.square


def _uniform(spec: DEQ, X: Tensor, kernel: Any) -> Twin:
    """Within the default tolerance, or as near as it gets: ``twin.bound`` says how near."""
    norms = None if spec.homogeneous else norm_range(X.cpu())
    try:
        return match_one_layer(
            spec, kernel, norms, 1e-3, units="conditioned", check=False
        )  # measuring has warned already
    except InfeasibleMatchError as error:
        if error.residual is None:
            raise
        return match_one_layer(spec, kernel, norms, 1.05 * error.residual, units="conditioned", check=False)


def _outputs(module: Any, parts: DEQParts) -> Callable[[Tensor], Tensor] | None:
    """What maps inputs to outputs: the module itself, or the readout on the parts' own equilibrium."""
    if isinstance(module, nn.Module):
        return module
    return None if parts.readout is None else lambda x: solve_parts(parts, x)


def solve_parts(parts: DEQParts, x: Tensor) -> Tensor:
    assert parts.readout is not None
    options = SolverOptions(tol=1e-4)
    drive = nn.functional.linear(x, parts.input, parts.bias)
    found = find_equilibrium(parts.recurrent, drive, 1.0, activation(parts.activation), options)
    found.require(options)
    return nn.functional.linear(found.value, parts.readout, parts.readout_bias)


def _check_parts(module: nn.Module, parts: DEQParts, x: Tensor) -> None:
    """The parts must reproduce the module up to a constant (a bias of the readout), or they are not its parts."""
    theirs, ours = _call(module, x), solve_parts(parts, x)
    theirs, ours = theirs - theirs.mean(0), ours - ours.mean(0)
    distance = float((theirs - ours).norm() / theirs.norm().clamp_min(torch.finfo(theirs.dtype).tiny))
    if not math.isfinite(distance) or distance > 0.05:
        raise InvalidInputError(
            f"the parts do not reproduce the module: their outputs differ by {distance:.1%} on the first rows of X. "
            "Check the activation and its factor: DEQParts holds h = phi(W h + U x + b)"
        )


def _call(function: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    with evaluating(function):
        return in_batches(function, X)
