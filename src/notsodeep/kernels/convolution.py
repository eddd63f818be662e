"""Exact kernels of wide convolutional networks.

For a pair of images the covariance of the pre-activations is a field, one number per position (see networks/nodes.py):

    Lambda = sigma_a2 W[G(Lambda)] + sigma_b2 W[x . y] + sigma_c2,   CK = mean of G,   NTK = CK + sum of M Lambda,

where M = Gdot (1 / P + sigma_a2 W[M]), and W is the mean over the window of the filter, with zeros outside the image.
Explicit networks have one Lambda and one M for each layer, from the one before and from the one after.

Averages before the readout need pairs of positions p, p + d. A convolution moves both alike, so that each shift d has
fields of its own, on the positions at which the image and the shifted image overlap: a smaller image. The kernels are
sums over shifts, with the weights w_d of the averages in front of G and of 1 / P.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .._arrays import check_range
from .._equilibrium import SolverOptions, solve_equilibrium
from .._progress import track
from ..errors import ConvergenceError, warn
from ..networks import Convolutional, Kernel, is_tangent
from ._limits import LIMITS
from .fields import Both, EntryMaps, FieldMaps, field_maps
from .pointwise import equilibrium_variance
from .tiles import tiles_of


def fill_convolutional(
    network: Convolutional, x: Tensor, y: Tensor | None, target: Mapping[Kernel, Tensor], progress: bool | None
) -> None:
    """Write the kernels of all pairs of images into ``target``, block by block; one triangle if ``y`` is ``None``."""
    left, right = Images.of(network, x) * 2 if y is None else Images.of(network, x, y)
    if not _fill_fused(left, right, target, y is None):
        count, jobs = _jobs(left, right, y is None)
        for (rows, columns), group in itertools.groupby(announced(network, jobs, count, progress), lambda job: job[0]):
            whole: dict[Kernel, Tensor] = {}
            same = y is None and rows == columns
            for _, shift in group:
                _add(whole, shifted_kernels(left[rows], right[columns], shift, tuple(target)), same and any(shift))
            for kernel, values in whole.items():
                target[kernel][rows, columns] = 0.5 * (values + values.T) if same else values  # symmetric to the bit
                if y is None and not same:
                    target[kernel][columns, rows] = values.T
    if y is None:
        for kernel, values in convolutional_diagonal(network, x, tuple(target)).items():
            target[kernel].diagonal().copy_(values)


Block = tuple[slice, slice]


def _jobs(left: Images, right: Images, symmetric: bool) -> tuple[int, Iterator[tuple[Block, tuple[int, int]]]]:
    """The blocks of a matrix, each with all shifts, and their number; of images with themselves d and -d are one."""
    entries = LIMITS.field_entries * (512 if left.pixels.is_cuda else 1)  # a GPU wants larger blocks than a cache
    if any(isinstance(m, EntryMaps) and not m.closed for m, _ in left.layers):  # slow: soon announced
        entries = LIMITS.pairs_at_once // 4
    side = max(1, math.isqrt(entries // left.network.positions))
    blocks = list(tiles_of((len(left), len(right)), (side, side), symmetric))
    shifts = left.network.averages.shifts
    same = [symmetric and rows == columns for rows, columns in blocks]
    jobs = ((b, d) for b, half in zip(blocks, same, strict=True) for d in shifts if not half or d >= (0, 0))
    return len(blocks) * len(shifts) - sum(same) * (len(shifts) // 2), jobs


def _add(whole: dict[Kernel, Tensor], share: Mapping[Kernel, Tensor], both_ways: bool) -> None:
    """Add the kernels of a shift to those of others; those of the opposite shift are transposed."""
    for kernel, values in share.items():
        values = values + values.T if both_ways else values
        whole[kernel] = whole[kernel] + values if kernel in whole else values


_T = TypeVar("_T")


def announced(network: Any, blocks: Iterable[_T], count: int, progress: bool | None) -> Iterator[_T]:
    """Yield blocks of work, under a progress bar; warn of more than two minutes when some have taken a second."""
    started, told = time.perf_counter(), progress is False
    for done, block in enumerate(track(blocks, count, "kernel", progress), 1):
        yield block
        seconds = time.perf_counter() - started
        if not told and seconds > 1.0:  # the first block alone warms up
            told = True
            if count * seconds > 120.0 * done:
                warn(
                    f"these kernels of {network!r} will take about {count * seconds / done / 60:.0f} minutes on this "
                    f"machine ({count} blocks of {seconds / done:.2g} s). progress=True shows how far they are, "
                    "progress=False keeps silent; float32 on CUDA is far quicker for ReLU-like activations, and those "
                    "with kinks beside zero are slow"
                )


def convolutional_diagonal(network: Convolutional, x: Tensor, kernels: Sequence[Kernel]) -> dict[Kernel, Tensor]:
    """The kernels of every image with itself, in double precision: an angle of zero needs all digits of its cosine."""
    size = max(1, LIMITS.field_entries * (64 if x.is_cuda else 1) // network.positions)
    diagonals: dict[Kernel, list[Tensor]] = {kernel: [] for kernel in kernels}
    for rows in x.split(size):
        (images,) = Images.of(network, rows.double())
        for kernel, values in images.own_kernels(kernels).items():
            diagonals[kernel].append(values)
    return {kernel: torch.cat(parts) for kernel, parts in diagonals.items()}


# ---- images ----------------------------------------------------------------------------------------------


class ImageLayer(NamedTuple):
    """A layer at images: its maps, and the variances of its pre-activations, (positions, n)."""

    maps: FieldMaps
    variances: Tensor


@dataclass(frozen=True)
class Images:
    """Images of a network, (pixels, n, channels), with the variances of each of its layers at its positions."""

    network: Convolutional
    pixels: Tensor
    layers: tuple[ImageLayer, ...]
    frame: Window
    """Around pixels."""
    window: Window
    """Around positions of a layer."""

    @staticmethod
    def of(network: Convolutional, *rows: Tensor) -> list[Images]:
        """Find the variances of every layer, in double precision: kernels depend on them more than on anything."""
        pixels = torch.cat(rows).reshape(sum(map(len, rows)), network.image[0], -1).permute(2, 0, 1).contiguous()
        frame, window = Window(network, network.image[1:]), Window(network, network.grid)
        inner = frame(pixels.double().square().sum(-1), network.stride)
        found = _equilibrium_layers(window, inner) if network.implicit else _layers(window, inner)
        layers = tuple(ImageLayer(maps, q.to(pixels)) for maps, q in found)
        for variances in (inner.to(pixels), *(layer.variances for layer in layers)):
            check_range(variances, "ck", network)
        images = Images(network, pixels, layers, frame, window)
        starts = [0, *itertools.accumulate(map(len, rows))]
        return [images[slice(*ends)] for ends in itertools.pairwise(starts)]

    def __len__(self) -> int:
        return self.pixels.shape[1]

    def __getitem__(self, rows: slice) -> Images:
        layers = [ImageLayer(maps, q[:, rows]) for maps, q in self.layers]
        return Images(self.network, self.pixels[:, rows], tuple(layers), self.frame, self.window)

    def crop(self, shift: tuple[int, int]) -> Images:
        """Return the part of each image at which one that is moved by a shift has positions, too.

        Variances are still those of the whole images.
        """
        far = [self.network.stride * d for d in shift]
        layers = [ImageLayer(maps, self.window.cut(q, shift)) for maps, q in self.layers]
        windows = self.frame.cropped(far), self.window.cropped(shift)
        return Images(self.network, self.frame.cut(self.pixels, far), tuple(layers), *windows)

    def overlap(self, other: Images, shift: tuple[int, int]) -> tuple[Images, Images]:
        """Return the parts at positions p of these images and p + shift of the others, if both are inside."""
        down, across = shift
        return (self.crop(shift), other.crop((-down, -across))) if any(shift) else (self, other)

    def drive(self, products: Tensor) -> Tensor:
        """Return the input's covariance from products of pixels: a sum over windows, at the positions of a layer."""
        return self.frame(products, self.network.stride)

    def own_kernels(self, kernels: Sequence[Kernel]) -> dict[Kernel, Tensor]:
        """The kernels of each image with itself."""
        layers = [(q, *maps.own(q)) for maps, q in self.layers]
        inner, shifts = self.drive(self.pixels.square().sum(-1)), self.network.averages.shifts
        total = _kernels(self.window, inner, layers, shifts[0, 0], kernels)
        for shift, weight in shifts.items():
            if shift > (0, 0):  # the opposite one has the same kernels
                left, right = self.overlap(self, shift)
                # every position of every image is an image of one position: one pair for each
                maps = [
                    mine.maps.one_by_one(mine.variances, q)
                    for mine, (_, q) in zip(left.layers, right.layers, strict=True)
                ]
                inner = left.drive((left.pixels * right.pixels).sum(-1))
                layers = _fields(left.window, maps, inner, left.sizes * right.sizes)
                _add(total, _kernels(left.window, inner, layers, 2.0 * weight, kernels), False)
        return total

    @functools.cached_property
    def sizes(self) -> Tensor:
        """The roots of the norms of the variances: products of two of them bound the norm of a covariance."""
        variances = self.layers[0].variances
        largest = variances.amax(0).clamp_min(torch.finfo(variances.dtype).tiny)  # no square of a ratio underflows
        return (largest * torch.linalg.vector_norm(variances / largest, dim=0)).sqrt()


