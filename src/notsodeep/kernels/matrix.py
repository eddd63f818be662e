"""Exact infinite-width kernel matrices: blocked, symmetric to the bit, NumPy or torch, CPU or CUDA.

Each tile of the Gram matrix becomes a tile of every kernel, by table where one reaches full accuracy and entry by entry
elsewhere. Near r = +-1 a rounded cosine knows half the digits of the angle, which is taken from the difference of the
normalised rows there. :class:`TabulatedKernel` carries its table; the functions find theirs in a cache.
"""

from __future__ import annotations

import functools
import importlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from .._arguments import checked
from .._arrays import as_rows, bad_row, check_target, isolated_settings, like, same_columns, squared_norms
from .._chebyshev import Room, power_sum
from .._progress import track
from ..errors import ConvergenceError, InvalidInputError
from ..networks import KERNELS, Convolutional, Kernel, Network
from ._limits import LIMITS
from .convolution import fill_convolutional
from .gradients import differentiable
from .pointwise import KernelSpec
from .table import Level, Table, near_series, on_device
from .tabulate import one_thread, rounded_range, stay_alone, table_for


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
        ``False`` computes also outside the range in which a unique equilibrium is guaranteed.
    out : array of shape (n, m), optional
        The result is written here, for instance into a memory map.
    progress : bool, optional
        Whether a bar is shown; by default only on a terminal and only if the work takes long.

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


@checked
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
    return _one_kernel(network, X, Y, "ntk" if train_input else "ntk_frozen", **options)


def _one_kernel(network: Any, X: Any, Y: Any, kernel: Kernel, *, out: Any, **options: Any) -> Any:
    return kernels_of(network, X, Y, kernels=(kernel,), out=None if out is None else {kernel: out}, **options)[kernel]


@isolated_settings
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
    out : dict of arrays of shape (n, m), optional
        The result for each kernel is written here.

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
    if isinstance(network, Convolutional) and learning_rates is not None:
        raise InvalidInputError("learning_rates belong to an ENN; a convolutional network has one rate for all weights")
    X, Y = network.flattened(X), network.flattened(Y)
    dense = network.dense if isinstance(network, Convolutional) else network
    given: Any = [X, Y, *(v if isinstance(v, Tensor) else None for v in dense.given_variances)]
    tensors = [v for v in given if isinstance(v, Tensor)]
    if out is not None and torch.is_grad_enabled() and any(v.requires_grad for v in tensors):
        raise InvalidInputError("out= cannot be combined with gradients; detach the inputs")
    # transforms of torch do not look inside: all that computes is there
    matrices = functools.partial(_matrices, network, (kernels, learning_rates, check), out, progress)
    if out is None and tensors:
        inputs = [v if v is None or isinstance(v, Tensor) else as_rows(v, least=0) for v in given]
        result = differentiable(matrices, inputs)
    else:
        result = matrices(*given)
    names = dict.fromkeys(kernels)
    return {k: out[k] if out is not None else like(v, X) for k, v in zip(names, result, strict=True)}


