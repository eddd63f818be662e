"""What a twin must reach: the four numbers of a kernel, in units of tau0, and the orders beyond them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from .._arrays import Array
from ..equivalents import Coefficients, coefficients
from ..errors import ContractionError, InvalidInputError
from ..kernels.jets import DEGREE, MONOMIALS, KernelJet, index, layer_of, network_jets
from ..mixtures import MixtureStatistics
from ..networks import DEQ, ENN, Kernel, check_tau0, is_tangent
from ._limits import LIMITS

FOUR = (index(0, 0, 1), index(1, 1, 0), index(0, 0, 2))  # c1 tau0^2, c2 tau0^4, c3 tau0^4 within a jet
_BEYOND = [i for i, m in enumerate(MONOMIALS) if sum(m) > 0 and i not in FOUR]
_WEIGHTS = LIMITS.off_diagonal * LIMITS.fluctuation ** np.array([sum(MONOMIALS[i]) for i in _BEYOND], dtype=float)
_LINE_WEIGHTS = LIMITS.fluctuation ** np.arange(1.0, DEGREE)


@dataclass(frozen=True)
class Target:
    """A centred DEQ and what follows from it for one kernel: its four numbers and its jet."""

    deq: DEQ
    tau0: float
    kernel: Kernel
    numbers: Coefficients = field(compare=False)
    jet: KernelJet = field(compare=False)

    @property
    def tangent(self) -> bool:
        """True for the NTKs."""
        return is_tangent(self.kernel)

    @property
    def size(self) -> float:
        """The root of the kernel's diagonal, which is the unit of the last layer."""
        return math.sqrt(self.numbers.diagonal)

    @property
    def normalised(self) -> tuple[float, float, float]:
        """(c1 tau0^2, c2 tau0^4, c3 tau0^4) / diagonal, which decide what is feasible."""
        c, t2 = self.numbers, self.tau0**2
        return c.c1 * t2 / c.diagonal, c.c2 * t2**2 / c.diagonal, c.c3 * t2**2 / c.diagonal

    @property
    def odd(self) -> bool:
        """The centred activation has no even part at this scale: c2 = c3 = 0."""
        return max(self.normalised[1:]) <= LIMITS.zero

    @property
    def even(self) -> bool:
        """The centred activation has no linear part at this scale: c1 = 0."""
        return self.normalised[0] <= LIMITS.zero

    @property
    def one_layer(self) -> bool:
        """The depth rule: one layer forces c2 = c3/2 (CK, frozen NTK) or c2 = c3/6 (NTK): theory, section 6."""
        _, c2, c3 = self.normalised
        return abs((6.0 if self.kernel == "ntk" else 2.0) * c2 - c3) <= LIMITS.feasible * max(
            c3, LIMITS.smallest_number
        )

    @property
    def depth_reason(self) -> str:
        """Why the twin has one layer or two, in words."""
        if self.odd:
            return "one layer: the centred activation is odd at this scale (c2 = c3 = 0)"
        rule = "c3/6" if self.kernel == "ntk" else "c3/2"
        if self.one_layer:
            return f"one layer: c2 = {rule}"
        _, c2, c3 = self.normalised
        return f"two layers: one layer forces c2 = {rule}, the DEQ has c2/c3 = {c2 / max(c3, 1e-300):.6g}"

    def rates_at_first_order(self, readout: float | None = None) -> tuple[float, float, float]:
        """Return learning rates with which a nearly linear layer 1 and a curved layer 2 reach c2 and c3 of an NTK.

        To first order in the curvature s, v of the two layers, and with rates of sum 1, 2 c2 = r3 (s + v) + r2 s and
        c3 = r3 (s + v) + r2 (s + 2 v) + 2 r1 (s + v); at s = 0 this gives r3 = 2 / (1 + c3 / (2 c2)). What the diagonal
        then asks of the higher orders is not negative, for any DEQ: the rest of a series with no negative coefficient.
        """
        _, c2, c3 = self.normalised
        if readout is None:
            # where c3 < 2 c2 the first order asks for all of it: leave the other matrices a little
            readout = 2.0 / (1.0 + c3 / (2.0 * c2))
            readout = readout if readout < 0.99999 else 0.98
        hidden = 1.0 - readout
        if self.kernel == "ntk_frozen":
            return (1.0, 2.0 * hidden, 2.0 * readout)
        return (1.5 * hidden, 1.5 * hidden, 3.0 * readout)

    def equations(self, jet: KernelJet) -> Array:
        """Return relative deviations of the four numbers, on the last axis."""
        floor = LIMITS.smallest_number * self.jet.diagonal[0]
        parts = [(jet.cross[..., i] - self.jet.cross[i]) / max(self.jet.cross[i], floor) for i in FOUR]
        return np.stack([*parts, jet.diagonal[..., 0] / self.jet.diagonal[0] - 1.0], axis=-1)

    def beyond(self, jet: KernelJet) -> Array:
        """Return weighted deviations of the orders beyond the four numbers; their sum of squares is minimised."""
        unit = self.jet.diagonal[0]
        cross = (jet.cross[..., _BEYOND] - self.jet.cross[_BEYOND]) * (_WEIGHTS / unit)
        line = (jet.diagonal[..., 1:DEGREE] - self.jet.diagonal[1:DEGREE]) * (_LINE_WEIGHTS / unit)
        return np.concatenate([cross, line], axis=-1)

    def cost(self, jet: KernelJet) -> Array:
        """Return the sum of squares of :meth:`beyond`: about the square of the relative distance of the kernels."""
        return np.asarray((self.beyond(jet) ** 2).sum(-1))

    def jet_of(self, network: ENN, rates: tuple[float, ...] | None = None) -> KernelJet:
        """Return the jet of a finished network, for the kernel of this target."""
        return network_jets(network, self.tau0, (self.kernel,), rates)[self.kernel]

    def achieved(self, network: ENN, rates: tuple[float, ...] | None) -> Coefficients:
        """Return the numbers of a finished network, by quadrature of its own activations at its own scales."""
        return replace(coefficients(network, self.tau0, self.kernel, learning_rates=rates), network=network)

    def residual(self, achieved: Coefficients) -> float:
        """Return the largest relative deviation of the numbers."""
        units = self.tau0 ** np.array([2.0, 4.0, 4.0, 0.0])
        wanted, have = np.array(self.numbers.four) * units, np.array(achieved.four) * units
        scale = np.maximum(wanted, LIMITS.smallest_number * self.numbers.diagonal)
        return float((np.abs(have - wanted) / scale).max())


def make_target(deq: DEQ, statistics: MixtureStatistics | float, kernel: Kernel) -> Target:
    """Validate the request and compute what has to be matched."""
    tau0 = check_tau0(statistics.tau0 if isinstance(statistics, MixtureStatistics) else statistics)
    deq = deq.detached()
    deq.check_driven()
    _check_equations(deq, tau0)
    centred = deq.centred(tau0)
    jet = network_jets(deq, tau0, (kernel,))[kernel]
    numbers = replace(coefficients(deq, tau0, kernel), network=centred)
    if not (np.isfinite(numbers.four).all() and numbers.diagonal > 0):
        raise InvalidInputError(
            f"{deq!r} has no finite, positive {kernel} at tau0 = {tau0}: a constant or jumping activation"
        )
    return Target(centred, tau0, kernel, numbers, jet)


def _check_equations(deq: DEQ, tau0: float) -> None:
    """Refuse unstable equations: a contraction suffices, but polynomials have no Lipschitz constant."""
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
