"""What a twin must reach: the four numbers per kernel, in units of tau0, and the orders beyond them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..equivalents import Coefficients, coefficients
from ..errors import ContractionError, InvalidInputError
from ..kernels import jets as around
from ..kernels.jets import DEGREE, KernelJet, implicit_jets, index, layer_of, monomials
from ..mixtures import MixtureStatistics
from ..networks import DEQ, ENN, SCALES, Kernel, is_tangent
from .names import MatchKernel, kernel_names

Array = NDArray[Any]

FOUR = (index(0, 0, 1), index(1, 1, 0), index(0, 0, 2))  # c1 tau0^2, c2 tau0^4, c3 tau0^4 within a jet
FLOOR = 1e-4
"""Numbers below FLOOR times the diagonal are compared on the scale FLOOR * diagonal: the kernel hardly sees them."""
FEASIBLE = 1e-11
"""A design is accepted if its equations hold to this relative residual."""
ACCEPTED = 1e-9
"""A finished network is certified if its own numbers, by quadrature, deviate by no more than this."""
PARITY = 1e-13
"""A number below this fraction of the diagonal is zero: the activation is odd (c2, c3) or even (c1)."""


# Expected size of a relative fluctuation of norms and of a correlation (the papers' mixture, p = 1000: 0.11 and 0.06),
# and how much more an off-diagonal deviation weighs than one on the diagonal (it adds up over the points of a class).
_FLUCTUATION = 0.1
_OFF_DIAGONAL = 20.0
_BEYOND = tuple(i for i, m in enumerate(monomials()) if sum(m) > 0 and i not in FOUR)
_WEIGHTS = _OFF_DIAGONAL * _FLUCTUATION ** np.array([sum(monomials()[i]) for i in _BEYOND], dtype=float)
_LINE_WEIGHTS = _FLUCTUATION ** np.arange(1.0, DEGREE)


@dataclass(frozen=True)
class Target:
    """The DEQ to match, and what follows from it: its numbers and its jets, one per kernel."""

    deq: DEQ
    tau0: float
    kernel: MatchKernel
    numbers: tuple[Coefficients, ...] = field(compare=False)
    jets: tuple[KernelJet, ...] = field(compare=False)

    @property
    def names(self) -> tuple[Kernel, ...]:
        return kernel_names(self.kernel)

    @property
    def tangent(self) -> bool:
        """True if an NTK is among the kernels."""
        return is_tangent(self.kernel)

    @property
    def size(self) -> float:
        """The root of the (first) kernel's diagonal: the unit of the last layer."""
        return math.sqrt(self.numbers[0].diagonal)

    @property
    def normalised(self) -> tuple[tuple[float, float, float], ...]:
        """(c1 tau0^2, c2 tau0^4, c3 tau0^4) / diagonal, per kernel: what decides feasibility."""
        t2 = self.tau0**2
        return tuple(
            (c.c1 * t2 / c.diagonal, c.c2 * t2**2 / c.diagonal, c.c3 * t2**2 / c.diagonal) for c in self.numbers
        )

    @property
    def odd(self) -> bool:
        """The centred activation has no even part at this scale: c2 = c3 = 0."""
        return all(max(c2, c3) <= PARITY for _, c2, c3 in self.normalised)

    @property
    def even(self) -> bool:
        """The centred activation has no linear part at this scale: c1 = 0."""
        return all(c1 <= PARITY for c1, _, _ in self.normalised)

    @property
    def one_layer(self) -> bool:
        """The depth rule: one layer forces c2 = c3/2 (CK, frozen NTK) or c2 = c3/6 (NTK): theory, section 6."""
        return all(
            abs((6.0 if name == "ntk" else 2.0) * c2 - c3) <= FEASIBLE * max(c3, FLOOR)
            for name, (_, c2, c3) in zip(self.names, self.normalised, strict=True)
        )

    def rates_at_first_order(self, readout: float | None = None) -> tuple[float, float, float]:
        """Learning rates with which a nearly linear layer 1 and a curved layer 2 reach c2 and c3 of an NTK.

        To first order in the curvature s, v of the two layers, and with rates of sum 1, 2 c2 = r3 (s + v) + r2 s and
        c3 = r3 (s + v) + r2 (s + 2 v) + 2 r1 (s + v); at s = 0 this gives r3 = 2 / (1 + c3 / (2 c2)). What the diagonal
        then asks of the higher orders is not negative, for any DEQ: the rest of a series with no negative coefficient.
        """
        if self.kernel == "both":
            return (0.5, 0.5, 1.0)
        _, c2, c3 = self.normalised[0]
        if readout is None:
            # where c3 < 2 c2 the first order asks for all of it: leave the other matrices a little
            readout = 2.0 / (1.0 + c3 / (2.0 * c2))
            readout = readout if readout < 0.99999 else 0.98
        rest = 1.0 - readout
        if self.kernel == "ntk_frozen":
            return (1.0, 2.0 * rest, 2.0 * readout)
        return (1.5 * rest, 1.5 * rest, 3.0 * readout)

    def equations(self, jets: dict[Kernel, KernelJet]) -> Array:
        """Relative deviation of the four numbers, kernel after kernel, on the last axis."""
        parts = []
        for name, wanted in zip(self.names, self.jets, strict=True):
            got, floor = jets[name], FLOOR * wanted.diagonal[0]
            for i in FOUR:
                parts.append((got.cross[..., i] - wanted.cross[i]) / max(wanted.cross[i], floor))
            parts.append(got.diagonal[..., 0] / wanted.diagonal[0] - 1.0)
        return np.stack(parts, axis=-1)

    def beyond(self, jets: dict[Kernel, KernelJet]) -> Array:
        """Weighted deviation of the orders beyond the four numbers; its squared norm is what freedom is spent on."""
        parts = []
        for name, wanted in zip(self.names, self.jets, strict=True):
            got, g = jets[name], wanted.diagonal[0]
            parts.append((got.cross[..., _BEYOND] - wanted.cross[list(_BEYOND)]) * (_WEIGHTS / g))
            parts.append((got.diagonal[..., 1:DEGREE] - wanted.diagonal[1:DEGREE]) * (_LINE_WEIGHTS / g))
        return np.concatenate(parts, axis=-1)


