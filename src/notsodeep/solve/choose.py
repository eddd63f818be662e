"""Which preconditioner: tried on a few of the rows, where a solve costs next to nothing."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..equivalents import EquivalentKernel
from ..errors import NotSoDeepError
from .iterative import solve_tiles
from .preconditioners import PreconditionerName, default_rank, precondition
from .tiles import KernelTiles

__all__ = ["choose"]

_PROBE = 1000


def choose(
    tiles: KernelTiles, ridges: Tensor, rank: int | None, equivalent: EquivalentKernel | None, seed: int = 0
) -> PreconditionerName:
    """The one that needs fewest steps to 1e-4 on a sample of rows, with a rank in proportion; ties go to the simpler.

    Without an equivalent there is nothing to choose: randomly pivoted Cholesky (theory, section 16).
    """
    if equivalent is None or tiles.scale is not None:
        return "rpcholesky"
    few = min(_PROBE, tiles.n)
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(tiles.n, generator=generator)[:few].to(tiles.X.device)
    sample = KernelTiles(tiles.kernel, tiles.X[index], store="memory", progress=False)
    b = torch.randn(few, 1, generator=generator, dtype=torch.float64).to(tiles.X)
    full = default_rank(tiles.n) if rank is None else rank
    part, lowest = max(1, full * few // tiles.n), ridges.min().reshape(1)
    operator = _restricted(equivalent, index)
    candidates: tuple[PreconditionerName, ...] = ("rpcholesky", "equivalent", "equivalent+rpcholesky")
    costs = {}
    for name in candidates:
        try:
            tried = precondition(name, sample, rank=part, equivalent=operator, seed=seed)
            costs[name] = solve_tiles(sample, b, lowest, tried, tol=1e-4, max_steps=500, progress=False).steps
        except NotSoDeepError:  # an equivalent that is not positive definite here is no candidate
            continue
    return min(costs, key=lambda name: costs[name]) if costs else "rpcholesky"


def _restricted(operator: EquivalentKernel, index: Tensor) -> EquivalentKernel:
    """The equivalent on some of its rows."""
    where = index.cpu().numpy()
    shift = operator.shift if isinstance(operator.shift, float) else operator.shift[where]
    return replace(operator, X=operator.rows[index], V=operator.V[where], shift=shift)
