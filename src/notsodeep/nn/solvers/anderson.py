"""Anderson acceleration, type II, one small least-squares problem per row."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Anderson"]


@dataclass(slots=True)
class Anderson:
    """z <- f(z) - sum_j c_j (f_j+1 - f_j), the c_j minimising |g - sum_j c_j (g_j+1 - g_j)|, g = f(z) - z.

    ``memory`` differences are kept. The least squares are regularised relative to their own size, so that nothing
    depends on the scale of the data.
    """

    memory: int = 5
    _image: Tensor | None = field(default=None, repr=False)
    _gap: Tensor | None = field(default=None, repr=False)
    _image_steps: list[Tensor] = field(default_factory=list, repr=False)
    _gap_steps: list[Tensor] = field(default_factory=list, repr=False)

    def advance(self, z: Tensor, image: Tensor) -> Tensor:
        gap = image - z
        if self._image is not None and self._gap is not None:
            self._image_steps = [*self._image_steps, image - self._image][-self.memory :]
            self._gap_steps = [*self._gap_steps, gap - self._gap][-self.memory :]
        self._image, self._gap = image, gap
        if not self._gap_steps:
            return image
        gaps = torch.stack(self._gap_steps, dim=-2)
        weights = _least_squares(gaps, gap)
        return image - (weights.unsqueeze(-2) @ torch.stack(self._image_steps, dim=-2)).squeeze(-2)

    def keep(self, rows: Tensor) -> None:
        self._image = None if self._image is None else self._image[rows]
        self._gap = None if self._gap is None else self._gap[rows]
        self._image_steps = [step[rows] for step in self._image_steps]
        self._gap_steps = [step[rows] for step in self._gap_steps]


def _least_squares(gaps: Tensor, gap: Tensor) -> Tensor:
    """argmin_c |gap - c gaps| row by row, from normal equations scaled to a unit diagonal."""
    if gap.dtype in (torch.float16, torch.bfloat16):  # no factorisations exist in half precision
        return _least_squares(gaps.float(), gap.float()).to(gap.dtype)
    norms = torch.linalg.vector_norm(gaps, dim=-1).clamp_min(torch.finfo(gap.dtype).tiny)
    unit = gaps / norms.unsqueeze(-1)
    # squaring the condition costs half the digits: below sqrt(eps) a direction carries no information
    ridge = torch.finfo(gap.dtype).eps * 10.0
    gram = unit @ unit.mT + ridge * torch.eye(gaps.shape[-2], dtype=gap.dtype, device=gap.device)
    weights, _ = torch.linalg.solve_ex(gram, (unit @ gap.unsqueeze(-1)))
    return weights.squeeze(-1) / norms
