"""Leaky-ReLU layers mu x + nu |x|, centred: closed forms, and the scalar equation of two layers.

With shares p and u = mu^2 / E[sigma^2] of the linear parts of the layers, and F = 1 / (pi - 2), the CK has, in units
of its diagonal, c1 tau0^2 = u p, 2 c2 tau0^4 = F (1 - u p), c3 tau0^4 = F (u (1 - p) + (1 - u) p^2): c2 is decided by
c1, as it is for (Leaky-)ReLU DEQs and no others. What is left is one equation for u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from ..._arrays import Array
from ...activations import Activation, LeakyReLU
from ...kernels.jets import TERMS, LayerJet, layer_of
from ...networks import ENN
from .._limits import LIMITS
from ..solver import Draft, best_of, refusal, solve
from ..target import Target, make_target
from .odd import linear_layer

F = 1.0 / (math.pi - 2.0)


@dataclass(frozen=True)
class LeakyDesign:
    """z = (mu, nu) per layer, the last in units of ``size``, then the logarithms of the rates where they are free."""

    depth: int
    size: float
    free_rates: bool = False

    def _halves(self, z: Array) -> list[tuple[Array, Array]]:
        """Return (mu, nu) per layer."""
        units = [*[1.0] * (self.depth - 1), self.size]
        return [(unit * z[..., 2 * i], unit * z[..., 2 * i + 1]) for i, unit in enumerate(units)]

    def layers(self, z: Array) -> list[LayerJet]:
        absolute = layer_of(LeakyReLU(slope=-1.0), 1.0, TERMS + 2)
        return [absolute.with_line(nu, mu) for mu, nu in self._halves(z)]

    def rates(self, z: Array) -> Array | None:
        return np.exp(z[..., 2 * self.depth :]) if self.free_rates else None

    def activations(self, z: Array, tau0: float) -> list[Activation]:
        """Return layers of which all but the last keep the scale; mu, nu >= 0, so that gain >= |slope|."""
        out: list[Activation] = []
        for number, (mu, nu) in enumerate(self._halves(z), 1):
            factor = 1.0 / tau0 if number == self.depth else 1.0
            m, n = factor * abs(float(mu)), factor * abs(float(nu))
            out.append(LeakyReLU(slope=m - n, gain=m + n))
        return [phi.centred(at=tau0) for phi in out]


def leaky_relu(target: Target) -> Draft:
    """Design one layer, two of a CK, or two with learning rates of an NTK."""
    if (linear := linear_layer(target)) is not None:
        layer = LeakyReLU(slope=linear.slope, gain=linear.slope)
        return Draft(ENN([layer]), "leaky_relu", f"{target.depth_reason}; the DEQ is linear")
    if target.even:
        raise refusal("Leaky-ReLU layers are for DEQs with a linear part (c1 > 0)", "Use family='hermite'")
    ck = make_target(target.deq, target.tau0, "ck") if target.tangent else target
    _check_homogeneous(ck)
    if target.one_layer:
        start = np.array(_halves(target.normalised[0]))  # c2 and c3 are then checked by the certificate
        solution = solve(target, LeakyDesign(1, target.size), start)
        return solution.draft("leaky_relu", target.depth_reason)
    shares = _shares(ck)
    if not target.tangent:
        solution = solve(target, LeakyDesign(2, target.size), _packed(shares))
        return solution.draft("leaky_relu", f"{target.depth_reason}; the DEQ is homogeneous, as Leaky-ReLU is")
    # two layers have three free numbers and an NTK asks four, so learning rates are needed
    design = LeakyDesign(2, target.size, free_rates=True)
    # a curved layer 1 takes up to twice what the first order gives to W_2
    less = 1.0 - 2.0 * (1.0 - target.rates_at_first_order()[2] / (2.0 if target.kernel == "ntk_frozen" else 3.0))
    starts = [_tangent_start(target, ck, shares, readout) for readout in (None, less)]
    solution = best_of([solve(target, design, start) for start in starts])
    return solution.draft(
        "leaky_relu", f"{target.depth_reason}; Leaky-ReLU reaches the NTK with one learning rate per matrix"
    )


FAMILIES = {"leaky_relu": leaky_relu}


def _shares(target: Target) -> tuple[float, float]:
    """Return (p, u) of the two-layer CK twin, on the branch where layer 1 is the more linear one.

    That branch continues the design that copies the DEQ's equation: as sigma_a2 -> 0, layer 1 becomes linear.
    """
    t1, _, t3 = target.normalised

    def bend(u: float) -> float:
        return u - t1 + (1.0 - u) * (t1 / u) ** 2 - t3 / F

    low = minimize_scalar(bend, bounds=(t1, 1.0), method="bounded", options={"xatol": 1e-12})
    if bend(low.x) > 0.0 or bend(t1) < 0.0:
        side = "small" if bend(low.x) > 0.0 else "large"
        raise refusal(
            f"two Leaky-ReLU layers reach c3 tau0^4/diagonal in [{F * bend(low.x) + t3:.6g}, {F * (1.0 - t1):.6g}] at "
            f"this c1; the DEQ has {t3:.6g}, too {side}",
            "Use family='hermite'",
        )
    u = float(brentq(bend, t1, low.x, xtol=1e-16, rtol=8.9e-16))
    return t1 / u, u


def _check_homogeneous(ck: Target) -> None:
    """Refuse what only homogeneous DEQs meet; of an NTK the CK decides."""
    t1, t2, _ = ck.normalised
    gap = abs(2.0 * t2 - F * (1.0 - t1)) / max(2.0 * t2, LIMITS.smallest_number)
    if gap > LIMITS.feasible:
        raise refusal(
            "Leaky-ReLU layers force 2 (pi - 2) c2 tau0^4 + c1 tau0^2 = diagonal, which only (Leaky-)ReLU DEQs meet; "
            f"here c2 would have to change by {100 * gap:.3g} %",
            "Use family='hermite'",
            gap,
        )


def _packed(shares: tuple[float, float]) -> Array:
    """Return the two layers of the CK's twin in units of the diagonal's root."""
    return np.array([*_halves(shares[0]), *_halves(shares[1])])


def _halves(p: float) -> tuple[float, float]:
    """Return (mu, nu) of a layer with share p; Var |xi| = 1 - 2 / pi."""
    return math.sqrt(p), math.sqrt(max(1.0 - p, 0.0) / (1.0 - 2.0 / math.pi))


def _tangent_start(target: Target, ck: Target, shares: tuple[float, float], readout: float | None) -> Array:
    """Return the CK's twin, its last layer shrunk to share c1 among the trained matrices, and rates that fit c1."""
    z = _packed(shares)
    total = target.normalised[0] / ck.normalised[0]
    rates = target.rates_at_first_order(readout)
    trained = sum(rates[1:]) if target.kernel == "ntk_frozen" else sum(rates)
    z[2:] *= math.sqrt(total / trained)
    return np.concatenate([z, np.log(np.array(rates))])