Levels = Iterator[tuple[FieldMaps, Tensor]]


def _layers(window: Window, inner: Tensor) -> Levels:
    """The layers of an explicit network with their variances."""
    value = torch.zeros_like(inner)
    for phi, (a, b, c) in zip(window.network.activations, window.network.variances, strict=True):
        q = b * inner + c + a * window(value)
        maps = field_maps(phi, _rounded(q))
        yield maps, q
        value = maps.own(q)[0]


def _equilibrium_layers(window: Window, inner: Tensor) -> Levels:
    """The layer of a DEQ, which reaches as far as the variances do, and these."""
    ((sigma_a2, sigma_b2, sigma_c2),), (phi,) = window.network.variances, window.network.activations
    source = sigma_b2 * inner + sigma_c2
    top = _rounded(source)
    with contextlib.suppress(ConvergenceError):  # a field without borders has the variances of a vector
        vectors: Any = window.network.dense
        longest = inner.max().reshape(1).double().cpu() if inner.numel() else inner.new_zeros(0)
        top = max(top, _rounded(equilibrium_variance(vectors, longest)))
    while True:
        maps = field_maps(phi, top)

        def step(q: Tensor, maps: FieldMaps = maps) -> Tensor:
            return source + sigma_a2 * window(maps.own(q.clamp_max(maps.top**2))[0])  # beyond, tables are no numbers

        q = _solve(window, step, source, 0.4 * _tolerance(source))  # more exactly than what depends on them
        if _rounded(q) <= maps.top:
            yield maps, q
            return
        top = max(2.0 * top, _rounded(q))


