"""Which preconditioner: tried on a few of the rows, where a solve costs next to nothing."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..equivalents import EquivalentKernel
from ..errors import NotSoDeepError
from .iterative import solve_tiles
from .operator import KernelOperator
from .preconditioners import PreconditionerName, default_rank, precondition
from .tiles import KernelTiles

__all__ = ["choose"]

_PROBE = 1000
_CLEARLY = 0.5  # a step with the equivalent passes over the data several times


def choose(
    tiles: KernelOperator, ridges: Tensor, rank: int | None, equivalent: EquivalentKernel | None, seed: int = 0
) -> PreconditionerName:
    """Randomly pivoted Cholesky (theory, section 16), unless the equivalent needs half its steps or less.

    Both are tried on a sample of rows, to 1e-4, with the rank itself: more of it than the whole would have, but what
    pivots capture hardly depends on how many other rows there are.
    """
    if equivalent is None or tiles.scale is not None:
        return "rpcholesky"
    few = min(_PROBE, tiles.n)
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(tiles.n, generator=generator)[:few].to(tiles.X.device)
    sample = KernelTiles(tiles.kernel, tiles.X[index], store="memory", progress=False)
    b = torch.randn(few, 1, generator=generator, dtype=torch.float64).to(tiles.X)
    full = default_rank(tiles.n) if rank is None else rank
    part, lowest = min(full, few // 2), ridges.min().reshape(1)
    operator = _restricted(equivalent, index)
    candidates: tuple[PreconditionerName, ...] = ("rpcholesky", "equivalent", "equivalent+rpcholesky")
    costs = {}
    for name in candidates:
        try:
            tried = precondition(name, sample, rank=part, equivalent=operator, seed=seed)
            costs[name] = solve_tiles(sample, b, lowest, tried, tol=1e-4, max_steps=500, progress=False).steps
        except NotSoDeepError:  # an equivalent that is not positive definite here is no candidate
            continue
    usual = costs.get("rpcholesky", 500)
    better = {name: steps for name, steps in costs.items() if steps <= _CLEARLY * usual}
    return min(better, key=lambda name: better[name]) if better else "rpcholesky"


def _restricted(operator: EquivalentKernel, index: Tensor) -> EquivalentKernel:
    """The equivalent on some of its rows."""
    where = index.cpu().numpy()
    shift = operator.shift if isinstance(operator.shift, float) else operator.shift[where]
    return replace(operator, X=operator.rows[index], V=operator.V[where], shift=shift)
