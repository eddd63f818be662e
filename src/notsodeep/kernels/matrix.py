"""Exact infinite-width kernel matrices: blocked, symmetric to the bit, NumPy or torch, CPU or CUDA.

Each tile of the Gram matrix is turned into a tile of every requested kernel, by table where one reaches full
accuracy and entry by entry elsewhere; only one triangle is computed when the matrix is symmetric. Beyond inputs and
outputs a few tiles are held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._arrays import as_rows, check_norms, check_target, like, same_columns, sheltered, squared_norms
from .._progress import track
from ..errors import ConvergenceError, InvalidInputError
from ..networks import DEQ, KERNELS, Kernel, Network, check_kernels, rates_of, tangent_kernel
from .lookup import Table, angle_cap, build_table, clenshaw, clenshaw_scalar, fused, fused_scalar, tabulated_diagonal
from .pointwise import diagonal, pairwise

__all__ = ["ck", "kernels_of", "ntk"]

_TILE = {"cpu": 512, "cuda": 4096}
_SPARED = 500  # so many entries may lie beyond the reach of the table
_PAIRS = 4096  # pairs of rows whose products are held at once
_DIRECT_PAIRS = 512  # fewer pairs than this are not worth a table
_SHORT = 1e-6  # of the longest row: a table knows an entry to rounding of the largest ones, not of a far smaller one


def ck(
    network: Network,
    X: Any,
    Y: Any = None,
    *,
    check: bool = True,
    out: Any = None,
    compile: bool = False,
    progress: bool | None = None,
) -> Any:
    """The conjugate kernel of a DEQ or an ENN between the rows of ``X`` and of ``Y`` (of ``X`` if not given).

    Parameters
    ----------
    X, Y : arrays (n, p) and (m, p), taken as given: nothing is rescaled. NumPy in, NumPy out; torch in, torch out on
        the same device. float32 stays float32, everything else is computed in float64.
    check : raise :class:`ContractionError` for a DEQ outside the range in which a unique equilibrium is guaranteed;
        ``False`` computes wherever the kernel equations still converge.
    out : an array or tensor of shape (n, m) to write into, for instance a memory map.
    compile : fuse the evaluation of each tile with ``torch.compile``; worth its start-up for large or repeated work.

    Tensors that require a gradient, and DEQs whose variances do, give differentiable kernels.

    >>> import numpy as np, notsodeep as nsd
    >>> nsd.ck(nsd.ENN(["relu"]), np.eye(2)).round(6)
    array([[0.5     , 0.159155],
           [0.159155, 0.5     ]])
    """
    outs: Any = None if out is None else {"ck": out}
    return kernels_of(network, X, Y, kinds=("ck",), check=check, out=outs, compile=compile, progress=progress)["ck"]


def ntk(
    network: Network,
    X: Any,
    Y: Any = None,
    train_input: bool = True,
    *,
    kernel: Kernel | None = None,
    learning_rates: Sequence[float] | None = None,
    check: bool = True,
    out: Any = None,
    compile: bool = False,
    progress: bool | None = None,
) -> Any:
    """The neural tangent kernel; see :func:`ck` for the arguments.

    ``kernel="ntk"``: all weights are trained. ``"ntk_frozen"``: the input weights are frozen (B of a DEQ, which gives
    the papers' K*; W_1 of an ENN); ``train_input=False`` says the same. ``learning_rates`` (ENN only) are multipliers
    of W_1, ..., W_L and the readout.

    >>> import numpy as np, notsodeep as nsd
    >>> nsd.ntk(nsd.ENN(["relu"]), np.eye(2)).round(6)
    array([[1.      , 0.159155],
           [0.159155, 1.      ]])
    """
    kernel = tangent_kernel(kernel, train_input)
    found = kernels_of(
        network,
        X,
        Y,
        kinds=(kernel,),
        learning_rates=learning_rates,
        check=check,
        out=None if out is None else {kernel: out},
        compile=compile,
        progress=progress,
    )
    return found[kernel]


@sheltered
def kernels_of(
    network: Network,
    X: Any,
    Y: Any = None,
    *,
    kinds: Sequence[Kernel] = KERNELS,
    learning_rates: Sequence[float] | None = None,
    check: bool = True,
    out: Mapping[Kernel, Any] | None = None,
    compile: bool = False,
    progress: bool | None = None,
) -> dict[Kernel, Any]:
    """Several kernels of one network at once, sharing the work: a dict of ``"ck"``, ``"ntk"``, ``"ntk_frozen"``."""
    kinds = check_kernels(network, kinds)
    rates = rates_of(network, learning_rates)
    if isinstance(network, DEQ) and check:
        network.check_contraction()
    x = as_rows(X, "X", least=0, tracked=True)
    y = None if Y is None else same_columns(x, as_rows(Y, "Y", least=0, tracked=True))
    tracked = isinstance(network, DEQ) and network.tracked
    if torch.is_grad_enabled() and (x.requires_grad or (y is not None and y.requires_grad) or tracked):
        if out is not None:
            raise InvalidInputError("out= cannot be combined with gradients; detach the inputs")
        result = _differentiable(network, x, y, kinds, rates)
    else:
        plain = None if y is None else y.detach()
        result = _fill(network, x.detach(), plain, kinds, rates, out, compile, progress)
    return {k: out[k] if out is not None else like(v, X) for k, v in result.items()}


# ---- matrices --------------------------------------------------------------------------------------------


@dataclass
class _Plan:
    """What a tile needs besides its rows."""

    network: Network
    kinds: tuple[Kernel, ...]
    rates: tuple[float, ...] | None
    symmetric: bool
    compiled: bool
    table: Table | None = None


def _fill(
    network: Network,
    x: Tensor,
    y: Tensor | None,
    kinds: Sequence[Kernel],
    rates: Sequence[float] | None,
    out: Mapping[Kernel, Any] | None,
    compile: bool,
    progress: bool | None,
) -> dict[Kernel, Tensor]:
    symmetric, other = y is None, x if y is None else y
    shape = (len(x), len(other))
    target = _destinations(kinds, shape, (x, other), out)
    if 0 in shape:
        return target
    sx = squared_norms(x)
    sy = sx if symmetric else squared_norms(other)
    tile = _TILE["cuda" if x.is_cuda else "cpu"]
    blocks = list(_blocks(shape, tile, symmetric))
    plan = _Plan(network, tuple(kinds), None if rates is None else tuple(rates), symmetric, compile)
    plan.table = _table(plan, x, other, sx, sy, blocks)
    points = _Points(plan, x, other, sx, sy)
    for rows, columns in track(blocks, len(blocks), "kernel", progress):
        for kind, values in points.tile(rows, columns).items():
            _check_finite(values, network)
            _store(target[kind], values, rows, columns, symmetric)
    if symmetric:
        exact = tabulated_diagonal(network, sx.cpu(), kinds, rates)
        for kind in kinds:
            along = exact[kind].to(target[kind].dtype)
            _check_finite(along, network)
            target[kind].diagonal().copy_(along)
    return target


def _check_finite(values: Tensor, network: Network) -> None:
    # a sum is finite unless an entry is not, or the sum itself overflows
    if not bool(torch.isfinite(values.sum())) and not bool(torch.isfinite(values).all()):
        raise ConvergenceError(
            f"the kernel of {network!r} overflows {values.dtype} on these inputs; scale them down"
            + (", or give them in float64" if values.dtype == torch.float32 else "")
        )


def _destinations(
    kinds: Sequence[Kernel], shape: tuple[int, int], inputs: tuple[Tensor, Tensor], out: Any
) -> dict[Kernel, Tensor]:
    if out is None:
        return {kind: torch.empty(shape, dtype=inputs[0].dtype, device=inputs[0].device) for kind in kinds}
    if not isinstance(out, Mapping) or any(kind not in out for kind in kinds):
        raise InvalidInputError(f"out= must be a dict with an array for each of {tuple(kinds)}, got {out!r:.200}")
    found: dict[Kernel, Tensor] = {}
    for kind in kinds:
        found[kind] = check_target(out[kind], shape, [*inputs, *found.values()])
    return found


def _store(target: Tensor, values: Tensor, rows: slice, columns: slice, symmetric: bool) -> None:
    if symmetric and rows == columns:
        values = torch.triu(values) + torch.triu(values, 1).T
    target[rows, columns] = values
    if symmetric and rows != columns:
        target[columns, rows] = values.T


def _blocks(shape: tuple[int, int], tile: int, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    for i in range(0, shape[0], tile):
        for j in range(i if symmetric else 0, shape[1], tile):
            yield slice(i, min(i + tile, shape[0])), slice(j, min(j + tile, shape[1]))


def _table(
    plan: _Plan, x: Tensor, y: Tensor, sx: Tensor, sy: Tensor, blocks: Sequence[tuple[slice, slice]]
) -> Table | None:
    """The table for this data, or ``None`` where entry by entry is cheaper or a table would not be exact."""
    pairs = len(x) * len(y) / (2 if plan.symmetric else 1)
    if pairs <= _DIRECT_PAIRS:
        return None
    norms = torch.cat([sx, sy]).sqrt()
    high = float(norms.max())
    low = high if high == 0.0 else float(norms[norms >= _SHORT * high].min())
    reach = min(angle_cap(plan.network), _reach(_sampled_cosines(x, y, sx, sy, blocks, plan.symmetric), pairs))
    return build_table(plan.network, plan.kinds, plan.rates, low, high, reach, pairs)


def _sampled_cosines(
    x: Tensor, y: Tensor, sx: Tensor, sy: Tensor, blocks: Sequence[tuple[slice, slice]], symmetric: bool
) -> Tensor:
    """|r| on corners of a few tiles, in increasing order."""
    seen = []
    for rows, columns in blocks[:: max(1, len(blocks) // 3)][:3]:
        a, b = (slice(part.start, min(part.stop, part.start + 256)) for part in (rows, columns))
        r = _cosines(x[a] @ y[b].T, _inverse_norm(sx[a], x.dtype), _inverse_norm(sy[b], x.dtype)).abs_()
        if symmetric and a == b:
            r.fill_diagonal_(0.0)
        seen.append(r.flatten())
    return torch.cat(seen).sort().values


def _reach(cosines: Tensor, pairs: float) -> float:
    """How far the table should reach; the entries beyond, few near-duplicates, are evaluated one by one."""
    largest = float(cosines[-1])
    if largest > 0.9:
        spared = max(0.0, 1.0 - _SPARED / pairs)
        largest = float(cosines[int(spared * (len(cosines) - 1))])
    return 1.0 if largest > 0.9 else min(1.0, 1.2 * largest + 0.02)


def _inverse_norm(s: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(s > 0, s.clamp_min(1e-300).rsqrt(), torch.zeros_like(s)).to(dtype)


def _cosines(gram: Tensor, wx: Tensor, wy: Tensor) -> Tensor:
    return gram.mul_(wx[:, None]).mul_(wy)


class _Points:
    """The rows of both sides with everything that is computed once per row."""

    def __init__(self, plan: _Plan, x: Tensor, y: Tensor, sx: Tensor, sy: Tensor) -> None:
        self.plan, self.x, self.y, self.sx, self.sy = plan, x, y, sx, sy
        self.wx, self.wy = _inverse_norm(sx, x.dtype), _inverse_norm(sy, x.dtype)
        self.left: dict[Kernel, Tensor] = {}
        self.right: dict[Kernel, Tensor] = {}
        self._rows: tuple[slice, Tensor] | None = None
        self.short: tuple[Tensor, ...] | None = None
        table = plan.table
        if table is None:
            return
        # rows shorter than the table covers, zeros among them, are evaluated entry by entry
        self.short = None if table.homogeneous else tuple(t.sqrt() < table.low * (1.0 - 1e-9) for t in (sx, sy))
        for kind in plan.kinds:
            if table.one_function:
                self.left[kind] = sx.sqrt()[:, None].to(x.dtype)
                self.right[kind] = sy.sqrt()[None, :].to(x.dtype)
            else:
                self.left[kind] = table.side(kind, sx.sqrt(), signed=True).to(x.dtype)
                self.right[kind] = table.side(kind, sy.sqrt(), signed=False).to(x.dtype).T.contiguous()

    def tile(self, rows: slice, columns: slice) -> dict[Kernel, Tensor]:
        table = self.plan.table
        if table is None:
            return self._one_by_one(rows, columns)
        r = self._unit_rows(rows) @ self.y[columns].T
        r.mul_(self.wy[columns])
        if self.plan.symmetric and rows == columns:
            r.fill_diagonal_(0.0)  # written from the norms alone, exactly
        low, high = torch.aminmax(r)
        outside = self._short_rows(rows, columns)
        if max(-float(low), float(high)) > table.reach:
            beyond = r.abs() > table.reach
            if table.reach < 1.0:
                outside = beyond if outside is None else outside | beyond
            r.clamp_(-table.reach, table.reach)
        x2 = table.position(r)
        values = {kind: self._lookup(kind, rows, columns, x2) for kind in self.plan.kinds}
        if outside is not None:
            for kind, exact in self._direct(outside, rows, columns).items():
                values[kind][outside] = exact
        return values

    def _short_rows(self, rows: slice, columns: slice) -> Tensor | None:
        """The entries of rows that are shorter than the table covers."""
        if self.short is None:
            return None
        left, right = self.short[0][rows], self.short[1][columns]
        return left[:, None] | right if bool(left.any()) or bool(right.any()) else None

    def _unit_rows(self, rows: slice) -> Tensor:
        """The normalised rows of the current row of tiles."""
        if self._rows is None or self._rows[0] != rows:
            self._rows = rows, self.x[rows] * self.wx[rows, None]
        return self._rows[1]

    def _lookup(self, kind: Kernel, rows: slice, columns: slice, x2: Tensor) -> Tensor:
        table = self.plan.table
        assert table is not None
        series = table.series[kind]
        left, right = self.left[kind][rows], self.right[kind][:, columns]
        if not table.one_function:
            return (fused() if self.plan.compiled else clenshaw)(series.ranks, left, right, x2)
        c = series.scalars()
        if self.plan.compiled:
            values = fused_scalar()(torch.tensor(c, dtype=x2.dtype, device=x2.device), x2)
        else:
            values = clenshaw_scalar(c, x2)
        return values.mul_(left).mul_(right) if table.homogeneous else values

    def _one_by_one(self, rows: slice, columns: slice) -> dict[Kernel, Tensor]:
        """A tile without a table; on the diagonal of a symmetric matrix only what lies above it."""
        shape = (len(self.sx[rows]), len(self.sy[columns]))
        wanted = torch.ones(shape, dtype=torch.bool, device=self.x.device)
        wanted = torch.triu(wanted, 1) if self.plan.symmetric and rows == columns else wanted
        tiles = {kind: torch.zeros(shape, dtype=self.x.dtype, device=self.x.device) for kind in self.plan.kinds}
        if bool(wanted.any()):
            for kind, exact in self._direct(wanted, rows, columns).items():
                tiles[kind][wanted] = exact
        return tiles

    def _direct(self, wanted: Tensor, rows: slice, columns: slice) -> dict[Kernel, Tensor]:
        """The wanted entries of a tile, one by one, from inner products in double precision."""
        i, j = wanted.nonzero(as_tuple=True)
        a, b = self.sx[rows][i], self.sy[columns][j]
        x, y = self.x[rows], self.y[columns]
        dot = torch.cat(
            [_dots(x[p], y[q], s, t) for p, q, s, t in zip(*(v.split(_PAIRS) for v in (i, j, a, b)), strict=True)]
        )
        plan = self.plan
        exact = pairwise(plan.network, a.cpu(), b.cpu(), dot.cpu(), plan.kinds, plan.rates, check=False)
        return {kind: v.to(self.x.device, self.x.dtype) for kind, v in exact.items()}


def _dots(x: Tensor, y: Tensor, sx: Tensor, sy: Tensor) -> Tensor:
    """Inner products of pairs of rows; where they nearly coincide from their difference: exact for duplicates."""
    x, y = x.double(), y.double()
    dot, half = (x * y).sum(1), 0.5 * (sx + sy)
    sign = torch.where(dot < 0, -1.0, 1.0).to(dot)
    near = half - dot.abs() <= 1e-6 * half
    if bool(near.any()):
        apart = ((x[near] - sign[near, None] * y[near]) ** 2).sum(1)
        dot[near] = sign[near] * (half[near] - 0.5 * apart)
    return dot


# ---- gradients -------------------------------------------------------------------------------------------


def _differentiable(
    network: Network, x: Tensor, y: Tensor | None, kinds: Sequence[Kernel], rates: Sequence[float] | None
) -> dict[Kernel, Tensor]:
    sx = (x.double() ** 2).sum(1)
    check_norms(sx)
    if y is not None:
        sy = (y.double() ** 2).sum(1)
        check_norms(sy)
        parts = pairwise(network, sx[:, None], sy[None, :], x.double() @ y.double().T, kinds, rates, check=False)
        return {kind: part.to(x.device, x.dtype) for kind, part in parts.items()}
    n = len(x)
    i, j = torch.triu_indices(n, n, offset=1)
    dot = (x.double() @ x.double().T)[i, j]
    above = pairwise(network, sx[i], sx[j], dot, kinds, rates, check=False)
    along = diagonal(network, sx, kinds, rates, check=False)
    result = {}
    for kind in kinds:
        upper = torch.zeros(n, n, dtype=torch.float64).index_put((i, j), above[kind])
        result[kind] = (upper + upper.T + torch.diag(along[kind])).to(x.device, x.dtype)
    return result