def _rounded(q: Tensor) -> float:
    """The largest standard deviation, rounded up to a power of sqrt(2), so that like data share a layer."""
    largest = float(q.max()) if q.numel() else 0.0
    return 2.0 ** (math.ceil(math.log2(largest)) / 2) if largest > 0 else 1.0


@dataclass(frozen=True)
class Window:
    """The sum over the window of a network's filter around each position of fields, over the size of the filter."""

    network: Convolutional
    size: tuple[int, int]
    """Height and width of the fields."""

    def __call__(self, field: Tensor, stride: int = 1) -> Tensor:
        """Add up windows of a field (positions, ...), around every position or those at a stride."""
        height, width = self.size
        down, across = (_band(size, self.network.filter)[::stride].to(field) for size in self.size)
        sums = across @ (down @ field.reshape(height, -1)).reshape(len(down), width, -1)
        return sums.reshape(-1, *field.shape[1:])

    def cropped(self, shift: Sequence[int]) -> Window:
        """Return the window of the part of a field that a shift leaves."""
        height, width = (n - abs(d) for n, d in zip(self.size, shift, strict=True))
        return Window(self.network, (height, width))

    def cut(self, field: Tensor, shift: Sequence[int]) -> Tensor:
        """Return a field at the positions p for which p + shift is one, too."""
        ends = tuple(slice(max(0, -d), n - max(0, d)) for n, d in zip(self.size, shift, strict=True))
        return field.unflatten(0, self.size)[ends].flatten(0, 1)


