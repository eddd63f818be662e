"""Exact infinite-width kernel matrices: blocked, symmetric to the bit, NumPy or torch, CPU or CUDA.

Each tile of the Gram matrix is turned into a tile of every requested kernel, by table where one reaches full
accuracy and entry by entry elsewhere; only one triangle is computed when the matrix is symmetric. Beyond inputs and
outputs a few tiles are held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._arguments import checked
from .._arrays import as_rows, bad_row, check_target, isolated_settings, like, same_columns, squared_norms
from .._progress import track
from ..errors import ConvergenceError, InvalidInputError
from ..networks import DEQ, KERNELS, Kernel, Network, check_kernels, rates_of
from .device import fill_fused, start_products
from .lookup import Table
from .pointwise import diagonal, pairwise
from .tabulate import SHORT, rounded_range, table_for
from .tiles import Points, fill_tiles, tile_shape, tiles_of

__all__ = ["ck", "kernels_of", "ntk"]

_DIRECT_PAIRS = 1024  # fewer pairs than this are not worth a table
_EQUAL = {torch.float64: 1e-14, torch.float32: 3e-8}  # norms that differ by no more are one


def ck(
    network: Network, X: Any, Y: Any = None, *, check: bool = True, out: Any = None, progress: bool | None = None
) -> Any:
    """Compute the conjugate kernel of a network between the rows of ``X`` and ``Y``.

    Parameters
    ----------
    network : DEQ or ENN
        The specification of the infinitely wide network.
    X : array of shape (n, p)
        The inputs as rows, taken as given: nothing is rescaled. float32 stays float32, everything else is computed
        in float64. Tensors that require a gradient, and DEQs whose variances do, give differentiable kernels.
    Y : array of shape (m, p), optional
        The other inputs; ``X`` itself unless given.
    check : bool
        ``False`` computes also outside the range in which a unique equilibrium is guaranteed.
    out : array of shape (n, m), optional
        The result is written here, for instance into a memory map.
    progress : bool, optional
        Whether a bar is shown; by default only on a terminal and only if the work takes long.

    Returns
    -------
    array of shape (n, m)
        A NumPy array if ``X`` is one, else a tensor on the device of ``X``.

    Raises
    ------
    ContractionError
        If a unique equilibrium is not guaranteed and ``check`` is true.

    Examples
    --------
    >>> import numpy as np, notsodeep as nsd
    >>> nsd.ck(nsd.ENN(["relu"]), np.eye(2)).round(6)
    array([[0.5     , 0.159155],
           [0.159155, 0.5     ]])
    """
    outs: Any = None if out is None else {"ck": out}
    return kernels_of(network, X, Y, kernels=("ck",), check=check, out=outs, progress=progress)["ck"]


@checked
def ntk(
    network: Network,
    X: Any,
    Y: Any = None,
    train_input: bool = True,
    *,
    learning_rates: Sequence[float] | None = None,
    check: bool = True,
    out: Any = None,
    progress: bool | None = None,
) -> Any:
    """Compute the neural tangent kernel of a network between the rows of ``X`` and ``Y``.

    Parameters
    ----------
    network : DEQ or ENN
        The specification of the infinitely wide network.
    X : array of shape (n, p)
        The inputs as rows, taken as given.
    Y : array of shape (m, p), optional
        The other inputs; ``X`` itself unless given.
    train_input : bool
        ``False`` freezes the input weights: B of a DEQ (which gives the papers' K*), W_1 of an ENN.
    learning_rates : sequence of floats, optional
        For an ENN: multipliers of W_1, ..., W_L and the readout.
    check, out, progress
        Options of :func:`ck`.

    Returns
    -------
    array of shape (n, m)
        A NumPy array if ``X`` is one, else a tensor on the device of ``X``.

    Raises
    ------
    InvalidInputError
        If an activation jumps, because then the kernel is infinite.

    Examples
    --------
    >>> import numpy as np, notsodeep as nsd
    >>> nsd.ntk(nsd.ENN(["relu"]), np.eye(2)).round(6)
    array([[1.      , 0.159155],
           [0.159155, 1.      ]])
    """
    kernel: Kernel = "ntk" if train_input else "ntk_frozen"
    outs: Any = None if out is None else {kernel: out}
    options: Any = {"learning_rates": learning_rates, "check": check, "out": outs, "progress": progress}
    return kernels_of(network, X, Y, kernels=(kernel,), **options)[kernel]


@isolated_settings
def kernels_of(
    network: Network,
    X: Any,
    Y: Any = None,
    *,
    kernels: Sequence[Kernel] = KERNELS,
    learning_rates: Sequence[float] | None = None,
    check: bool = True,
    out: Mapping[Kernel, Any] | None = None,
    progress: bool | None = None,
) -> dict[Kernel, Any]:
    """Compute several kernels of one network at once: they share most of the work.

    Parameters
    ----------
    network : DEQ or ENN
        The specification of the infinitely wide network.
    X : array of shape (n, p)
        The inputs as rows, taken as given.
    Y : array of shape (m, p), optional
        The other inputs; ``X`` itself unless given.
    kernels : sequence of {"ck", "ntk", "ntk_frozen"}
        Which kernels to compute.
    learning_rates : sequence of floats, optional
        For an ENN: multipliers of W_1, ..., W_L and the readout.
    out : dict of arrays of shape (n, m), optional
        The result for each kernel is written here.
    check, progress
        Options of :func:`ck`.

    Returns
    -------
    dict of arrays of shape (n, m)
        One matrix for each name in ``kernels``.

    Examples
    --------
    >>> import numpy as np, notsodeep as nsd
    >>> found = nsd.kernels_of(nsd.DEQ("linear", 0.2), np.eye(2), kernels=("ck", "ntk"))
    >>> {name: round(float(matrix[0, 0]), 6) for name, matrix in found.items()}
    {'ck': 1.0, 'ntk': 2.25}
    """
    kernels = check_kernels(network, kernels)
    rates = rates_of(network, learning_rates)
    if isinstance(network, DEQ) and check:
        network.check_contraction()
    x = as_rows(X, "X", least=0, tracked=True)
    y = None if Y is None else same_columns(x, as_rows(Y, "Y", least=0, tracked=True))
    tracked = isinstance(network, DEQ) and network.tracked
    if torch.is_grad_enabled() and (x.requires_grad or (y is not None and y.requires_grad) or tracked):
        if out is not None:
            raise InvalidInputError("out= cannot be combined with gradients; detach the inputs")
        result = _differentiable(network, x, y, kernels, rates)
    else:
        plain = None if y is None else y.detach()
        result = fill(network, x.detach(), plain, kernels, rates, out, progress)
    return {k: out[k] if out is not None else like(v, X) for k, v in result.items()}


# ---- matrices --------------------------------------------------------------------------------------------


def fill(
    network: Network,
    x: Tensor,
    y: Tensor | None,
    kernels: Sequence[Kernel],
    rates: Sequence[float] | None,
    out: Mapping[Kernel, Any] | None,
    progress: bool | None,
    table: Table | None = None,
) -> dict[Kernel, Tensor]:
    """The matrices, from ``table`` where it holds the norms, else from the one that is kept for such norms."""
    symmetric, other = y is None, x if y is None else y
    shape = (len(x), len(other))
    target = _destinations(kernels, shape, (x, other), out)
    if 0 in shape:
        return target
    sx = squared_norms(x)
    sy = sx if symmetric else squared_norms(other)
    least, low, high = _norms(sx, sy)
    pairs = len(sx) * len(sy) / (2 if symmetric else 1)
    started = start_products(x, other, symmetric, target)  # tables are built meanwhile
    table = _table(network, kernels, rates, low, high, pairs, table, x.dtype)
    points = Points(network, tuple(kernels), rates, table, x, other, sx, sy, symmetric=symmetric, least=least)
    if not (started and fill_fused(points, target)):
        blocks = list(tiles_of(shape, tile_shape(x.device), symmetric))
        fill_tiles(points, target, track(blocks, len(blocks), "kernel", progress), len(blocks))
    if symmetric:
        for kernel, values in diagonals(network, kernels, rates, sx, table, least).items():
            target[kernel].diagonal().copy_(values)
    for values in target.values():
        if bad_row(values) is not None:
            raise ConvergenceError(
                f"the kernel of {network!r} overflows {values.dtype} on these inputs; scale them down"
                + (", or give them in float64" if values.dtype == torch.float32 else "")
            )
    return target


def _table(
    network: Network,
    kernels: Sequence[Kernel],
    rates: Sequence[float] | None,
    low: float,
    high: float,
    pairs: float,
    given: Table | None,
    dtype: torch.dtype,
) -> Table | None:
    """The table for such norms, or ``None`` where entry by entry is cheaper or a table would not be exact."""
    if high == 0.0:
        return None
    if given is not None and given.holds(low, high) and all(k in given.kernels for k in kernels):
        return given
    if pairs <= _DIRECT_PAIRS:
        return None
    scale = rounded_range(network, low, high, _EQUAL[dtype])
    if given is not None and not scale.single:
        scale = rounded_range(network, min(low, given.norms.low), max(high, given.norms.high))
    return table_for(network, kernels, rates, scale, pairs, dtype)


def norm_range(*squares: Tensor) -> tuple[float, float]:
    """The smallest and the largest norm, but for rows so short, or zero, that they are evaluated one by one."""
    return _norms(*squares)[1:]


def _norms(*squares: Tensor) -> tuple[float, float, float]:
    """The smallest norm, and the range of those that are not too short."""
    ends = torch.stack([v for s in squares for v in torch.aminmax(s)]).sqrt().tolist()
    least = low = min(ends)
    high = max(ends)
    if low < SHORT * high:
        low = min(float(part.min()) for s in squares if len(part := s[s >= (SHORT * high) ** 2])) ** 0.5
    return least, low, high


def diagonals(
    network: Network,
    kernels: Sequence[Kernel],
    rates: Sequence[float] | None,
    s: Tensor,
    table: Table | None,
    least: float = 0.0,
) -> dict[Kernel, Tensor]:
    """Kernels of points with themselves, from their squared norms; exact, whatever the rounding of inner products.

    ``least``: no norm is below.
    """
    if table is None:
        return {k: v.to(s.device) for k, v in diagonal(network, s.cpu(), kernels, rates, check=False).items()}
    found = {kernel: table.diagonal(kernel, s.sqrt()) for kernel in kernels}
    short = table.shorter(s, least)
    if short is not None:
        for kernel, exact in diagonal(network, s[short].cpu(), kernels, rates, check=False).items():
            found[kernel][short] = exact.to(s.device)
    return found


def _destinations(
    kernels: Sequence[Kernel], shape: tuple[int, int], inputs: tuple[Tensor, Tensor], out: Any
) -> dict[Kernel, Tensor]:
    if out is None:
        return {kernel: torch.empty(shape, dtype=inputs[0].dtype, device=inputs[0].device) for kernel in kernels}
    if not isinstance(out, Mapping) or any(kernel not in out for kernel in kernels):
        raise InvalidInputError(f"out= must be a dict with an array for each of {tuple(kernels)}, got {out!r:.200}")
    found: dict[Kernel, Tensor] = {}
    for kernel in kernels:
        found[kernel] = check_target(out[kernel], shape, [*inputs, *found.values()])
    return found


# ---- gradients -------------------------------------------------------------------------------------------


def _differentiable(
    network: Network, x: Tensor, y: Tensor | None, kernels: Sequence[Kernel], rates: Sequence[float] | None
) -> dict[Kernel, Tensor]:
    sx = squared_norms(x)
    if y is not None:
        parts = pairwise(network, sx[:, None], squared_norms(y), x.double() @ y.double().T, kernels, rates, check=False)
        return {kernel: part.to(x.device, x.dtype) for kernel, part in parts.items()}
    n = len(x)
    i, j = torch.triu_indices(n, n, offset=1)
    dot = (x.double() @ x.double().T)[i, j]
    above = pairwise(network, sx[i], sx[j], dot, kernels, rates, check=False)
    along = diagonal(network, sx, kernels, rates, check=False)
    result = {}
    for kernel in kernels:
        upper = torch.zeros(n, n, dtype=torch.float64).index_put((i, j), above[kernel])
        result[kernel] = (upper + upper.T + torch.diag(along[kernel])).to(x.device, x.dtype)
    return result
