"""Units that look in a direction turned by the norm of their input, beside others that do not (theory, section 13).

A turned unit applies psi(v; s) to v = sum_m f_m(s) u_m, where u_0 is its own w.x/|x|, u_1, u_2, ... are those of the
units before it, and |f(s)| = 1. For inputs of norms s, t and cosine rho such v have correlation rho <f(s), f(t)>, so

    E[psi psi] = sum_k c_k(s) c_k(t) <f(s), f(t)>^k rho^k:

inputs of different norms part the more the higher the order, as they do in a network whose slope jumps.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import ActivationError
from .base import register
from .conditioned import Conditioned
from .norm_units import NormUnits, doubled, row_norms


@register
@dataclass(frozen=True, repr=False)
class Turned(NormUnits):
    """A layer of which the ``share`` last units are those of ``turned``, and the others those of ``base``.

    ``turns[m]`` are the Chebyshev coefficients of f_m in the variable of the coefficients of both; f is normalised.
    """

    base: Conditioned
    turned: Conditioned
    turns: tuple[tuple[float, ...], ...]
    share: float = 0.125
    name: ClassVar[str] = "turned"

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = (self.base, self.turned)
        if not all(isinstance(part, Conditioned) for part in parts):
            raise ActivationError(f"Turned takes two layers of norm-conditioned units, got {parts!r}")
        spans = {(p.low, p.high, p.power, p.logarithmic, len(p.coefficients[0][0])) for p in parts}
        if len(spans) != 1 or {len(row) for row in self.turns} != {len(self.base.coefficients[0][0])}:
            raise ActivationError(f"Turned takes layers and turns of one range and degree in the norm, got {parts!r}")
        if not 0.0 < self.share < 1.0:
            raise ActivationError(f"Turned: share must be in (0, 1), got {self.share}")

    def __repr__(self) -> str:
        return f"Turned({self.base!r}, and {self.share:.3g} of them turned by the norm: {self.turned!r})"

    @property
    def power(self) -> int:
        """Of |x|, a factor of all units."""
        return self.base.power

    @property
    def kinks(self) -> tuple[float, ...]:
        return tuple({*self.base.kinks, *self.turned.kinks})

    @property
    def homogeneity(self) -> float | None:
        return None

    @property
    def continuous(self) -> bool:
        return self.base.continuous and self.turned.continuous

    def count(self, width: int) -> int:
        """How many units of a layer are turned."""
        return round(self.share * int(width))  # tracers have tensors for sizes

    def table(self, like: Tensor, width: int) -> Tensor:
        """The tables of both parts and the turns, the same for every width."""
        turns = torch.tensor(self.turns, dtype=torch.float64).T
        fine = torch.cat([self.turned.table(turns), turns], dim=1)
        rounded = fine.to(like)
        rest = (fine - rounded.to(fine)).to(like)  # a logarithm needs more digits than single precision has
        return torch.cat([self.base.table(like), rounded, rest], dim=1)

    @functools.cached_property
    def _sizes(self) -> list[int]:
        return [*(p.groups * p.basis.size for p in (self.base, self.turned)), len(self.turns)]

    def directions(self, norm: Tensor, turns: Tensor | None = None) -> Tensor:
        """F at these norms (...,): shape (..., turns)."""
        turns = torch.tensor(self.turns, dtype=norm.dtype, device=norm.device).T if turns is None else turns
        return torch.nn.functional.normalize(self.base.polynomials(norm, len(turns)) @ turns, dim=-1)

    def formula(self, before: Tensor, inputs: Tensor, table: Tensor) -> Tensor:
        width = before.shape[-1]
        size, *sizes = self._sizes
        plain, rounded, rest = table.split([size, sum(sizes), sum(sizes)], dim=1)
        first = width - (count := self.count(width))
        # the gain makes up for the number of units of each sort
        out = math.sqrt(width / max(1, first)) * self.base.formula(before[..., :first], inputs, plain)
        if not count:
            return out
        turned, turns = (doubled(rounded) + doubled(rest)).split(sizes, dim=1)
        wide = doubled(inputs)
        f = self.directions(row_norms(wide), turns)
        views = (doubled(before.narrow(-1, max(first - m, 0), count)) for m in range(len(self.turns)))
        sight = functools.reduce(torch.add, (v * g.unsqueeze(-1) for v, g in zip(views, f.unbind(-1), strict=True)))
        last = math.sqrt(width / count) * self.turned.formula(sight, wide, turned)
        return torch.cat([out, last.to(before.dtype)], dim=-1)

    def unit_slopes(self, before: Tensor, inputs: Tensor) -> Tensor:
        raise ActivationError(
            "turned units share their weights, so that no weight belongs to one unit alone; train the readout"
        )

    def layer(self, qx: Tensor, qy: Tensor) -> TurnedLayer:
        return TurnedLayer(self, qx, qy)

    def source_lines(self, name: str) -> list[str]:
        turns = [list(row) for row in self.turns]
        return [
            *self.base.source_lines(f"{name}_plain"),
            "",
            "",
            *self.turned.source_lines(f"{name}_turned"),
            "",
            "",
            f"def {name}(before, x):",
            '    """Units of two sorts; the last ones look in a direction that the norm of x turns."""',
            f"    width, count = before.shape[-1], round({self.share!r} * before.shape[-1])",
            "    first = width - count",
            f"    plain = {name}_plain(before[..., :first], x) * (width / max(1, first)) ** 0.5",
            "    if not count:",
            "        return plain",
            "    wide = x.double()  # a logarithm is taken of sums whose terms may cancel",
            *self.base.chebyshev_lines("wide"),
            f"    turns = t.new_tensor({turns!r})",
            "    f = torch.stack(chebyshev, -1)[..., : turns.shape[1]] @ turns.T",
            "    f = torch.nn.functional.normalize(f, dim=-1)",
            "    sight = sum(",
            "        f[..., m, None] * before.narrow(-1, max(first - m, 0), count).double() for m in range(len(turns))",
            "    )",
            f"    turned = {name}_turned(sight, wide) * (width / count) ** 0.5",
            "    return torch.cat([plain, turned.to(before)], -1)",
        ]


class TurnedLayer:
    """E[psi psi] and its derivative in lam: those of the parts, the second at cosines that are turned apart."""

    def __init__(self, phi: Turned, qx: Tensor, qy: Tensor) -> None:
        self.parts = (phi.base.layer(qx, qy), phi.turned.layer(qx, qy))
        left, right = (phi.directions(q.clamp_min(1e-60).sqrt()) for q in (qx, qy))
        self.apart = (left * right).sum(-1)

    def value(self, lam: Tensor) -> Tensor:
        """E[psi(x) psi(y)]."""
        return self.parts[0].value(lam) + self.parts[1].value(lam * self.apart)

    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and its derivative in lam."""
        (plain, slope), (turned, steep) = self.parts[0].both(lam), self.parts[1].both(lam * self.apart)
        return plain + turned, slope + self.apart * steep