@isolated_settings
def _matrices(
    network: Network | Convolutional, asked: Any, out: Any, progress: bool | None, X: Any, Y: Any, *variances: Any
) -> tuple[Tensor, ...]:
    """Return each kernel between the rows, with a graph where one of the rows or of the variances has one."""
    spec = KernelSpec.of(network.dense if isinstance(network, Convolutional) else network, *asked)
    x = as_rows(X, "X", least=0, tracked=True)
    y = None if Y is None else same_columns(x, as_rows(Y, "Y", least=0, tracked=True))
    needed = torch.is_grad_enabled() and any(v is not None and v.requires_grad for v in (x, y, *variances))
    if isinstance(network, Convolutional):
        if needed:
            raise InvalidInputError("convolutional kernels have no gradients in the images; detach them")
        network.check_rows(x)
        other = x if y is None else y
        found = _destinations(spec.names, (len(x), len(other)), (x, other), out)
        if len(x) and len(other):
            fill_convolutional(network, x, y, found, progress)
        _check_finite(network, found)
    elif needed:
        found = _differentiable(spec.varied(variances), x, y)
    else:
        found = _fill(spec.detached, x.detach(), None if y is None else y.detach(), out, progress)
    return tuple(found.values())


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
        The range of the norms of the inputs, or the inputs themselves; without it the first call decides. Rows outside
        are served too, by a wider table.
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
    """The kernel k(X, Y) of a network, exact, from a table of the angle and the norms."""

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
        """Compute the kernel between the rows of ``X`` and ``Y``, or of ``X`` alone; ``out`` as in :func:`ck`."""
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
        """Compute k(x, x) of every row of ``X``, (n, p), from the norms alone."""
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
    target = _destinations(spec.names, points.shape, (x, points.y), out)
    if 0 in points.shape:
        return target
    # products run on the GPU while the CPU builds the table
    device: Any = importlib.import_module(f"{__package__}.device") if x.is_cuda else None
    started = device is not None and device.start_products(points, target)
    points.find_table(table)
    if not (started and device.fill_fused(points, target)):
        fill_tiles(points, target, progress)
    if points.symmetric:
        for kernel, values in _diagonals(spec, points.sx, points.table, points.least).items():
            target[kernel].diagonal().copy_(values)
    _check_finite(spec.network, target)
    return target


def _check_finite(network: Any, target: Mapping[Kernel, Tensor]) -> None:
    for values in target.values():
        if bad_row(values) is not None:
            raise ConvergenceError(
                f"the kernel of {network!r} overflows {values.dtype} on these inputs; scale them down"
                + (", or give them in float64" if values.dtype == torch.float32 else "")
            )


def _diagonals(spec: KernelSpec, s: Tensor, table: Table | None, least: float = 0.0) -> dict[Kernel, Tensor]:
    """Kernels of points with themselves, from their squared norms, exact; no norm is below ``least``."""
    if table is None:
        return {k: v.to(s.device) for k, v in spec.diagonal(s.cpu()).items()}
    found = {kernel: table.diagonal(kernel, s.sqrt()) for kernel in spec.names}
    short = table.shorter(s, least)
    if short is not None:
        for kernel, exact in spec.diagonal(s[short].cpu()).items():
            found[kernel][short] = exact.to(s.device)
    return found


def _destinations(
    kernels: Sequence[Kernel], shape: tuple[int, int], inputs: tuple[Tensor, Tensor], out: Any
) -> dict[Kernel, Tensor]:
    if out is None:
        return {kernel: inputs[0].new_empty(shape) for kernel in kernels}
    if not isinstance(out, Mapping) or any(kernel not in out for kernel in kernels):
        raise InvalidInputError(f"out= must be a dict with an array for each of {tuple(kernels)}, got {out!r:.200}")
    found: dict[Kernel, Tensor] = {}
    for kernel in kernels:
        found[kernel] = check_target(out[kernel], shape, [*inputs, *found.values()])
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


# ---- tiles -----------------------------------------------------------------------------------------------


TILE = {"cpu": (128, 1024), "cuda": (4096, 4096)}  # rows and columns: flat tiles lose little beside the diagonal


def tile_shape(device: torch.device) -> tuple[int, int]:
    """Rows and columns of a tile."""
    return TILE.get(device.type, TILE["cpu"])


def tiles_of(shape: Sequence[int], sizes: tuple[int, int], symmetric: bool) -> Iterator[tuple[slice, slice]]:
    """The rows and columns of each tile; of a symmetric matrix those that reach above the diagonal."""
    high, wide = sizes
    for i in range(0, shape[0], high):
        j = i if symmetric else 0
        while j < shape[1]:
            end = min(j - j % wide + wide, shape[1])
            yield slice(i, min(i + high, shape[0])), slice(j, end)
            j = end


