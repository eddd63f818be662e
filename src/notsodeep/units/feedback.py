"""Units of a DEQ whose feedback is replaced by a Gaussian of the same variance: for inputs of every norm.

A unit phi(P w.x + R(s) w'.x + C(s) w''.x + b(s) beta), s = |x|, with independent directions and a normal number beta of
its own, has the kernel E[phi(u) phi(v)] at the covariance (P^2 + R R' + C C') x.y + b b', of the form that the
pre-activations of a DEQ nearly have. It tends to the DEQ's kernel at both ends of the norms (theory, section 13).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..activations.base import Activation, activation
from ..errors import ActivationError
from .conditioned import chebyshev
from .norm_units import NormUnits


def feedback_table(like: Tensor, width: int, parts: tuple[tuple[float, ...], ...], gain: tuple[float, ...]) -> Tensor:
    """Return the coefficients, row after row, those of the factor, and beta of every unit: one dimension."""
    golden = (math.sqrt(5.0) - 1.0) / 2.0  # multiples of it are spread evenly, in an order that no weights know
    spread = ((torch.arange(width, dtype=torch.float64) + 0.5) * golden) % 1.0
    numbers = torch.tensor([c for row in (*parts, gain) for c in row], dtype=torch.float64)
    return torch.cat([numbers, torch.special.ndtri(spread)]).to(like)


def feedback_factors(norm: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    """Return what each row of Chebyshev coefficients in (s - 1)/(s + 1) is at these norms."""
    return (chebyshev((norm - 1.0) / (norm + 1.0), rows.shape[-1]) @ rows.mT.to(norm)).unbind(-1)


def feedback_units(
    before: Tensor,
    x: Tensor,
    table: Tensor,
    phi: Callable[[Tensor], Tensor],
    drive: float,
    offset: float,
    shape: tuple[int, int],
    gains: int,
) -> Tensor:
    """Return units phi of w.x, of the w.x of the two units before and of a constant, with factors of s = |x|."""
    norm, count = torch.linalg.vector_norm(x, dim=-1, keepdim=True), shape[0] * shape[1]
    rows, gain, beta = table.tensor_split((count, count + gains))
    linear, curved, *shared = feedback_factors(norm, rows.unflatten(0, shape))
    argument = torch.addcmul(drive * before, linear, before.roll(1, -1)).addcmul(curved, before.roll(2, -1))
    units = phi(torch.addcmul(argument, (norm + offset) * shared[0], beta) if shared else argument)
    return feedback_factors(norm, gain.unsqueeze(0))[0] * units if gains else units


@dataclass(frozen=True, repr=False)
class Feedback(NormUnits):
    """A layer of units phi(P w.x + R(s) w'.x + C(s) w''.x + b(s) beta); w' and w'' belong to the two units before.

    ``parts`` are the Chebyshev coefficients, in (s - 1)/(s + 1), of R, of C and of b/(s + ``offset``); no b: two rows.
    ``drive`` is P, ``gain`` the coefficients of a factor of the units; none: one.
    """

    base: Activation
    parts: tuple[tuple[float, ...], ...]
    drive: float = 1.0
    offset: float = 0.0
    gain: tuple[float, ...] = ()
    name: ClassVar[str] = "feedback"
    functions: ClassVar = (chebyshev, feedback_factors, feedback_table, feedback_units)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "base", activation(self.base))
        if len(self.parts) not in (2, 3) or len({len(row) for row in self.parts}) != 1 or len(self.parts[0]) < 2:
            raise ActivationError(f"Feedback takes two or three rows of coefficients of one length, got {self.parts!r}")
        if isinstance(self.base, NormUnits) or self.offset < 0.0:
            raise ActivationError(
                f"Feedback takes an elementwise activation and an offset from zero on, got {self.base!r}, "
                f"{self.offset!r}"
            )

    def __repr__(self) -> str:
        shared = " + b(|x|) beta" if len(self.parts) == 3 else ""
        return f"Feedback({self.base!r} of {self.drive:.4g} w.x + R(|x|) w'.x + C(|x|) w''.x{shared}, all norms)"

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.base.kinks

    @property
    def continuous(self) -> bool:
        return self.base.continuous

    @property
    def constants(self) -> tuple[Any, ...]:
        return self.parts, self.gain

    @property
    def settings(self) -> tuple[Any, ...]:
        return self.base, self.drive, self.offset, (len(self.parts), len(self.parts[0])), len(self.gain)

    @functools.cached_property
    def _coefficients(self) -> Tensor:
        with torch.inference_mode(False):
            return torch.tensor(self.parts, dtype=torch.float64)

    def amplitudes(self, norm: Tensor) -> tuple[Tensor, ...]:
        """Return R, C and b at these norms."""
        first, second, *shared = feedback_factors(norm, self._coefficients)
        return first, second, (norm + self.offset) * shared[0] if shared else torch.zeros_like(norm)

    def factor(self, norm: Tensor) -> Tensor:
        """Return the factor of the units at these norms."""
        return feedback_factors(norm, norm.new_tensor([self.gain]))[0] if self.gain else torch.ones_like(norm)

    def at(self, domain: Any, points: Any) -> tuple[Any, Any]:
        return domain.units(functools.partial(FeedbackLayer, self, domain.layer), points)


class FeedbackLayer:
    """Units with feedback at a batch of squared norms: their activation at another covariance.

    ``inner`` returns the layer of an activation at a pair of variances.
    """

    def __init__(self, phi: Feedback, inner: Callable[[Activation, Any], Any], qx: Tensor, qy: Tensor) -> None:
        (rx, cx, bx), (ry, cy, by) = (phi.amplitudes(q.sqrt()) for q in (qx, qy))
        square = phi.drive**2
        self.along, self.shared = square + rx * ry + cx * cy, bx * by
        moved = [(square + r * r + c * c) * q + b * b for r, c, b, q in ((rx, cx, bx, qx), (ry, cy, by, qy))]
        self.inner, self.factor = inner(phi.base, moved), phi.factor(qx.sqrt()) * phi.factor(qy.sqrt())

    def value(self, lam: Tensor) -> Tensor:
        """Return E[psi(x) psi(y)]."""
        return self.factor * self.inner.value(self.along * lam + self.shared)

    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """Return E[psi(x) psi(y)] and its derivative in lam, which is what trained weights see."""
        value, slope = self.inner.both(self.along * lam + self.shared)
        return self.factor * value, self.factor * self.along * slope