def make_target(deq: DEQ, statistics: MixtureStatistics | float, kernel: MatchKernel) -> Target:
    """Validate the request and compute what has to be matched."""
    names = kernel_names(kernel)
    tau0 = input_scale(statistics)
    deq.check_driven()
    _check_equations(deq, tau0)
    centred = deq.centred(tau0)
    jets = implicit_jets(deq, tau0, names)
    numbers = tuple(replace(coefficients(deq, tau0, name), network=centred) for name in names)
    if not all(np.isfinite(c.four).all() and c.diagonal > 0 for c in numbers):
        raise InvalidInputError(
            f"{deq!r} has no finite, positive {kernel} at tau0 = {tau0}: a constant or jumping activation"
        )
    return Target(centred, tau0, kernel, numbers, tuple(jets[name] for name in names))


def input_scale(statistics: MixtureStatistics | float) -> float:
    """tau0, from statistics or given as a number."""
    tau0 = statistics.tau0 if isinstance(statistics, MixtureStatistics) else statistics
    if not SCALES[0] <= tau0 <= SCALES[1]:
        raise InvalidInputError(
            f"match takes MixtureStatistics or a positive tau0 from {SCALES[0]:.0e} to {SCALES[1]:.0e}, got tau0 = "
            f"{tau0!r}; scale the inputs, for example by nsd.standardise"
        )
    return float(tau0)


def _check_equations(deq: DEQ, tau0: float) -> None:
    """A contraction suffices; beyond it (polynomials have no Lipschitz constant) the equations must be stable."""
    if deq.variances[0] < deq.limit:
        return
    c = coefficients(deq, tau0, "ck")
    layer = layer_of(deq.activation, float(c.tau_star or 0.0))
    rates = [
        deq.variances[0] * value / float(c.tau_star or 1.0) ** 2 for value in (layer.square[1], layer.slope_square[0])
    ]
    if max(rates) >= 1.0:
        raise ContractionError(
            f"sigma_a2 = {deq.variances[0]:.6g} is beyond the range of {deq.activation!r}: the kernel equations at "
            f"tau0 = {tau0:.6g} have the rate of change {max(rates):.4g}, which must stay below 1. Lower sigma_a2"
        )


def achieved(target: Target, network: ENN, rates: tuple[float, ...] | None) -> tuple[Coefficients, ...]:
    """The numbers of a finished network, by exact quadrature of its own activations at its own scales."""
    found = [replace(coefficients(network, target.tau0, name), network=network) for name in target.names]
    if rates is not None:
        jets, unit = network_jets(target, network, rates), target.tau0 ** np.array([2.0, 4.0, 4.0])
        for i, name in enumerate(target.names):
            c1, c2, c3 = (jets[name].cross[list(FOUR)] / unit).tolist()
            found[i] = replace(found[i], c1=c1, c2=c2, c3=c3, diagonal=float(jets[name].diagonal[0]))
    return tuple(found)


def network_jets(target: Target, network: ENN, rates: tuple[float, ...] | None = None) -> dict[Kernel, KernelJet]:
    """The jets of a finished network, for the kernels of the target."""
    return around.network_jets(network, target.tau0, target.names, rates)


def residual_of(target: Target, got: tuple[Coefficients, ...]) -> float:
    """The largest relative deviation of the numbers."""
    worst = 0.0
    for wanted, have in zip(target.numbers, got, strict=True):
        units = np.array([target.tau0**2, target.tau0**4, target.tau0**4, 1.0])
        scale = np.maximum(np.array(wanted.four) * units, FLOOR * wanted.diagonal)
        worst = max(worst, float(np.abs((np.array(have.four) - np.array(wanted.four)) * units / scale).max()))
    return worst
