"""Units of a DEQ whose feedback is replaced by a Gaussian of the same variance: for inputs of every norm.

At infinite width the pre-activation of a DEQ is Gaussian, with the drive B x and a feedback that depends on the angle
nearly as the drive does, up to a part that all inputs share. A unit

    phi(P(s) w.x + R(s) w'.x + b(s) beta),   s = |x|, w and w' independent, beta a normal number of its own,

has a Gaussian pre-activation of that form: its kernel is E[phi(u) phi(v)] at the covariance
(P P' + R R') x.y + b b'. It tends to the DEQ's kernel at both ends of the norms (theory, section 13).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import ActivationError
from .base import Activation, activation
from .conditioned import chebyshev, chebyshev_lines
from .norm_units import NormUnits, row_norms

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0  # multiples of it are spread evenly, in an order that no weights know


@dataclass(frozen=True, repr=False)
class Feedback(NormUnits):
    """A layer of units phi(P(s) w.x + R(s) w'.x + b(s) beta), where w' belongs to the unit before.

    ``parts`` are the Chebyshev coefficients, in (s - 1)/(s + 1), of P, of R and of b/(s + ``offset``); no b: two rows.
    """

    base: Activation
    parts: tuple[tuple[float, ...], ...]
    offset: float = 0.0
    name: ClassVar[str] = "feedback"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "base", activation(self.base))
        if len(self.parts) not in (2, 3) or len({len(row) for row in self.parts}) != 1 or len(self.parts[0]) < 2:
            raise ActivationError(f"Feedback takes two or three rows of coefficients of one length, got {self.parts!r}")
        if not (self.base.elementwise and self.offset >= 0.0):
            raise ActivationError(f"Feedback takes an elementwise activation and an offset from zero on, got {self!r}")

    def __repr__(self) -> str:
        shared = " + b(|x|) beta" if len(self.parts) == 3 else ""
        return f"Feedback({self.base!r} of P(|x|) w.x + R(|x|) w'.x{shared}, all norms)"

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.base.kinks

    @property
    def continuous(self) -> bool:
        return self.base.continuous

    def table(self, like: Tensor, width: int) -> Tensor:
        """Return the coefficients, row after row, and beta of every unit: one dimension."""
        spread = ((torch.arange(width, dtype=torch.float64) + 0.5) * _GOLDEN) % 1.0
        return torch.cat([self._coefficients.T.flatten(), torch.special.ndtri(spread)]).to(like)

    @functools.cached_property
    def _coefficients(self) -> Tensor:
        with torch.inference_mode(False):
            return torch.tensor(self.parts, dtype=torch.float64).T

    def amplitudes(self, norm: Tensor, coefficients: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return P, R and b at these norms."""
        rows = self._coefficients if coefficients is None else coefficients
        first, second, *rest = (chebyshev((norm - 1.0) / (norm + 1.0), len(rows)) @ rows.to(norm)).unbind(-1)
        return first, second, (norm + self.offset) * rest[0] if rest else torch.zeros_like(norm)

    def formula(self, before: Tensor, inputs: Tensor, table: Tensor) -> Tensor:
        count = self._coefficients.numel()
        rows = table[:count].unflatten(0, (len(self.parts), -1)).T
        drive, feedback, shared = (part.unsqueeze(-1) for part in self.amplitudes(row_norms(inputs), rows))
        argument = torch.addcmul(drive * before, feedback, before.roll(1, -1))
        return self.base(torch.addcmul(argument, shared, table[count:]) if len(self.parts) == 3 else argument)

    def at_norm(self, x: Any, norm: float) -> Any:
        drive, feedback, _ = self.amplitudes(torch.tensor(norm, dtype=torch.float64))
        return self.base(float(torch.hypot(drive, feedback)) * x)  # both directions as one, beta = 0

    def source_lines(self, name: str) -> list[str]:
        rows = [[float(c) for c in row] for row in self.parts]
        end = " + parts[2] * beta" if len(rows) == 3 else ""
        shared = [
            f"    spread = ((torch.arange(before.shape[-1], dtype=torch.float64) + 0.5) * {_GOLDEN!r}) % 1.0",
            f"    beta = torch.special.ndtri(spread).to(before) * (norm + {self.offset!r})",
        ]
        return [
            f"{name.upper()} = {rows!r}",
            "",
            "",
            f"def {name}(before, x):",
            '    """Units phi(P w.x + R v.x + b beta): P, R and b depend on |x|, v is the w of the unit before."""',
            "    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)",
            *chebyshev_lines("(norm - 1) / (norm + 1)", len(rows[0])),
            f"    parts = [sum(c * p for c, p in zip(row, chebyshev)) for row in {name.upper()}]",
            *(shared if end else []),
            f"    argument = parts[0] * before + parts[1] * before.roll(1, -1){end}",
            f"    return {name}_phi(argument)",
            "",
            "",
            *self.base.source_lines(f"{name}_phi"),
        ]
