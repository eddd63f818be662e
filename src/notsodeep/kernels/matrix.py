"""Exact infinite-width kernel matrices: blocked, symmetric to the bit, NumPy or torch, CPU or CUDA.

Each tile of the Gram matrix is turned into a tile of every requested kernel, by table where one reaches full
accuracy and entry by entry elsewhere; only one triangle is computed when the matrix is symmetric. Beyond inputs and
outputs a few tiles are held. :class:`TabulatedKernel` carries its table with it; the functions find theirs in a cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._arguments import checked
from .._arrays import as_rows, bad_row, check_target, isolated_settings, like, same_columns, squared_norms
from ..errors import ConvergenceError, InvalidInputError
from ..networks import DEQ, KERNELS, Kernel, Network
from .device import fill_fused, start_products
from .pointwise import KernelSpec
from .table import Table
from .tabulate import rounded_range, table_for
from .tiles import Points, fill_tiles, norm_range

__all__ = ["TabulatedKernel", "ck", "kernel_function", "kernels_of", "ntk"]


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
        ``False`` freezes the input weights: B of a DEQ (which gives the slides' K*), W_1 of an ENN.
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
    spec = KernelSpec.of(network, kernels, learning_rates, check)
    x = as_rows(X, "X", least=0, tracked=True)
    y = None if Y is None else same_columns(x, as_rows(Y, "Y", least=0, tracked=True))
    tracked = isinstance(network, DEQ) and network.tracked
    if torch.is_grad_enabled() and (x.requires_grad or (y is not None and y.requires_grad) or tracked):
        if out is not None:
            raise InvalidInputError("out= cannot be combined with gradients; detach the inputs")
        result = _differentiable(spec, x, y)
    else:
        result = _fill(spec, x.detach(), None if y is None else y.detach(), out, progress)
    return {k: out[k] if out is not None else like(v, X) for k, v in result.items()}


# ---- a kernel as an object -------------------------------------------------------------------------------


@isolated_settings
def kernel_function(
    network: Network,
    kernel: Kernel = "ntk",
    norms: Any = None,
    *,
    learning_rates: Sequence[float] | None = None,
    check: bool = True,
) -> TabulatedKernel:
    """Return the kernel of a network as a function of rows, with its table built for a range of norms.

    Parameters
    ----------
    network : DEQ or ENN
        The specification of the infinitely wide network.
    kernel : {"ck", "ntk", "ntk_frozen"}
        Which kernel.
    norms : (low, high) or array of shape (n, p), optional
        The smallest and the largest norm of the inputs, or the inputs themselves. Rows outside are served too, by a
        wider table. Without it the first call decides; homogeneous networks need no range.
    learning_rates, check
        Options of :func:`ntk`.

    Returns
    -------
    TabulatedKernel
        A callable that pickles with its table, so that workers and servers pay nothing at the start.

    Examples
    --------
    >>> import numpy as np, notsodeep as nsd
    >>> k = nsd.kernel_function(nsd.DEQ("tanh", 0.2), "ck", norms=(0.9, 1.1))
    >>> k
    TabulatedKernel(DEQ(Tanh(), sigma_a2=0.2, sigma_b2=0.8), 'ck', norms=(0.840896, 1.18921))
    >>> k(np.eye(2)).round(6)
    array([[0.369925, 0.      ],
           [0.      , 0.369925]])
    """
    found = TabulatedKernel(KernelSpec.of(network, (kernel,), learning_rates, check).detached)
    if norms is not None or network.homogeneous:
        found._tabulate(*((1.0, 1.0) if norms is None else _ends(norms)))
    return found


class TabulatedKernel:
    """The kernel k(X, Y) of a network, exact, from a table of the angle and the norms.

    Parameters
    ----------
    spec : KernelSpec
        The network, the name of its kernel and its learning rates; :func:`kernel_function` makes it.

    Examples
    --------
    >>> import numpy as np, notsodeep as nsd
    >>> nsd.kernel_function(nsd.ENN(["linear"]), "ck").diagonal(np.eye(2))
    array([1., 1.])
    """

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec
        self.table: Table | None = None

    def __repr__(self) -> str:
        norms = "" if self.table is None or self.table.homogeneous else ", norms=({:.6g}, {:.6g})"
        ends = (self.table.norms.low, self.table.norms.high) if self.table is not None else ()
        return f"TabulatedKernel({self.spec.network!r}, {self.spec.names[0]!r}{norms.format(*ends)})"

    def _tabulate(self, low: float, high: float) -> None:
        scale = rounded_range(self.spec.network, low, high)
        self.table = table_for(self.spec, scale, math.inf) if high > 0.0 else None  # zeros alone need no table

    @isolated_settings
    def __call__(self, X: Any, Y: Any = None, *, out: Any = None) -> Any:
        """Compute the kernel between the rows of ``X`` and ``Y``, or of ``X`` alone.

        Parameters
        ----------
        X : array of shape (n, p)
            The inputs as rows.
        Y : array of shape (m, p), optional
            The other inputs; ``X`` itself unless given.
        out : array of shape (n, m), optional
            The result is written here.

        Returns
        -------
        array of shape (n, m)
            A NumPy array if ``X`` is one, else a tensor on the device of ``X``.
        """
        (name,) = self.spec.names
        x = as_rows(X, "X", least=0)
        y = None if Y is None else same_columns(x, as_rows(Y, "Y", least=0))
        rows = [part for part in (x, y) if part is not None and len(part)]
        if self.table is None and rows:
            self._tabulate(*norm_range(*map(squared_norms, rows))[1:])
        filled = _fill(self.spec, x, y, None if out is None else {name: out}, None, self.table)
        return like(filled[name], X) if out is None else out

    @isolated_settings
    def diagonal(self, X: Any) -> Any:
        """Compute k(x, x) of every row from the norms alone.

        Parameters
        ----------
        X : array of shape (n, p)
            The inputs as rows.

        Returns
        -------
        array of shape (n,)
            The kernel of every row with itself.
        """
        rows = as_rows(X, "X", least=0)
        s = squared_norms(rows)
        fits = self.table is not None and len(s) and self.table.holds(*norm_range(s)[1:])
        (along,) = _diagonals(self.spec, s, self.table if fits else None).values()
        return like(along.to(rows.dtype), X)


def _ends(norms: Any) -> tuple[float, float]:
    if isinstance(norms, tuple | list) and len(norms) == 2 and not any(hasattr(v, "__len__") for v in norms):
        low, high = (float(v) for v in norms)
        if not 0.0 <= low <= high < float("inf") or high == 0.0:
            raise InvalidInputError(f"norms must be (low, high) with 0 <= low <= high and high > 0, got {norms!r}")
        return low, high
    return norm_range(squared_norms(as_rows(norms, "norms")))[1:]


# ---- matrices --------------------------------------------------------------------------------------------


def _fill(
    spec: KernelSpec,
    x: Tensor,
    y: Tensor | None,
    out: Mapping[Kernel, Any] | None,
    progress: bool | None,
    table: Table | None = None,
) -> dict[Kernel, Tensor]:
    """Compute the matrices, from ``table`` where it holds the norms, else from the one that is cached for them."""
    points = Points(spec, x, y)
    target = _destinations(spec.names, x, points, out)
    if 0 in points.shape:
        return target
    # products run on the GPU while the CPU builds the table
    started = x.is_cuda and start_products(points, target)
    points.find_table(table)
    if not (started and fill_fused(points, target)):
        fill_tiles(points, target, progress)
    if points.symmetric:
        for kernel, values in _diagonals(spec, points.sx, points.table, points.least).items():
            target[kernel].diagonal().copy_(values)
    for values in target.values():
        if bad_row(values) is not None:
            raise ConvergenceError(
                f"the kernel of {spec.network!r} overflows {values.dtype} on these inputs; scale them down"
                + (", or give them in float64" if values.dtype == torch.float32 else "")
            )
    return target


def _diagonals(spec: KernelSpec, s: Tensor, table: Table | None, least: float = 0.0) -> dict[Kernel, Tensor]:
    """Kernels of points with themselves, from their squared norms; exact, whatever the rounding of inner products.

    ``least``: no norm is below.
    """
    if table is None:
        return {k: v.to(s.device) for k, v in spec.diagonal(s.cpu()).items()}
    found = {kernel: table.diagonal(kernel, s.sqrt()) for kernel in spec.names}
    short = table.shorter(s, least)
    if short is not None:
        for kernel, exact in spec.diagonal(s[short].cpu()).items():
            found[kernel][short] = exact.to(s.device)
    return found


def _destinations(kernels: Sequence[Kernel], x: Tensor, points: Points, out: Any) -> dict[Kernel, Tensor]:
    if out is None:
        return {kernel: torch.empty(points.shape, dtype=x.dtype, device=x.device) for kernel in kernels}
    if not isinstance(out, Mapping) or any(kernel not in out for kernel in kernels):
        raise InvalidInputError(f"out= must be a dict with an array for each of {tuple(kernels)}, got {out!r:.200}")
    found: dict[Kernel, Tensor] = {}
    for kernel in kernels:
        found[kernel] = check_target(out[kernel], points.shape, [x, points.y, *found.values()])
    return found


def _differentiable(spec: KernelSpec, x: Tensor, y: Tensor | None) -> dict[Kernel, Tensor]:
    sx = squared_norms(x)
    if y is not None:
        parts = spec.pairwise(sx[:, None], squared_norms(y), x.double() @ y.double().T)
        return {kernel: part.to(x.device, x.dtype) for kernel, part in parts.items()}
    n = len(x)
    i, j = torch.triu_indices(n, n, offset=1)
    above, along = spec.pairwise(sx[i], sx[j], (x.double() @ x.double().T)[i, j]), spec.diagonal(sx)
    result = {}
    for kernel in spec.names:
        upper = torch.zeros(n, n, dtype=torch.float64).index_put((i, j), above[kernel])
        result[kernel] = (upper + upper.T + torch.diag(along[kernel])).to(x.device, x.dtype)
    return result
