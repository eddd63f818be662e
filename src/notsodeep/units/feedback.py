"""Units of a DEQ whose feedback is replaced by a Gaussian of the same variance: for inputs of every norm.

A unit phi(P w.x + R(s) w'.x + C(s) w''.x + b(s) beta), s = |x|, with independent directions and a normal number beta of
its own, has the kernel E[phi(u) phi(v)] at the covariance (P^2 + R R' + C C') x.y + b b', of the form that the
pre-activations of a DEQ nearly have. It tends to the DEQ's kernel at both ends of the norms (theory, section 13).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..activations.base import Activation, activation
from ..errors import ActivationError
from .conditioned import Conditioned, chebyshev, chebyshev_lines
from .norm_units import NormUnits, row_norms

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0  # multiples of it are spread evenly, in an order that no weights know


@dataclass(frozen=True, repr=False)
class Feedback(NormUnits):
    """A layer of units phi(P w.x + R(s) w'.x + C(s) w''.x + b(s) beta); w' and w'' belong to the two units before.

    ``parts`` are the Chebyshev coefficients, in (s - 1)/(s + 1), of R, of C and of b/(s + ``offset``); no b: two rows.
    ``drive`` is P.
    ``core``: a quarter of the units are of another kind, which make the kernel exact within a range of norms. There the
    others leave them the ``share`` of it; towards the ends of the core's own range both fade to what holds beyond.
    ``gain``: the Chebyshev coefficients, in (s - 1)/(s + 1), of a factor of the units; none: one.
    """

    base: Activation
    parts: tuple[tuple[float, ...], ...]
    drive: float = 1.0
    offset: float = 0.0
    core: Conditioned | None = None
    share: float = 0.0
    gain: tuple[float, ...] = ()
    name: ClassVar[str] = "feedback"
    fade: ClassVar[float] = 1.15
    """A core fades within this factor of the ends of its range."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "base", activation(self.base))
        if isinstance(self.core, Mapping):
            object.__setattr__(self, "core", Activation.from_dict(self.core))
        if len(self.parts) not in (2, 3) or len({len(row) for row in self.parts}) != 1 or len(self.parts[0]) < 2:
            raise ActivationError(f"Feedback takes two or three rows of coefficients of one length, got {self.parts!r}")
        core = self.core is None or isinstance(self.core, Conditioned)
        if not (self.base.elementwise and self.offset >= 0.0 and 0.0 <= self.share < 1.0 and core):
            raise ActivationError(
                f"Feedback takes an elementwise activation, an offset from zero on, conditioned units or none as its "
                f"core and a share below one, got {self.base!r}, {self.offset!r}, {self.core!r}, {self.share!r}"
            )

    def __repr__(self) -> str:
        shared = " + b(|x|) beta" if len(self.parts) == 3 else ""
        beside = f", beside {self.core!r}" if self.core else ""
        return (
            f"Feedback({self.base!r} of {self.drive:.4g} w.x + R(|x|) w'.x + C(|x|) w''.x{shared}, all norms{beside})"
        )

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.base.kinks

    @property
    def continuous(self) -> bool:
        return self.base.continuous

    def _first(self, width: int) -> int:
        """The number of units that are not of the core."""
        return width - width // 4 if self.core else width

    def table(self, like: Tensor, width: int) -> Tensor:
        """Return the coefficients, row after row, beta of every unit, and the table of the core: one dimension."""
        spread = ((torch.arange(self._first(width), dtype=torch.float64) + 0.5) * _GOLDEN) % 1.0
        core = [self.core.table(like.double()).flatten()] if self.core else []
        return torch.cat([self._coefficients.T.flatten(), torch.special.ndtri(spread), *core]).to(like)

    def fading(self, norm: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of the units and of the core: together they keep the diagonal."""
        gain = torch.ones_like(norm)
        if self.gain:
            gain = chebyshev((norm - 1.0) / (norm + 1.0), len(self.gain)) @ norm.new_tensor(self.gain)
        if self.core is None:
            return gain, torch.zeros_like(norm)
        low, high = self.core.low, self.core.high
        near = ((high - norm) / (high - high / self.fade)).clamp(0.0, 1.0)
        if low > 0.0:
            near = near * ((norm - low) / (self.fade * low - low)).clamp(0.0, 1.0)
        return gain * (1.0 - self.share * near * near).sqrt(), near

    @functools.cached_property
    def _coefficients(self) -> Tensor:
        with torch.inference_mode(False):
            return torch.tensor(self.parts, dtype=torch.float64).T

    def amplitudes(self, norm: Tensor, coefficients: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return R, C and b at these norms."""
        rows = self._coefficients if coefficients is None else coefficients
        first, second, *rest = (chebyshev((norm - 1.0) / (norm + 1.0), len(rows)) @ rows.to(norm)).unbind(-1)
        return first, second, (norm + self.offset) * rest[0] if rest else torch.zeros_like(norm)

    def formula(self, before: Tensor, inputs: Tensor, table: Tensor) -> Tensor:
        count, width, norm = self._coefficients.numel(), before.shape[-1], row_norms(inputs)
        first = self._first(width)
        rows = table[:count].unflatten(0, (len(self.parts), -1)).T
        linear, rest, shared = (part.unsqueeze(-1) for part in self.amplitudes(norm, rows))
        own, beta = before[..., :first], table[count : count + first]
        argument = torch.addcmul(self.drive * own, linear, own.roll(1, -1)).addcmul(rest, own.roll(2, -1))
        units = self.base(torch.addcmul(argument, shared, beta) if len(self.parts) == 3 else argument)
        if not self.gain and (self.core is None or first == width):
            return units
        far, near = (factor.unsqueeze(-1) for factor in self.fading(norm))
        if self.core is None or first == width:
            return far * units
        inner = self.core.formula(before[..., first:], inputs, table[count + first :].unflatten(0, self.core.shape))
        gains = math.sqrt(width / first), math.sqrt(width / (width - first))
        return torch.cat([gains[0] * far * units, gains[1] * near * inner], -1)

    def source_lines(self, name: str) -> list[str]:
        if self.core:
            return self._beside_core(name, self.core)
        rows = [[float(c) for c in row] for row in self.parts]
        end = " + parts[2] * beta" if len(rows) == 3 else ""
        shared = [
            f"    spread = ((torch.arange(before.shape[-1], dtype=torch.float64) + 0.5) * {_GOLDEN!r}) % 1.0",
            f"    beta = torch.special.ndtri(spread).to(before) * (norm + {self.offset!r})",
        ]
        gain = "parts[-1] * " if self.gain else ""
        rows += [list(self.gain)] if gain else []
        return [
            f"{name.upper()} = {rows!r}",
            "",
            "",
            f"def {name}(before, x):",
            '    """Units phi of w.x, of the w.x of the two units before and of a constant, with factors of |x|."""',
            "    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)",
            *chebyshev_lines("(norm - 1) / (norm + 1)", max(map(len, rows))),
            f"    parts = [sum(c * p for c, p in zip(row, chebyshev)) for row in {name.upper()}]",
            *(shared if end else []),
            "    feedback = parts[0] * before.roll(1, -1) + parts[1] * before.roll(2, -1)",
            f"    return {gain}{name}_phi({self.drive!r} * before + feedback{end})",
            "",
            "",
            *self.base.source_lines(f"{name}_phi"),
        ]

    def _beside_core(self, name: str, core: Conditioned) -> list[str]:
        low, high = core.low, core.high
        rise = f" * ((norm - {low!r}) / {self.fade * low - low!r}).clamp(0, 1)" if low > 0.0 else ""
        return [
            f"def {name}(before, x):",
            '    """Units for all norms, and a quarter of the width that makes them exact within a range of norms."""',
            "    width, norm = before.shape[-1], torch.linalg.vector_norm(x, dim=-1, keepdim=True)",
            "    first = width - width // 4",
            "    if first == width:",
            f"        return {name}_far(before, x)",
            f"    near = (({high!r} - norm) / {high - high / self.fade!r}).clamp(0, 1){rise}",
            f"    far = math.sqrt(width / first) * (1 - {self.share!r} * near * near).sqrt()",
            f"    units = far * {name}_far(before[..., :first], x)",
            f"    inner = near * {name}_near(before[..., first:], x)",
            "    return torch.cat([units, math.sqrt(width / (width - first)) * inner], -1)",
            "",
            "",
            *replace(self, core=None).source_lines(f"{name}_far"),
            "",
            "",
            *core.source_lines(f"{name}_near"),
        ]
