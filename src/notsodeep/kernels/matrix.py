"""Exact infinite-width kernel matrices: blocked, symmetric to the bit, NumPy or torch, CPU or CUDA.

Each tile of the Gram matrix becomes a tile of every kernel, by table where one reaches full accuracy and entry by entry
elsewhere. :class:`KernelFunction` may carry its table; the functions find theirs in a cache.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._arguments import checked, flag, isolation
from .._arrays import as_rows, check_range, check_target, like, same_columns, squared_norms
from .._progress import silent, track
from ..errors import InvalidInputError
from ..networks import KERNELS, Convolutional, Kernel, Network
from .bands import Given, lift_of, lifted, norm_range, tables_of
from .convolution import convolutional_diagonal, fill_convolutional
from .files import fill_files, is_path
from .gradients import differentiable
from .pointwise import KernelSpec
from .slopes import Slopes, slopes_of
from .table import Table
from .tiles import Points, fill_tiles


def ck(
    network: Network | Convolutional,
    X: Any,
    Y: Any = None,
    *,
    check: bool = True,
    out: Any = None,
    progress: bool | None = None,
) -> Any:
    """Compute the conjugate kernel of a network between the rows of ``X`` and ``Y``.

    Parameters
    ----------
    network : DEQ, ENN, ConvDEQ or ConvENN
        The specification of the infinitely wide network.
    X : array of shape (n, p)
        The inputs as rows, taken as given: nothing is rescaled. float32 stays float32, everything else is computed
        in float64. Tensors that require a gradient, and DEQs whose variances do, give differentiable kernels.
        Convolutional networks take images (n, channels, height, width) as well.
    Y : array of shape (m, p), optional
        The other inputs; ``X`` itself unless given.
    check : bool
        ``False`` also computes outside the range in which a unique equilibrium is guaranteed.
    out : array of shape (n, m) or path, optional
        The result is written here, for instance into a memory map. With the path of a .npy file it is written block by
        block into that file, and the result is its memory map: entries that are NaN are computed, others stay. The same
        call goes on after an interruption, and several processes of a machine may make it at once.
    progress : bool, optional
        Whether to show a progress bar; by default after two seconds, on a terminal or in a notebook.

    Returns
    -------
    array of shape (n, m)
        A NumPy array if ``X`` is one, else a tensor on the device of ``X``.

    Examples
    --------
    >>> import numpy as np, notsodeep as nsd
    >>> nsd.ck(nsd.ENN(["relu"]), np.eye(2)).round(6)
    array([[0.5     , 0.159155],
           [0.159155, 0.5     ]])
    """
    return _one_kernel(network, X, Y, "ck", check=check, out=out, progress=progress)


def ntk(
    network: Network | Convolutional,
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
    network, X, Y, check, out, progress
        As in :func:`ck`.
    train_input : bool
        ``False`` freezes the input weights: B of a DEQ (which gives the slides' K*), W_1 of an ENN.
    learning_rates : sequence of floats, optional
        For an ENN: multipliers of W_1, ..., W_L and the readout.

    Returns
    -------
    array of shape (n, m)
        A NumPy array if ``X`` is one, else a tensor on the device of ``X``.

    Examples
    --------
    >>> import numpy as np, notsodeep as nsd
    >>> nsd.ntk(nsd.ENN(["relu"]), np.eye(2)).round(6)
    array([[1.      , 0.159155],
           [0.159155, 1.      ]])
    """
    options: Any = {"learning_rates": learning_rates, "check": check, "out": out, "progress": progress}
    return _one_kernel(network, X, Y, "ntk" if flag("train_input", train_input) else "ntk_frozen", **options)


def _one_kernel(network: Any, X: Any, Y: Any, kernel: Kernel, *, out: Any, **options: Any) -> Any:
    return kernels_of(network, X, Y, kernels=(kernel,), out=None if out is None else {kernel: out}, **options)[kernel]