def _band(size: int, filter: int) -> Tensor:
    places = torch.arange(size)
    return ((places[:, None] - places).abs() <= filter // 2).double() / filter


# ---- pairs -----------------------------------------------------------------------------------------------


def block_kernels(left: Images, right: Images, kernels: Sequence[Kernel]) -> dict[Kernel, Tensor]:
    """The kernels of each image of ``left`` with each of ``right``."""
    total: dict[Kernel, Tensor] = {}
    for shift in left.network.averages.shifts:
        _add(total, shifted_kernels(left, right, shift, kernels), False)
    return total


def shifted_kernels(
    left: Images, right: Images, shift: tuple[int, int], kernels: Sequence[Kernel]
) -> dict[Kernel, Tensor]:
    """The share of the pairs of positions p, p + shift in the kernels: Lambda first, then M, (positions, n, m)."""
    left, right = left.overlap(right, shift)
    inner = left.drive(left.pixels @ right.pixels.mT)
    maps = [mine.maps.pair(mine.variances, q) for mine, (_, q) in zip(left.layers, right.layers, strict=True)]
    layers = _fields(left.window, maps, inner, left.sizes[:, None] * right.sizes)
    return _kernels(left.window, inner, layers, left.network.averages.shifts[shift], kernels)


Fields = tuple[Tensor, Tensor, Tensor]
"""Lambda, G and Gdot of a layer."""


def _fields(window: Window, maps: Sequence[Callable[[Tensor], Both]], inner: Tensor, sizes: Tensor) -> list[Fields]:
    """The fields of each layer; ``inner``: that of the input, ``sizes``: of each pair, bound the norm of Lambda."""
    network: Any = window.network
    if network.implicit:
        return [_covariance(window, maps[0], network.dense.drive(inner), sizes)]
    layers, value = [], torch.zeros_like(inner)
    for both, (a, b, c) in zip(maps, network.variances, strict=True):
        covariance = b * inner + c + a * window(value)
        value, slope = both(covariance)
        layers.append((covariance, value, slope))
    return layers


def _kernels(
    window: Window, inner: Tensor, layers: Sequence[Fields], weight: float, kernels: Sequence[Kernel]
) -> dict[Kernel, Tensor]:
    """The kernels from the fields of each layer, times the weight of a shift; ``inner``: that of the input."""
    network: Any = window.network
    share = weight * network.gain / network.positions
    ck = share * layers[-1][1].sum(0)
    total: dict[Kernel, Tensor] = {"ck": ck, "ntk": ck, "ntk_frozen": ck}
    if any(is_tangent(kernel) for kernel in kernels):
        above = torch.full_like(inner, share)
        for (a, b, c), (covariance, _, slope) in zip(reversed(network.variances), reversed(layers), strict=True):
            if network.implicit:
                above = _linear(window, a * slope, above, _tolerance(slope))
            effect = slope * above
            total["ntk"] = total["ntk"] + (effect * covariance).sum(0)
            total["ntk_frozen"] = total["ntk_frozen"] + (effect * (covariance - b * inner - c)).sum(0)
            above = a * window(effect)
    return {kernel: total[kernel] for kernel in kernels}


def _covariance(window: Window, layer: Callable[[Tensor], Both], source: Tensor, sizes: Tensor) -> Fields:
    """Lambda = source + sigma_a2 W[G(Lambda)] by Newton's method, and G and Gdot there.

    The residual is measured by ``sizes``, which bound the norm of Lambda: terms of this size cancel in it.
    """
    field, tol, ((sigma_a2, *_),) = source, _tolerance(source), window.network.variances
    sizes = torch.where(sizes > 0, sizes, 1.0)
    for _ in range(LIMITS.steps):
        value, slope = layer(field)
        gap = source + sigma_a2 * window(value) - field
        residual = float(torch.linalg.vector_norm(gap / sizes, dim=0).max())
        if residual <= tol:
            return field, value, slope
        # the equation of the step is solved as exactly as the step is worth
        field = field + _linear(window, sigma_a2 * slope, gap, max(tol, min(1e-2, residual)))
    deq: Any = window.network.dense
    raise ConvergenceError(
        f"the covariances of {window.network!r} were not reached (relative residual {residual:.1e}); {deq.advice}"
    )


def _linear(window: Window, weight: Tensor, source: Tensor, tol: float) -> Tensor:
    """The solution of h = source + W[weight h]."""

    def step(h: Tensor) -> Tensor:
        return source + window(weight * h)

    low, high = weight.min(), float(weight.max())
    if low < 0.0 or high > 0.98:  # nothing is known of the spectrum, or it reaches one
        return _solve(window, step, source, tol)
    plan = SemiIteration.of(high, tol)
    before = h = source
    for omega in plan.omegas(plan.steps):
        before, h = h, torch.lerp(before, torch.lerp(h, step(h), plan.relax), omega)
    return h


class SemiIteration(NamedTuple):
    """Chebyshev's method for h = step(h) whose derivative has real eigenvalues in a known interval.

        h_(k+1) = h_(k-1) + omega_k (h_k + relax (step(h_k) - h_k) - h_(k-1)).

    The error falls to a given share in ``steps`` steps.
    """

    relax: float
    square: float
    steps: int

    @staticmethod
    def of(high: float, tol: float) -> SemiIteration:
        """The plan for W[weight h] with weights from 0 to ``high`` < 1.

        Its eigenvalues are those of a symmetric matrix. W has them between -1/3 and 1: along one direction they are
        values of sin(k t / 2) / (k sin(t / 2)) for a filter of size k, and the smallest of these is -1/3, for k = 3.
        """
        relax = 1.0 / (1.0 - high / 3.0)
        radius = 2.0 / 3.0 * high * relax
        rate = max(radius / (1.0 + math.sqrt(1.0 - radius**2)), 1e-6)
        return SemiIteration(relax, radius**2, max(1, math.ceil(math.log(tol / 2.0) / math.log(rate))))

    def omegas(self, count: int) -> Iterator[float]:
        """Yield omega_k = 4 / (4 - square omega_(k-1)), as if omega_0 were 2; it is 1, for a step of relax alone."""
        omega = 2.0
        for k in range(count):
            yield omega if k else 1.0
            omega = 4.0 / (4.0 - self.square * omega)


def _solve(window: Window, step: Callable[[Tensor], Tensor], start: Tensor, tol: float) -> Tensor:
    """The fixed point of a map of fields, each a problem of its own; ``start`` has the positions first."""
    options = SolverOptions(tol=tol, max_steps=2000)
    solution = solve_equilibrium(lambda z: step(z.movedim(-1, 0)).movedim(0, -1), start.movedim(0, -1), options)
    solution.require(options, f"the field of {window.network!r}", raises=True)
    return solution.value.movedim(-1, 0)


def _tolerance(field: Tensor) -> float:
    return 100.0 * torch.finfo(field.dtype).eps


# ---- CUDA ------------------------------------------------------------------------------------------------


def _fill_fused(left: Images, right: Images, target: Mapping[Kernel, Tensor], symmetric: bool) -> bool:
    """Fill the matrices by one Triton program per pair: ReLU-like DEQs in single precision on CUDA."""
    network, slopes = left.network, left.network.activations[0].two_slopes
    matrices = (left.pixels[0], *target.values())
    single = all(t.is_cuda and t.dtype == torch.float32 and t.stride(1) == 1 for t in matrices)
    if slopes is None or not single or max(network.image[1:]) > 64 or not network.implicit or network.stride > 1:
        return False
    device = importlib.import_module(f"{__package__}.device")
    program = device.program("triton_field", "field_kernel")
    if program is None:
        warn("Triton is missing or does not run, convolutional kernels are computed by plain torch")
        return False
    return device.attempt(lambda: _run_fused(program, left, right, target, slopes, symmetric)) is not None


def _run_fused(
    program: Any,
    left: Images,
    right: Images,
    target: Mapping[Kernel, Tensor],
    slopes: tuple[float, float],
    symmetric: bool,
) -> bool:
    (a, b), network = slopes, left.network
    ((sigma_a2, sigma_b2, sigma_c2),), (channels, height, width) = network.variances, network.image
    steep, window = 0.5 * (a * a + b * b), network.filter**2
    scale = 0.5 * (a - b) ** 2 if a != b else 1.0
    device, lanes = left.pixels.device, 1 << max(5, (width - 1).bit_length())
    plan, steps = _iterations(max(sigma_a2 * steep, 1e-6), a * b < 0.0)
    omegas = list(plan.omegas(max(steps)))
    carried = [(w - 1.0) * before / w for w, before in zip(omegas, [1.0, *omegas], strict=False)]
    course = torch.tensor([*zip(omegas, carried, strict=True)], dtype=torch.float32, device=device)
    launches = []
    for rows_left, group in _by_rows(network.averages.shifts, height):
        moves = torch.tensor(list(group), dtype=torch.int32, device=device)
        launches.append((rows_left, moves, torch.tensor(list(group.values()), dtype=torch.float32, device=device)))
    band = 4096  # rows at once: a grid has at most 65,535 of them, and a band wastes little below the diagonal
    unasked = left.pixels.new_empty(min(band, len(left)), 1 if {"ck", "ntk"} <= target.keys() else len(right))
    for start in range(0, len(left), band):
        rows, first = slice(start, start + band), start if symmetric else 0
        outs = [target[k][rows, first:].zero_() if k in target else unasked for k in ("ck", "ntk", "ntk_frozen")]
        x, y = left[rows], right[first:]
        inputs = [
            *(images.pixels.permute(1, 2, 0).contiguous() for images in (x, y)),
            *(images.layers[0].variances.T.sqrt().contiguous() for images in (x, y)),
        ]
        for rows_left, moves, weights in launches:
            rows_there = 1 << (rows_left - 1).bit_length()
            program[(len(y), len(x))](
                *inputs,
                *outs,
                moves,
                weights,
                len(weights),
                *(out.stride(0) for out in outs),
                *(sigma_a2 / window, sigma_b2 / window, sigma_c2),
                *(scale, a * b / scale, a * b, steep),
                plan.relax,
                course,
                *steps,
                CHANNELS=channels,
                HEIGHT=height,
                WIDTH=width,
                ROWS=rows_there,
                LANES=lanes,
                HIGH=rows_left,
                SPARE=_GRAIN - 1,
                REACH=network.filter // 2,
                SYMMETRIC=symmetric,
                TANGENT=any(is_tangent(kernel) for kernel in target),
                FROZEN="ntk_frozen" in target,
                CURVED=a != b,
                TILTED=a * b != 0.0,
                num_warps=max(1, rows_there * lanes // 1024),
            )
        for out in target.values() if symmetric else ():  # the band's part on the diagonal, and what lies to its right
            square, rest = out[rows, rows], slice(start + band, None)
            square.copy_(square.triu() + square.triu(1).T)
            out[rest, rows].copy_(out[rows, rest].T)
    return True


def _iterations(high: float, negative: bool) -> tuple[SemiIteration, tuple[int, int]]:
    """The iteration whose plain steps leave a share ``high`` of the error, and its steps: of cosines, of tangents."""
    if negative or high >= 0.98:  # no spectrum is known
        plan = SemiIteration(1.0, 0.0, math.ceil(math.log(1e-7) / math.log(min(high, 0.99))))
        return plan, (plan.steps, plan.steps)
    plan, tangent = (SemiIteration.of(high, share * (1.0 - high)) for share in _SHARES)  # both begin near the solution
    return plan, (plan.steps, tangent.steps)


_GRAIN = 2  # rows: programs that differ by fewer are one, as compiling each takes seconds
_SHARES = 8e-5, 4e-4  # of their first errors that the iterations leave, for cosines and for what the NTK adds


def _by_rows(shifts: Mapping[tuple[int, int], float], height: int) -> list[tuple[int, dict[tuple[int, int], float]]]:
    """The shifts that leave as many rows, up to a grain, with that number of rows."""
    groups: dict[int, dict[tuple[int, int], float]] = {}
    for shift, weight in shifts.items():
        rows = height - abs(shift[0])
        groups.setdefault(min(height, -(-rows // _GRAIN) * _GRAIN), {})[shift] = weight
    return sorted(groups.items())
