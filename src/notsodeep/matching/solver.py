"""Exact equations, minimal next orders: Gauss-Newton within the tangent space of the equations.

The equations are the four numbers per kernel and the gauge; they are met to rounding. The freedom that is left
minimises :meth:`Target.beyond`, the weighted deviation of the next orders of the kernel's expansion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..activations import Activation
from ..kernels.jets import KernelJet, LayerJet, explicit_jets
from ..networks import Kernel
from .target import FEASIBLE, Target

Array = NDArray[Any]

_RIDGE = 1e-4  # makes flat directions determinate: of equally good designs, the one with the smallest parameters
_STEP = 1e-30  # complex step: no subtraction, so it can be as small as one likes
_ITERATIONS = 60
_LONGEST = 2.0
_PENALTIES = (1e3, 1e6)  # weight of the equations in the merit function; the second where the first has not met them


class Design(Protocol):
    """A parametrised network in units of tau0, differentiable by complex steps."""

    @property
    def depth(self) -> int: ...

    def layers(self, z: Array) -> list[LayerJet]:
        """One layer jet per layer, batched like z."""

    def rates(self, z: Array) -> Array | None:
        """Learning rates W_1 ... W_L, readout; None where all are 1."""

    def activations(self, z: Array, tau0: float) -> list[Activation]:
        """The finished layers."""


@dataclass(frozen=True)
class Solved:
    """A point of the parameter space with the residual of its equations and the cost of the next orders."""

    design: Any
    """The :class:`Design`, or the user's family, whose parameters they are."""
    z: Array
    residual: float
    cost: float
    conditioning: float

    @staticmethod
    def at(design: Any, z: Array, equations: Array, beyond: Array, equations_by: Array) -> Solved:
        """With the condition number of the derivatives of the equations."""
        singular = np.linalg.svd(equations_by, compute_uv=False)
        condition = float(singular[0] / max(singular[-1], 1e-300))
        return Solved(design, z, float(np.abs(equations).max()), float(beyond @ beyond), condition)

    @property
    def feasible(self) -> bool:
        return self.residual <= FEASIBLE


def best_of(found: Sequence[Solved]) -> Solved:
    """The feasible one with the best next orders, else the nearest to feasible."""
    return min(found, key=lambda s: (not s.feasible, s.cost if s.feasible else s.residual))


@dataclass(frozen=True)
class _Local:
    equations: Array
    beyond: Array
    equations_by: Array
    beyond_by: Array

    def merit(self, penalty: float) -> float:
        return float(self.beyond @ self.beyond + penalty**2 * (self.equations @ self.equations))


def solve(target: Target, design: Design, start: Array) -> Solved:
    """From one start to the nearest constrained optimum; deterministic."""
    z = start
    for penalty in _PENALTIES:
        z, here = _polish(target, design, _descend(target, design, z, penalty))
        if np.abs(here.equations).max() < FEASIBLE:
            break
    return Solved.at(design, z, here.equations, here.beyond, here.equations_by)


def _descend(target: Target, design: Design, z: Array, penalty: float) -> Array:
    """Damped steps until three in a row gain next to nothing; the equations are met to rounding afterwards."""
    damping, idle, here = 1e-3, 0, _linearise(target, design, z)
    for _ in range(_ITERATIONS):
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
    """A few smallest-norm Newton steps on the equations alone, to rounding."""
    best, kept = z, _linearise(target, design, z)
    here = kept
    for _ in range(6):
        z = z - _bounded(_back(here))
        here = _linearise(target, design, z)
        if not np.abs(here.equations).max() < np.abs(kept.equations).max():
            break
        best, kept = z, here
    return best, kept


def _back(here: _Local) -> Array:
    """The smallest step that meets the equations to first order is minus this."""
    found: Array = np.linalg.lstsq(here.equations_by, here.equations, rcond=1e-12)[0]
    return found


def _linearise(target: Target, design: Design, z: Array) -> _Local:
    """Values and exact derivatives: one batched evaluation with a complex step per parameter."""
    batch = np.broadcast_to(z, (len(z), len(z))) + 1j * _STEP * np.eye(len(z))
    layers = design.layers(batch)
    rates = design.rates(batch)
    jets = explicit_jets(layers, rates, target.names)
    equations = np.concatenate([_independent(target, design, jets), *_gauge(target, layers, rates)], axis=-1)
    beyond = np.concatenate([target.beyond(jets), _RIDGE * batch], axis=-1)
    return _Local(equations[0].real, beyond[0].real, equations.imag.T / _STEP, beyond.imag.T / _STEP)


def _gauge(target: Target, layers: list[LayerJet], rates: Array | None) -> list[Array]:
    """Every layer but the last keeps the scale; trained rates have mean 1 (an NTK sees only rate times square)."""
    fixed = [layer.square[..., :1] - 1.0 for layer in layers[:-1]]
    if rates is not None and target.kernel != "both":
        trained = rates[..., 1:] if target.kernel == "ntk_frozen" else rates
        fixed.append(trained.mean(-1, keepdims=True) - 1.0)
    return fixed


def _independent(target: Target, design: Design, jets: dict[Kernel, KernelJet]) -> Array:
    """Equations that parity or depth satisfies identically would only make the system singular: leave them out."""
    equations = target.equations(jets)
    keep = np.ones(equations.shape[-1], dtype=bool)
    if target.odd:
        keep[1::4] = keep[2::4] = False
    elif design.depth == 1:
        keep[1::4] = False  # one layer ties c2 to c3
    if target.even:
        keep[0::4] = False
    return equations[..., keep]


def _bounded(step: Array) -> Array:
    """Parameters are of order one (rates enter by their logarithms): no step needs to be longer than that."""
    return step / max(1.0, float(np.abs(step).max()) / _LONGEST)


def _constrained_step(here: _Local, damping: float) -> Array:
    """argmin |beyond + J s|^2 + damping |s|^2 subject to equations + E s = 0 (least squares where they contradict)."""
    u, singular, vt = np.linalg.svd(here.equations_by, full_matrices=True)
    rank = int((singular > 1e-9 * singular[0]).sum())
    onto = -(vt[:rank].T / (singular[:rank] + damping * 1e-3 * singular[0])) @ (u.T[:rank] @ here.equations)
    free = vt[rank:].T
    if free.shape[1] == 0:
        return onto
    reduced = np.vstack([here.beyond_by @ free, math.sqrt(damping) * np.eye(free.shape[1])])
    wanted = np.concatenate([-(here.beyond + here.beyond_by @ onto), np.zeros(free.shape[1])])
    return onto + free @ np.linalg.lstsq(reduced, wanted, rcond=None)[0]