def fill_tiles(points: Points, target: Mapping[Kernel, Tensor], progress: bool | None) -> None:
    """Fill all tiles; on the CPU each thread has tiles of its own, so that no operation waits for another thread."""
    blocks = list(tiles_of(points.shape, tile_shape(points.x.device), points.symmetric))
    filler = _Filler(points, target)
    whole = torch.get_num_threads()
    threads = min(whole, len(blocks) // 2)
    if points.x.is_cuda or points.table is None or threads < 2:
        for block in track(blocks, len(blocks), "kernel", progress) if len(blocks) > 1 else blocks:
            filler.tile(block)
    else:
        with one_thread(), ThreadPoolExecutor(threads, initializer=stay_alone, initargs=(whole,)) as pool:
            for _ in track(pool.map(filler.tile, blocks), len(blocks), "kernel", progress):
                pass
    filler.settle()


class _Filler:
    """Writes tiles into the matrices, and then the entries that the table has left open."""

    def __init__(self, points: Points, target: Mapping[Kernel, Tensor]) -> None:
        self.points, self.target = points, target
        self.open: list[tuple[Tensor, Tensor]] = []
        self.threads, self.lock = threading.local(), threading.Lock()

    def tile(self, block: tuple[slice, slice]) -> None:
        """Write one tile of every kernel, and its mirror image."""
        (rows, columns), points, table = block, self.points, self.points.table
        room = self.threads.__dict__.setdefault("room", Room())  # memory of this thread
        r = points.cosines(rows, columns, room)
        on_diagonal = points.symmetric and rows.start == columns.start
        if on_diagonal:
            r.triu_(1)  # the diagonal is written from the norms alone, exactly
        low, high = torch.stack(torch.aminmax(r)).tolist()
        largest = max(-low, high)
        mask = points.unsettled(rows, columns, r, largest)
        if mask is not None:
            i, j = (mask.triu_(1) if on_diagonal else mask).nonzero(as_tuple=True)
            self.open.append((i + rows.start, j + columns.start))
            if sum(len(i) for i, _ in list(self.open)) > LIMITS.open_entries:
                self.settle()
        if table is None:
            return
        if largest > table.reach:
            r.clamp_(-table.reach, table.reach)
        for kernel in points.spec.names:
            values = points.lookup(kernel, rows, columns, r, room)
            if on_diagonal:  # a square, of which one triangle counts, and the rest
                square = values[:, : len(values)]
                square.copy_(torch.triu(square) + torch.triu(square, 1).T)
            self.target[kernel][rows, columns] = values
            if points.symmetric:
                self.target[kernel][columns, rows] = values.T

    def settle(self) -> None:
        """Write the entries that were left open."""
        with self.lock:
            entries, self.open = self.open, []
        if entries:
            self.points.write_entries(self.target, *(torch.cat(part) for part in zip(*entries, strict=True)))


# ---- the rows and their entries --------------------------------------------------------------------------


def norm_range(*squares: Tensor) -> tuple[float, float, float]:
    """The smallest norm, and the range of those that are not so short that they are evaluated one by one."""
    ends = torch.stack([v for s in squares for v in torch.aminmax(s)]).sqrt().tolist()
    least = low = min(ends)
    high, short = max(ends), LIMITS.short_row
    if low < short * high:
        low = min(float(part.min()) for s in squares if len(part := s[s >= (short * high) ** 2])) ** 0.5
    return least, low, high


class Points:
    """The rows of both sides with everything that is computed once per row."""

    def __init__(self, spec: KernelSpec, x: Tensor, y: Tensor | None) -> None:
        self.spec, self.x, self.y, self.symmetric = spec, x, x if y is None else y, y is None
        self.shape = len(self.x), len(self.y)
        self.pairs = len(self.x) * len(self.y) / (2 if self.symmetric else 1)
        self.sx = squared_norms(x)
        self.sy = self.sx if self.symmetric else squared_norms(self.y)
        if x.dtype == torch.float32 and any(bool(((s > 0) & (s < 1e-74)).any()) for s in (self.sx, self.sy)):
            x, self.x, self.y = x.double(), x.double(), self.y.double()  # the inverses of such norms are no float32
        self.wx = _inverse_norm(self.sx, x.dtype)
        self.wy = self.wx if self.symmetric else _inverse_norm(self.sy, x.dtype)
        self.table: Table | None = None
        self.trusted = -1.0  # cosines up to which the table settles an entry
        self.short: tuple[Tensor, Tensor] | None = None  # rows that it does not cover
        self._sides: dict[tuple[object, ...], Tensor] = {}  # of all threads

    def find_table(self, given: Table | None) -> None:
        """Use the given table, the cached one for such norms, or none where entry by entry is cheaper."""
        self.least, low, high = norm_range(self.sx, self.sy)
        network, single = self.spec.network, self.x.dtype == torch.float32
        if high == 0.0:
            return
        if given is not None and given.holds(low, high) and all(k in given.kernels for k in self.spec.names):
            self.table = given
        elif self.pairs > LIMITS.direct_pairs:
            scale = rounded_range(network, low, high, 3e-8 if single else 1e-14)
            if given is not None and not scale.single:
                scale = rounded_range(network, min(low, given.norms.low), max(high, given.norms.high))
            self.table = table_for(self.spec, scale, self.pairs, self.x.dtype)
        if self.table is not None:
            # cosines beyond are rounded too much for the angle of a kinked kernel
            known = 1.0 - (5e-4 if single else 1e-6)
            self.trusted = min(self.table.reach, known) if network.kinked else self.table.reach
            left, right = (self.table.shorter(s, self.least) for s in (self.sx, self.sy))
            self.short = None if left is None or right is None else (left, right)

    # -- tiles -----------------------------------------------------------------------------------------------
    def cosines(self, rows: slice, columns: slice, room: Room) -> Tensor:
        """Between these rows and columns; they lie in the room."""
        left, right = self.x[rows], self.y[columns]
        left = torch.mul(left, self.wx[rows, None], out=room("unit", left))
        return products(left, right, room("r", left, (len(left), len(right)))).mul_(self.wy[columns])

    def unsettled(self, rows: slice, columns: slice, r: Tensor, largest: float) -> Tensor | None:
        """Which entries of a tile are left to :meth:`write_entries`, if any."""
        mask = None
        if largest > self.trusted and self.trusted < 1.0:  # else cosines beyond are rounding
            mask = r.abs() > self.trusted
        if self.short is not None:
            short = self.short[0][rows, None] | self.short[1][columns]
            mask = short if mask is None else mask | short
        return mask

    def lookup(self, kernel: Kernel, rows: slice, columns: slice, r: Tensor, room: Room) -> Tensor:
        """A tile of the table at these cosines; it lies in the room."""
        table = self.table
        assert table is not None
        level = table.level(kernel, r.dtype)
        if not table.one_function:
            signs = on_device(level.signs, r.device).to(r.dtype)
            left = self._side(level, kernel, rows, self.sx).T.contiguous().mul_(signs)
            return level.tile(left, self._side(level, kernel, columns, self.sy), r, room)
        powers = table.powers(level, kernel) if r.dtype == torch.float64 and not r.is_cuda else None
        if powers is None:
            out = level.tile(table.scalars(level, kernel).to(r), None, r, room)
        else:
            out = power_sum(powers, level.variable(r, room), room)
        if table.homogeneous:
            out.mul_(self.sx[rows, None].sqrt().to(r.dtype)).mul_(self.sy[columns].sqrt().to(r.dtype))
        return out

    def _side(self, level: Level, kernel: Kernel, which: slice, squares: Tensor) -> Tensor:
        """The norm factors of some points of one side, (rank, points), stored while they are few."""
        wide = tile_shape(self.x.device)[1]
        first = which.start - which.start % wide  # tiles do not cross its multiples
        key = kernel, id(squares), first
        found = self._sides.get(key)
        if found is None:
            assert self.table is not None
            found = self.table.side(level, kernel, squares[first : first + wide].sqrt()).to(self.x.dtype)
            if sum(side.numel() for side in list(self._sides.values())) + found.numel() > LIMITS.held_numbers:
                self._sides.clear()
            self._sides[key] = found
        return found[:, which.start - first : which.stop - first]

    # -- single entries --------------------------------------------------------------------------------------
    def write_entries(self, target: Mapping[Kernel, Tensor], i: Tensor, j: Tensor) -> None:
        """Entries near r = +-1, beyond the reach of the table, of rows too short for it, or all if there is none."""
        at_once = 2 * LIMITS.pairs_at_once
        for p, q in zip(i.split(at_once), j.split(at_once), strict=True):
            for which, found in self._entries(p, q):
                for kernel, values in found.items():
                    target[kernel][p[which], q[which]] = values.to(target[kernel])
                    if self.symmetric:
                        target[kernel][q[which], p[which]] = values.to(target[kernel])

    def _entries(self, i: Tensor, j: Tensor) -> Iterator[tuple[Tensor, dict[Kernel, Tensor]]]:
        """Groups of entries and their kernels: by table, by series of the layer at equilibrium, or one by one."""
        table = self.table
        alone = torch.full_like(i, table is None, dtype=torch.bool)
        if self.short is not None:
            alone |= self.short[0][i] | self.short[1][j]
        if table is not None:
            nx, ny, x = self.sx[i].sqrt(), self.sy[j].sqrt(), self._of_pairs(_angle_variable, i, j)
            for sign in (1, -1):
                which = (~alone & (sign * x > 0)).nonzero().squeeze(1)
                found = self._near(table, sign, nx[which], ny[which], x[which]) if len(which) else {}
                if found is None:
                    alone[which] = True
                else:
                    yield which, found
        if bool(alone.any()):
            p, q = i[alone], j[alone]
            yield alone.nonzero().squeeze(1), self.spec.pairwise(self.sx[p], self.sy[q], self._of_pairs(_dots, p, q))

    def _near(self, table: Table, sign: int, nx: Tensor, ny: Tensor, x: Tensor) -> dict[Kernel, Tensor] | None:
        """Entries near r = ``sign``, if there is a series for them."""
        if table.reach == 1.0:
            return {kernel: table.at_angles(kernel, nx, ny, x) for kernel in self.spec.names}
        if self.pairs < LIMITS.many_pairs:
            return None
        with one_thread():
            network, scale, dtype = self.spec.detached.network, table.norms, self.x.dtype
            series = table.once((sign, dtype), lambda: near_series(network, scale, sign * table.reach, dtype))
        cosines = torch.sin(0.5 * math.pi * x)
        return None if series is None else series.kernels(table, nx, ny, cosines, self.spec.names)

    def _of_pairs(self, function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], i: Tensor, j: Tensor) -> Tensor:
        """A function of pairs of rows and their squared norms, a few rows at a time."""
        at_once = max(64, LIMITS.held_numbers // (8 * max(1, self.x.shape[1])))
        parts = zip(i.split(at_once), j.split(at_once), strict=True)
        return torch.cat([function(self.x[p].double(), self.y[q].double(), self.sx[p], self.sy[q]) for p, q in parts])


def products(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    """Compute x y'; in float32 on a GPU in sums of 208 columns: a GPU adds up one by one, 784 are wrong by 1e-6."""
    short = 208 if x.is_cuda and x.dtype == torch.float32 else max(1, x.shape[1])
    torch.mm(x[:, :short], y[:, :short].T, out=out)
    for k in range(short, x.shape[1], short):
        out.addmm_(x[:, k : k + short], y[:, k : k + short].T)
    return out


def _inverse_norm(s: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(s > 0, s.clamp_min(1e-300).rsqrt(), torch.zeros_like(s)).to(dtype)


def _angle_variable(x: Tensor, y: Tensor, sx: Tensor, sy: Tensor) -> Tensor:
    """2 arcsin(r) / pi, from the chord between the unit rows and the nearer end: exact near r = +-1."""
    u, v = x / sx.sqrt()[:, None], y / sy.sqrt()[:, None]
    sign = torch.where((u * v).sum(1) < 0, -1.0, 1.0).to(u)
    chord = (u - sign[:, None] * v).square().sum(1).sqrt()
    return sign * (1.0 - torch.asin(0.5 * chord).mul_(4.0 / math.pi))


def _dots(x: Tensor, y: Tensor, sx: Tensor, sy: Tensor) -> Tensor:
    """Inner products of pairs of rows; where they nearly coincide from their difference: exact for duplicates."""
    dot, half = (x * y).sum(1), 0.5 * (sx + sy)
    sign = torch.where(dot < 0, -1.0, 1.0).to(dot)
    near = half - dot.abs() <= 1e-6 * half
    apart = ((x[near] - sign[near, None] * y[near]) ** 2).sum(1)
    dot[near] = sign[near] * (half[near] - 0.5 * apart)
    return dot
