"""What must be known of somebody else's DEQ to design its twin, and how it is measured.

The convention is h = phi(W h + U x + b), outputs = R h + r: any factor in front of phi belongs into W and R.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from .._arguments import check_settings, checked
from ..activations import activation
from ..errors import InvalidInputError, warn
from ..networks import DEQ as Specification
from .deq import DEQ, power_iteration


@dataclass(frozen=True)
class DEQParts:
    """What :func:`twin_of` must know of a DEQ h = phi(W h + U x + b), outputs R h + r.

    Give it to ``twin_of(module, X, parts=...)``, or let the module have a method ``deq_parts()`` that returns it.

    Parameters
    ----------
    recurrent : W, shape (width, width)
    input : U, shape (width, in_features)
    activation : an :class:`Activation`, its name, a torch module such as ``nn.Tanh()``, or a function
    readout : R, shape (out_features, width), if there is one
    bias : b, shape (width,), if there is one; the twin is then one layer, whose kernel holds it
    readout_bias : r, shape (out_features,)

    A factor in front of phi belongs into W and R: z = s phi(W z + U x), y = R z is DEQParts(s * W, U, phi, s * R).

    >>> DEQParts(torch.eye(2) / 4, torch.ones(2, 3), "tanh", readout=torch.ones(1, 2)).readout.shape
    torch.Size([1, 2])
    """

    recurrent: Tensor
    input: Tensor
    activation: Any
    readout: Tensor | None = None
    bias: Tensor | None = None
    readout_bias: Tensor | None = None

    def __post_init__(self) -> None:
        check_settings(self)
        m = self.recurrent.shape[0]
        if self.recurrent.ndim != 2 or self.recurrent.shape != (m, m):
            raise InvalidInputError(f"the recurrent weight must be square, got shape {tuple(self.recurrent.shape)}")
        if self.input.ndim != 2 or self.input.shape[0] != m:
            raise InvalidInputError(f"the input weight must have {m} rows, got shape {tuple(self.input.shape)}")
        if self.readout is not None and (self.readout.ndim != 2 or self.readout.shape[1] != m):
            raise InvalidInputError(f"the readout must have {m} columns, got shape {tuple(self.readout.shape)}")
        outputs = None if self.readout is None else self.readout.shape[0]
        if self.readout_bias is not None and (outputs is None or self.readout_bias.shape != (outputs,)):
            raise InvalidInputError(
                f"the readout's bias must have one entry per output ({outputs or 'there is no readout'}), got shape "
                f"{tuple(self.readout_bias.shape)}"
            )
        if self.bias is not None and self.bias.shape != (m,):
            raise InvalidInputError(f"the bias must have {m} entries, got shape {tuple(self.bias.shape)}")

    @staticmethod
    @checked
    def from_layers(
        recurrent: nn.Linear, input: nn.Linear, activation: Any, readout: nn.Linear | None = None, scale: float = 1.0
    ) -> DEQParts:
        """From linear layers, as modules built with torchdeq hold them: z = scale * phi(recurrent(z) + input(x)).

        All biases are taken over; those inside the equilibrium add up.
        """
        inside = [layer.bias.detach() for layer in (recurrent, input) if layer.bias is not None]
        out = None if readout is None else scale * readout.weight.detach()
        last = None if readout is None or readout.bias is None else readout.bias.detach()
        weights = scale * recurrent.weight.detach(), input.weight.detach()
        return DEQParts(*weights, activation, out, torch.stack(inside).sum(0) if inside else None, last)


@runtime_checkable
class HasDEQParts(Protocol):
    """A module that says itself what its DEQ consists of."""

    def deq_parts(self) -> DEQParts: ...


def parts_of(module: Any) -> DEQParts:
    """The parts of our own DEQ, of a module with a method ``deq_parts()``, or the given parts themselves."""
    if isinstance(module, DEQParts):
        return module
    if isinstance(module, DEQ):
        return DEQParts(
            math.sqrt(module.spec.variances[0] / module.width) * module.recurrent.detach(),
            math.sqrt(module.spec.variances[1]) * module.input.detach(),
            module.spec.activation,
            module.readout.detach() / math.sqrt(module.width),
            None if module.offset is None else math.sqrt(module.spec.variances[2]) * module.offset.detach(),
            None if module.bias is None else module.bias.detach(),
        )
    if isinstance(module, HasDEQParts):
        return module.deq_parts()
    raise InvalidInputError(
        f"cannot tell what the DEQ inside {type(module).__name__} consists of; pass parts=DEQParts(recurrent, input, "
        "activation), build them with DEQParts.from_layers, or give the module a method deq_parts()"
    )


@dataclass(frozen=True)
class Measured:
    """The specification that a DEQ's weights and data amount to.

    ``excess`` is |W| over 2 sigma_a, its value for independent entries at large width: far above one, training has
    left a structure in W that no random network shares. ``mean_share`` is |E x|^2 / E|x|^2, zero for centred data.
    """

    spec: Specification
    tau0: float
    width: int
    excess: float
    mean_share: float


def measure(parts: DEQParts, X: Tensor) -> Measured:
    """sigma_a2 = m mean W_ij^2, sigma_b2 = mean U_ij^2, sigma_c2 = mean b_i^2, tau0^2 = mean |x|^2.

    Warns where the theory does not apply.
    """
    width = parts.recurrent.shape[0]
    if X.shape[1] != parts.input.shape[1]:
        raise InvalidInputError(f"the DEQ takes {parts.input.shape[1]} features, X has {X.shape[1]}")
    sigma_a2 = width * float(parts.recurrent.double().square().mean())
    sigma_b2 = float(parts.input.double().square().mean())
    tau0 = math.sqrt(float(X.double().square().sum(1).mean()))
    if tau0 == 0.0:
        raise InvalidInputError("every row of X is zero: tau0 cannot be measured")
    norm, _ = power_iteration(parts.recurrent)
    excess = norm / (2.0 * math.sqrt(sigma_a2)) if sigma_a2 > 0 else 1.0
    share = float(X.double().mean(0).square().sum()) / tau0**2
    sigma_c2 = 0.0 if parts.bias is None else float(parts.bias.double().square().mean())
    level = 0.0 if parts.bias is None else float(parts.bias.double().mean())
    spec = Specification(activation(parts.activation), sigma_a2, sigma_b2, sigma_c2)
    _warn(spec, excess, share, level if level**2 > max(0.5, 8.0 / width) * sigma_c2 else 0.0)  # not by chance
    return Measured(spec, tau0, width, excess, share)


def _warn(spec: Specification, excess: float, share: float, level: float) -> None:
    said = {
        f"sigma_a2 = {spec.variances[0]:.3g} is not below {spec.limit:.3g}: this DEQ's equilibrium need not be unique, "
        "and no theorem covers it; the twin is that of the infinite-width kernel, where this exists": (
            spec.variances[0] >= spec.limit
        ),
        f"the recurrent weight's norm is {excess:.2f} times that of random weights of the same variance: training has "
        "given it structure, which the twin's kernel does not know; expect the distilled twin to keep less": (
            excess > 1.5
        ),
        f"the bias has mean {level:.3g} over the units, more than its spread: the theory takes biases with mean zero; "
        "move the mean into the activation, phi(u + mean)": level != 0.0,
        f"{share:.0%} of the data's mean square lies in its mean; centre the data (notsodeep.standardise)": share > 0.5,
    }
    for message in (text for text, holds in said.items() if holds):
        warn(message)
