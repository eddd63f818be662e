"""Exact equations, minimal next orders: Gauss-Newton within the tangent space of the equations.

The equations are the four numbers of the kernel and the gauge; they are met to rounding. The freedom that is left
minimises :meth:`Target.beyond`, the weighted deviation of the next orders of the kernel's expansion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .._arrays import Array
from ..activations import Activation
from ..errors import InfeasibleMatchError
from ..kernels.jets import KernelJet, LayerJet, explicit_jets
from ..networks import ENN
from ._limits import LIMITS
from .target import Target


def missed(target: Target, what: str, residual: float) -> InfeasibleMatchError:
    """Return the error of a network that does not reach the numbers."""
    return refusal(
        f"the best {what} misses the numbers of {target.deq!r} ({target.kernel}, tau0 = {target.tau0:.6g}) by "
        f"{100 * residual:.3g} %",
        "Use family='auto' or 'hermite'",
        residual,
    )


@dataclass(frozen=True)
class Draft:
    """What a family answers: a finished design before its certificate."""

    network: ENN
    family: str
    reason: str
    rates: tuple[float, ...] | None = None


def refusal(why: str, advice: str = "Use family='auto'", residual: float | None = None) -> InfeasibleMatchError:
    """Return the error of a family without a network that has the numbers; its first sentence is the reason."""
    return InfeasibleMatchError(f"{why}. {advice}", residual)


# ---- designs and their solutions -----------------------------------------------------------------------------


class Design(Protocol):
    """A parametrised network in units of tau0, differentiable by complex steps."""

    @property
    def depth(self) -> int: ...

    def layers(self, z: Array) -> list[LayerJet]:
        """Return one layer jet per layer, batched like z."""

    def rates(self, z: Array) -> Array | None:
        """Return learning rates W_1 ... W_L, readout; None where all are 1."""

    def activations(self, z: Array, tau0: float) -> list[Activation]:
        """Return the finished layers."""


@dataclass(frozen=True)
class Solved:
    """A point of the parameter space with the residual of its equations and the cost of the next orders."""

    target: Target
    design: Design
    z: Array
    residual: float
    cost: float

    @property
    def feasible(self) -> bool:
        return self.residual <= LIMITS.feasible

    @property
    def good(self) -> bool:
        return self.feasible and self.cost <= LIMITS.good_next_order

    def draft(self, family: str, reason: str) -> Draft:
        """Return the finished network, or refuse and say by how much it misses."""
        target, design = self.target, self.design
        if not self.feasible:
            raise missed(target, f"{family} network of {design.depth} layers", self.residual)
        trained = design.rates(self.z)
        rates = None if trained is None else tuple(float(r) for r in trained)
        if rates is not None and target.kernel == "ntk_frozen":
            rates = (0.0, *rates[1:])  # frozen input weights do not move
        return Draft(ENN(design.activations(self.z, target.tau0)), family, reason, rates)


def best_of(solutions: Sequence[Solved]) -> Solved:
    """Return the feasible solution with the best next orders, else the nearest to feasible."""
    return min(solutions, key=lambda s: (not s.feasible, s.cost if s.feasible else s.residual))


def jet_of(target: Target, design: Design, z: Array) -> KernelJet:
    """Return the kernel of designs, batched like z."""
    return explicit_jets(design.layers(z), design.rates(z), (target.kernel,))[target.kernel]


def solve(target: Target, design: Design, start: Array) -> Solved:
    """Go from one start to the nearest constrained optimum; deterministic."""
    z = start
    for penalty in (1e3, 1e6):  # weight of the equations; the second where the first has not met them
        z, here = _polish(target, design, _descend(target, design, z, penalty))
        if np.abs(here.equations).max() < LIMITS.feasible:
            break
    return Solved(target, design, z, float(np.abs(here.equations).max()), float(here.beyond @ here.beyond))


# ---- steps -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Local:
    equations: Array
    beyond: Array
    equations_by: Array
    beyond_by: Array

    def merit(self, penalty: float) -> float:
        return float(self.beyond @ self.beyond + penalty**2 * (self.equations @ self.equations))


def _descend(target: Target, design: Design, z: Array, penalty: float) -> Array:
    """Take damped steps until three in a row gain next to nothing; the equations are met to rounding afterwards."""
    damping, idle, here = 1e-3, 0, _linearise(target, design, z)
    for _ in range(60):
        allowed = here.merit(penalty) * (1.0 + 1e-12) + 1e-28
        ahead = z + _bounded(_constrained_step(here, damping))
        there = _linearise(target, design, ahead)
        if design.depth == 1 and np.isfinite(there.merit(penalty)) and not there.merit(penalty) < allowed:
            # one layer has a curve of solutions, which bends away from a straight step: back onto it before judging
            ahead = ahead - _bounded(_back(there))
            there = _linearise(target, design, ahead)
        if np.isfinite(there.merit(penalty)) and there.merit(penalty) < allowed:
            gain = here.merit(penalty) - there.merit(penalty)
            z, here, damping = ahead, there, max(0.2 * damping, 1e-12)
            idle = idle + 1 if gain < 1e-3 * here.merit(penalty) else 0
            if idle == 3:
                break
        else:
            damping *= 10.0
            if damping > 1e8:
                break
    return z


def _polish(target: Target, design: Design, z: Array) -> tuple[Array, _Local]:
    """Take a few smallest-norm Newton steps on the equations alone, to rounding."""
    here = _linearise(target, design, z)
    best = (z, here)
    for _ in range(6):
        z = z - _bounded(_back(here))
        here = _linearise(target, design, z)
        if not np.abs(here.equations).max() < np.abs(best[1].equations).max():
            break
        best = (z, here)
    return best


def _back(here: _Local) -> Array:
    """Return the smallest step whose opposite meets the equations to first order."""
    return np.linalg.lstsq(here.equations_by, here.equations, rcond=1e-12)[0]


def _linearise(target: Target, design: Design, z: Array) -> _Local:
    """Return values and exact derivatives: one batched evaluation with a complex step per parameter."""
    step = 1e-30  # no subtraction, so it can be as small as one likes
    ridge = 1e-4  # of equally good designs, the one with the smallest parameters
    batch = np.broadcast_to(z, (len(z), len(z))) + 1j * step * np.eye(len(z))
    layers, rates = design.layers(batch), design.rates(batch)
    jet = explicit_jets(layers, rates, (target.kernel,))[target.kernel]
    # without what parity or depth satisfies identically, which would make the system singular: one layer ties c2 to c3
    keep = [not target.even, not target.odd and design.depth > 1, not target.odd, True]
    equations = np.concatenate([target.equations(jet)[..., keep], *_gauge(target, layers, rates)], axis=-1)
    beyond = np.concatenate([target.beyond(jet), ridge * batch], axis=-1)
    return _Local(equations[0].real, beyond[0].real, equations.imag.T / step, beyond.imag.T / step)


def _gauge(target: Target, layers: list[LayerJet], rates: Array | None) -> list[Array]:
    """Return what is left of the gauge: all layers but the last keep the scale, and trained rates have mean 1."""
    fixed = [layer.square[..., :1] - 1.0 for layer in layers[:-1]]
    if rates is not None:
        trained = rates[..., 1:] if target.kernel == "ntk_frozen" else rates
        fixed.append(trained.mean(-1, keepdims=True) - 1.0)
    return fixed


def _bounded(step: Array) -> Array:
    """Cut a step to length 2: parameters are of order one (rates enter by their logarithms)."""
    return step / max(1.0, 0.5 * float(np.abs(step).max()))


def _constrained_step(here: _Local, damping: float) -> Array:
    """Minimise |beyond + J s|^2 + damping |s|^2 subject to equations + E s = 0, as far as these agree."""
    u, singular, vt = np.linalg.svd(here.equations_by, full_matrices=True)
    rank = int((singular > 1e-9 * singular[0]).sum())
    onto = -(vt[:rank].T / (singular[:rank] + damping * 1e-3 * singular[0])) @ (u.T[:rank] @ here.equations)
    free = vt[rank:].T
    if free.shape[1] == 0:
        return onto
    reduced = np.vstack([here.beyond_by @ free, math.sqrt(damping) * np.eye(free.shape[1])])
    wanted = np.concatenate([-(here.beyond + here.beyond_by @ onto), np.zeros(free.shape[1])])
    return onto + free @ np.linalg.lstsq(reduced, wanted, rcond=None)[0]