@checked
def kernels_of(
    network: Network | Convolutional,
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
    network, X, Y, check, progress
        As in :func:`ck`.
    kernels : sequence of {"ck", "ntk", "ntk_frozen"}
        Which kernels to compute.
    learning_rates : sequence of floats, optional
        For an ENN: multipliers of W_1, ..., W_L and the readout.
    out : dict of arrays of shape (n, m) or paths, optional
        The result for each kernel is written here, as in :func:`ck`.

    Returns
    -------
    dict of arrays of shape (n, m)
        One matrix for each name in ``kernels``.

    Examples
    --------
    >>> import numpy as np, notsodeep as nsd
    >>> both = nsd.kernels_of(nsd.DEQ("linear", 0.2), np.eye(2), kernels=("ck", "ntk"))
    >>> {name: round(float(matrix[0, 0]), 6) for name, matrix in both.items()}
    {'ck': 1.0, 'ntk': 2.25}
    """
    rates = network.rates(learning_rates)
    X, Y = network.flattened(X), network.flattened(Y)
    given: Any = [X, Y, *(v if isinstance(v, Tensor) else None for v in network.given_variances)]
    tensors = [v for v in given if isinstance(v, Tensor)]
    if out is not None and torch.is_grad_enabled() and any(v.requires_grad for v in tensors):
        raise InvalidInputError("out= cannot be combined with gradients; detach the inputs")
    # transforms of torch do not look inside: all that computes is there
    matrices = functools.partial(_matrices, network, (kernels, rates, check), out, progress)
    if out is None and tensors:
        inputs = [v if v is None or isinstance(v, Tensor) else as_rows(v, least=0) for v in given]
        result = differentiable(isolation()(matrices), inputs)  # a backward pass computes wherever it is called
    else:
        result = matrices(*given)
    names = dict.fromkeys(kernels)
    return {k: like(v, X) if out is None or is_path(out[k]) else out[k] for k, v in zip(names, result, strict=True)}


def _matrices(
    network: Network | Convolutional, asked: Any, out: Any, progress: bool | None, X: Any, Y: Any, *variances: Any
) -> tuple[Tensor, ...]:
    """Return each kernel between the rows, with a graph where one of the rows or of the variances has one."""
    names, rates, check = asked
    spec = KernelSpec.of(network.dense, names, None if network.image else rates, check)
    x = as_rows(X, "X", least=0, tracked=True)
    y = None if Y is None else same_columns(x, as_rows(Y, "Y", least=0, tracked=True))
    needed = torch.is_grad_enabled() and any(v is not None and v.requires_grad for v in (x, y, *variances))
    if not needed:
        matrices = _fill(network, spec.detached, x.detach(), None if y is None else y.detach(), out, progress)
    elif network.image is None:
        matrices = _differentiable(spec.varied(variances), x, y)
    else:
        raise InvalidInputError("convolutional kernels have no gradients in the images; detach them")
    return tuple(matrices.values())


# ---- a kernel as an object -------------------------------------------------------------------------------


@checked
def kernel_function(
    network: Network | Convolutional,
    kernel: Kernel = "ntk",
    norms: Any = None,
    *,
    learning_rates: Sequence[float] | None = None,
    check: bool = True,
) -> KernelFunction:
    """Return the kernel of a network as a function of rows, with its table built for a range of norms.

    Parameters
    ----------
    network : DEQ, ENN, ConvDEQ or ConvENN
        The specification of the infinitely wide network.
    kernel : {"ck", "ntk", "ntk_frozen"}
        Which kernel.
    norms : (low, high) or array of shape (n, p), optional
        The range of the norms of the inputs, or the inputs themselves. Rows outside are served too, by a wider table.
        Without it, and for convolutional networks, nothing is built ahead.
    learning_rates, check
        Options of :func:`ntk`.

    Returns
    -------
    KernelFunction
        A callable that pickles with its table, so that workers and servers pay nothing at the start.

    Examples
    --------
    >>> import numpy as np, notsodeep as nsd
    >>> k = nsd.kernel_function(nsd.DEQ("tanh", 0.2), "ck", norms=(0.9, 1.1))
    >>> k
    KernelFunction(DEQ(Tanh(), sigma_a2=0.2, sigma_b2=0.8), 'ck', norms=(0.790569, 1.11803))
    >>> k(np.eye(2)).round(6)
    array([[0.369925, 0.      ],
           [0.      , 0.369925]])
    """
    rates = network.rates(learning_rates)
    spec = KernelSpec.of(network.dense, (kernel,), None if network.image else rates, check).detached
    function = KernelFunction(network, spec)
    if norms is not None and network.image is None:
        low, high = _ends(norms)
        if high > 0.0:  # zeros alone need no table
            b, c = lift = lift_of(spec.network, high**2)
            spec = lifted(spec, lift)
            low, high = (math.sqrt(b * norm**2 + c) for norm in (low, high))
            function.ready = tables_of(spec, low, high), lift
    return function


class KernelFunction:
    """The kernel k(X, Y) of a network, exact, as a function of rows."""

    def __init__(self, network: Network | Convolutional, spec: KernelSpec) -> None:
        self.network, self.spec = network, spec
        self.ready: Given = {}, (1.0, 0.0)

    def __repr__(self) -> str:
        (tables, (b, c)), norms = self.ready, ""
        if any(not table.homogeneous for table in tables.values()):
            scales = list(itertools.chain(*tables))
            lifted_ends = min(scale.low for scale in scales), max(scale.high for scale in scales)
            ends = (math.sqrt(max(norm**2 - c, 0.0) / b) for norm in lifted_ends)
            norms = ", norms=({:.6g}, {:.6g})".format(*ends)
        return f"KernelFunction({self.network!r}, {self.spec.names[0]!r}{norms})"

    @checked
    def __call__(self, X: Any, Y: Any = None, *, out: Any = None) -> Any:
        """Compute the kernel between the rows of ``X`` and ``Y``, or of ``X`` alone; ``out`` as in :func:`ck`."""
        (name,) = self.spec.names
        x = as_rows(self.network.flattened(X), "X", least=0)
        y = None if Y is None else same_columns(x, as_rows(self.network.flattened(Y), "Y", least=0))
        filled = _fill(self.network, self.spec, x, y, None if out is None else {name: out}, None, self.ready)
        return like(filled[name], X) if out is None or is_path(out) else out

    @checked
    def slopes(self, X: Any, Y: Any = None) -> Slopes:
        """Compute the kernel and its derivatives in the inner product and in the squared norm of the first row.

        The gradient of f(x) = sum_j a_j K(x, y_j) is sum_j a_j (inner_j y_j + 2 square_j x): one product of matrices.

        Parameters
        ----------
        X : array of shape (n, p)
            The rows with respect to which the kernel is differentiated.
        Y : array of shape (m, p), optional
            The other rows; ``X`` itself unless given, held fixed while the first row moves.

        Returns
        -------
        Slopes
            ``value``, ``inner`` = dK/d(x . y) and ``square`` = dK/d||x||^2 at fixed x . y and ||y||, with x the row of
            X; arrays of shape (n, m), of the type of ``X``. Where x and y are parallel and a kinked activation makes
            ``inner`` infinite (tangent kernels), ``inner`` is its finite part, and the gradient is the derivative
            along the common ray: for x = y, half of that of K(x, x).
        """
        if self.network.image is not None:
            raise InvalidInputError("slopes are offered for networks of vectors; convolutional kernels have none")
        x = as_rows(X, "X", least=0)
        y = x if Y is None else same_columns(x, as_rows(Y, "Y", least=0))
        slopes = slopes_of(self.spec, x, y, self.ready)
        return Slopes(*(like(values, X) for values in slopes))

    @checked
    def diagonal(self, X: Any) -> Any:
        """Compute k(x, x) of every row of ``X``, (n, p)."""
        rows = as_rows(self.network.flattened(X), "X", least=0)
        along = rows.new_zeros(0)
        if self.network.image is not None:
            (along,) = convolutional_diagonal(self.network, rows, self.spec.names).values()
        elif len(rows):
            points, (tables, lift) = Points(self.spec, rows, None), self.ready
            ends = torch.stack(torch.aminmax(points.sx.sqrt())).tolist()
            fits = (t for (scale, _), t in tables.items() if t.alike and (t.homogeneous or scale.holds(*ends)))
            table = next(fits, None) if lift == points.lift else None
            (along,) = _diagonals(points.spec, points.sx, table).values()
        return like(along.to(rows.dtype), X)


def _ends(norms: Any) -> tuple[float, float]:
    if isinstance(norms, tuple | list) and len(norms) == 2 and not any(hasattr(v, "__len__") for v in norms):
        low, high = (float(v) for v in norms)
        if not 0.0 <= low <= high < float("inf") or high == 0.0:
            raise InvalidInputError(f"norms must be (low, high) with 0 <= low <= high and high > 0, got {norms!r}")
        return low, high
    return norm_range(squared_norms(as_rows(norms, "norms")))


# ---- matrices --------------------------------------------------------------------------------------------


def _fill(
    network: Network | Convolutional,
    spec: KernelSpec,
    x: Tensor,
    y: Tensor | None,
    out: Mapping[Kernel, Any] | None,
    progress: bool | None,
    ready: Given = ({}, (1.0, 0.0)),
) -> dict[Kernel, Tensor]:
    """Compute the matrices, from the table that is ``ready`` where it holds the norms, else from a cached one."""
    network.check_rows(x)
    other = x if y is None else y
    if isinstance(out, Mapping) and any(is_path(out.get(kernel)) for kernel in spec.names):

        def fill(rows: slice, columns: slice, memory: Mapping[Kernel, Tensor]) -> None:
            part = None if y is None and rows == columns else other[columns]
            _fill(network, spec, x[rows], part, memory, False, ready)

        return fill_files(fill, network, out, spec.names, (len(x), len(other)), x[:0, 0], y is None, progress)
    target = _destinations(spec.names, (len(x), len(other)), (x, other), out)
    if len(x) and len(other):
        if network.image is not None:
            fill_convolutional(network, x, y, target, progress)
        else:
            with silent(progress is False):
                parts = Points(spec, x, y).parts(ready, target)
            several, bar = len(parts) > 1, False if len(parts) > 1 else progress
            for part in track(parts, len(parts), "kernel", progress) if several else parts:
                with silent(several or progress is False):
                    part.fill(functools.partial(_fill_dense, progress=bar, ready=ready))
        for kernel, values in target.items():
            check_range(values, kernel, network)
    return target


def _fill_dense(points: Points, target: Mapping[Kernel, Tensor], *, progress: bool | None, ready: Given) -> None:
    # products run on the GPU while the CPU builds the table
    device: Any = importlib.import_module(f"{__package__}.device") if points.x.is_cuda else None
    started = device is not None and device.start_products(points, target)
    points.find_table(ready)
    if not (started and device.fill_fused(points, target)):
        fill_tiles(points, target, progress)
    if points.symmetric:
        for kernel, values in _diagonals(points.spec, points.sx, points.table).items():
            target[kernel].diagonal().copy_(values)


def _diagonals(spec: KernelSpec, s: Tensor, table: Table | None) -> dict[Kernel, Tensor]:
    """Kernels of points with themselves, from their squared norms, exact."""
    if table is None:
        return {k: v.to(s.device) for k, v in spec.diagonals(s.cpu()).items()}
    return {kernel: table.diagonal(kernel, s.sqrt()) for kernel in spec.names}


def _destinations(
    kernels: Sequence[Kernel], shape: tuple[int, int], inputs: tuple[Tensor, Tensor], out: Any
) -> dict[Kernel, Tensor]:
    if out is None:
        return {kernel: inputs[0].new_empty(shape) for kernel in kernels}
    if not isinstance(out, Mapping) or any(kernel not in out for kernel in kernels):
        raise InvalidInputError(f"out= must be a dict with an array for each of {tuple(kernels)}, got {out!r:.200}")
    targets: dict[Kernel, Tensor] = {}
    for kernel in kernels:
        targets[kernel] = check_target(out[kernel], shape, [*inputs, *targets.values()])
    return targets


def _differentiable(spec: KernelSpec, x: Tensor, y: Tensor | None) -> dict[Kernel, Tensor]:
    sx = squared_norms(x)
    if y is not None:
        between = spec.pairwise(sx[:, None], squared_norms(y), x.double() @ y.double().T)
        return {kernel: values.to(x.device, x.dtype) for kernel, values in between.items()}
    n = len(x)
    i, j = torch.triu_indices(n, n, offset=1)
    above, along = spec.pairwise(sx[i], sx[j], (x.double() @ x.double().T)[i, j]), spec.diagonal(sx)
    result = {}
    for kernel in spec.names:
        upper = torch.zeros(n, n, dtype=torch.float64).index_put((i, j), above[kernel])
        result[kernel] = (upper + upper.T + torch.diag(along[kernel])).to(x.device, x.dtype)
    return result
