"""Exact kernels of wide convolutional networks.

For a pair of images the covariance of the pre-activations is a field, one number per position (see networks/nodes.py):

    Lambda = sigma_a2 W[G(Lambda)] + sigma_b2 W[x . y] + sigma_c2,   CK = mean of G,   NTK = CK + sum of M Lambda,

where M = Gdot (1 / P + sigma_a2 W[M]), and W is the mean over the window of the filter, with zeros outside the image.
Explicit networks have one Lambda and one M for each layer, from the one before and from the one after.
"""

from __future__ import annotations

import importlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._equilibrium import SolverOptions, solve_equilibrium
from .._progress import track
from ..errors import ConvergenceError, warn
from ..networks import ConvDEQ, ConvENN, Convolutional, Kernel, is_tangent
from ._limits import LIMITS
from .fields import Both, EntryMaps, FieldMaps, field_maps


def fill_convolutional(
    network: Convolutional, x: Tensor, y: Tensor | None, target: Mapping[Kernel, Tensor], progress: bool | None
) -> None:
    """Write the kernels of all pairs of images into ``target``, block by block; one triangle if ``y`` is ``None``."""
    left, right = Images.of(network, x) * 2 if y is None else Images.of(network, x, y)
    if not _fill_fused(left, right, target, y is None):
        entries = LIMITS.field_entries * (512 if x.is_cuda else 1)  # a GPU wants larger blocks than a cache
        if any(isinstance(m, EntryMaps) and not m.phi.piecewise_linear for m, _ in left.layers):  # slow: soon announced
            entries = LIMITS.pairs_at_once
        side = max(1, math.isqrt(entries // network.positions))
        starts = itertools.product(range(0, len(left), side), range(0, len(right), side))
        blocks = [(slice(i, i + side), slice(j, j + side)) for i, j in starts if y is not None or i <= j]
        started = time.perf_counter()
        for done, (rows, columns) in enumerate(track(blocks, len(blocks), "convolutional kernel", progress)):
            for kernel, values in block_kernels(left[rows], right[columns], tuple(target)).items():
                target[kernel][rows, columns] = values
                if y is None and rows != columns:
                    target[kernel][columns, rows] = values.T
            if done == 0 and progress is not False:
                announce(network, len(blocks), time.perf_counter() - started)
    if y is None:
        for kernel, values in convolutional_diagonal(network, x, tuple(target)).items():
            target[kernel].diagonal().copy_(values)


def announce(network: Convolutional, blocks: int, seconds: float) -> None:
    """Warn of work of more than two minutes, from the time that the first block took."""
    if blocks * seconds > 120.0:
        warn(
            f"these kernels of {network!r} will take about {blocks * seconds / 60:.0f} minutes on this machine "
            f"({blocks} blocks of {seconds:.1f} s). progress=True shows how far they are, progress=False keeps silent; "
            "float32 on CUDA is far quicker for ReLU-like activations, and those with kinks beside zero are slow"
        )


def convolutional_diagonal(network: Convolutional, x: Tensor, kernels: Sequence[Kernel]) -> dict[Kernel, Tensor]:
    """The kernels of every image with itself, in double precision: an angle of zero needs all digits of its cosine."""
    size = max(1, LIMITS.field_entries * (64 if x.is_cuda else 1) // network.positions)
    found = []
    for part in x.split(size):
        (images,) = Images.of(network, part.double())
        layers = [(q, *maps.own(q)) for maps, q in images.layers]
        inner = window(network, images.pixels.square().sum(-1))
        found.append(_kernels(network, inner, layers, kernels))
    return {kernel: torch.cat([each[kernel] for each in found]) for kernel in kernels}


# ---- images ----------------------------------------------------------------------------------------------


class ImageLayer(NamedTuple):
    """A layer at images: its maps, and the variances of its pre-activations, (positions, n)."""

    maps: FieldMaps
    variances: Tensor


@dataclass(frozen=True)
class Images:
    """Images of a network, pixels (positions, n, channels), with the variances of each of its layers at them."""

    network: Convolutional
    pixels: Tensor
    layers: tuple[ImageLayer, ...]

    @staticmethod
    def of(network: Convolutional, *rows: Tensor) -> list[Images]:
        """Find the variances of every layer, in double precision: kernels depend on them more than on anything."""
        pixels = torch.cat(rows).reshape(sum(map(len, rows)), network.image[0], -1).permute(2, 0, 1).contiguous()
        inner = window(network, pixels.double().square().sum(-1))
        found = _equilibrium_layers(network, inner) if isinstance(network, ConvDEQ) else _layers(network, inner)
        images = Images(network, pixels, tuple(ImageLayer(maps, q.to(pixels)) for maps, q in found))
        starts = [0, *itertools.accumulate(map(len, rows))]
        return [images[slice(*ends)] for ends in itertools.pairwise(starts)]

    def __len__(self) -> int:
        return self.pixels.shape[1]

    def __getitem__(self, rows: slice) -> Images:
        layers = [ImageLayer(maps, q[:, rows]) for maps, q in self.layers]
        return Images(self.network, self.pixels[:, rows], tuple(layers))


Levels = Iterator[tuple[FieldMaps, Tensor]]


def _layers(network: ConvENN, inner: Tensor) -> Levels:
    """The layers of an explicit network with their variances."""
    value = torch.zeros_like(inner)
    for phi, (a, b, c) in zip(network.activations, network.variances, strict=True):
        q = b * inner + c + a * window(network, value)
        maps = field_maps(phi, _rounded(q))
        yield maps, q
        value = maps.own(q)[0]


def _equilibrium_layers(network: ConvDEQ, inner: Tensor) -> Levels:
    """The layer of a DEQ, which reaches as far as the variances do, and these."""
    source = network.dense.drive(inner)
    top = _rounded(source)
    while True:
        maps = field_maps(network.dense.activation, top)

        def step(q: Tensor, maps: FieldMaps = maps) -> Tensor:
            return source + network.dense.variances[0] * window(network, maps.own(q)[0])

        q = _solve(network, step, source, 0.4 * _tolerance(source))  # more exactly than what depends on them
        if _rounded(q) <= maps.top:
            yield maps, q
            return
        top = 2.0 * top


def _rounded(q: Tensor) -> float:
    """The largest standard deviation, rounded up to a power of sqrt(2), so that like data share a layer."""
    largest = float(q.max()) if q.numel() else 0.0
    return 2.0 ** (math.ceil(math.log2(largest)) / 2) if largest > 0 else 1.0


def window(network: Convolutional, field: Tensor) -> Tensor:
    """Add up the window around each position of a field (positions, ...) and divide by the size of the filter."""
    _, height, width = network.image
    down, across = (_band(size, network.filter).to(field) for size in (height, width))
    return (across @ (down @ field.reshape(height, -1)).reshape(height, width, -1)).reshape(field.shape)


def _band(size: int, filter: int) -> Tensor:
    places = torch.arange(size)
    return ((places[:, None] - places).abs() <= filter // 2).double() / filter


# ---- pairs -----------------------------------------------------------------------------------------------


def block_kernels(left: Images, right: Images, kernels: Sequence[Kernel]) -> dict[Kernel, Tensor]:
    """The kernels of each image of ``left`` with each of ``right``: Lambda first, then M, (positions, n, m)."""
    network = left.network
    inner = window(network, left.pixels @ right.pixels.mT)
    pairs = zip(left.layers, right.layers, strict=True)
    maps = [mine.maps.pair(mine.variances, other.variances) for mine, other in pairs]
    if isinstance(network, ConvDEQ):
        x, y = (torch.linalg.vector_norm(each.layers[0].variances, dim=0) for each in (left, right))
        fields = _covariance(network, maps[0], network.dense.drive(inner), torch.sqrt(x[:, None] * y))
        return _kernels(network, inner, [fields], kernels)
    layers, value = [], torch.zeros_like(inner)
    for both, (a, b, c) in zip(maps, network.variances, strict=True):
        covariance = b * inner + c + a * window(network, value)
        value, slope = both(covariance)
        layers.append((covariance, value, slope))
    return _kernels(network, inner, layers, kernels)


def _kernels(
    network: Convolutional,
    inner: Tensor,
    layers: Sequence[tuple[Tensor, ...]],
    kernels: Sequence[Kernel],
) -> dict[Kernel, Tensor]:
    """The kernels from the fields of Lambda, of G and of Gdot of each layer; ``inner``: that of the input."""
    ck = network.gain * layers[-1][1].mean(0)
    found: dict[Kernel, Tensor] = {"ck": ck, "ntk": ck, "ntk_frozen": ck}
    if any(is_tangent(kernel) for kernel in kernels):
        above = torch.full_like(inner, network.gain / network.positions)
        for (a, b, c), (covariance, _, slope) in zip(reversed(network.variances), reversed(layers), strict=True):
            if isinstance(network, ConvDEQ):
                above = _linear(network, a * slope, above, _tolerance(slope))
            effect = slope * above
            found["ntk"] = found["ntk"] + (effect * covariance).sum(0)
            found["ntk_frozen"] = found["ntk_frozen"] + (effect * (covariance - b * inner - c)).sum(0)
            above = a * window(network, effect)
    return {kernel: found[kernel] for kernel in kernels}


def _covariance(
    network: ConvDEQ, layer: Callable[[Tensor], Both], source: Tensor, sizes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Lambda = source + sigma_a2 W[G(Lambda)] by Newton's method, and G and Gdot there.

    The residual is measured by ``sizes``, which bound the norm of Lambda: terms of this size cancel in it.
    """
    field, tol, sigma_a2 = source, _tolerance(source), network.dense.variances[0]
    sizes = torch.where(sizes > 0, sizes, 1.0)
    for _ in range(LIMITS.steps):
        value, slope = layer(field)
        gap = source + sigma_a2 * window(network, value) - field
        residual = float((torch.linalg.vector_norm(gap, dim=0) / sizes).max())
        if residual <= tol:
            return field, value, slope
        # the equation of the step is solved as exactly as the step is worth
        field = field + _linear(network, sigma_a2 * slope, gap, max(tol, min(1e-2, residual)))
    raise ConvergenceError(
        f"the covariances of {network!r} were not reached (relative residual {residual:.1e}); lower sigma_a2 (a "
        f"solution is guaranteed below {network.limit:.6g})"
    )


def _linear(network: ConvDEQ, weight: Tensor, source: Tensor, tol: float) -> Tensor:
    """The solution of h = source + W[weight h]."""

    def step(h: Tensor) -> Tensor:
        return source + window(network, weight * h)

    low, high = weight.min(), float(weight.max())
    if low < 0.0 or high > 0.98:  # nothing is known of the spectrum, or it reaches one
        return _solve(network, step, source, tol)
    plan = SemiIteration.of(high, tol)
    before, h, omega = source, torch.lerp(source, step(source), plan.relax), 2.0
    for _ in range(plan.steps - 1):
        omega = 4.0 / (4.0 - plan.square * omega)
        before, h = h, torch.lerp(before, torch.lerp(h, step(h), plan.relax), omega)
    return h


class SemiIteration(NamedTuple):
    """Chebyshev's method for h = step(h) whose derivative has real eigenvalues in a known interval.

        h_(k+1) = h_(k-1) + omega_k (h_k + relax (step(h_k) - h_k) - h_(k-1)),   omega_k = 4 / (4 - square omega_(k-1)),

    where omega_0 = 2 and the first step is relax alone. The error falls to a given share in ``steps`` steps.
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


def _solve(network: ConvDEQ, step: Callable[[Tensor], Tensor], start: Tensor, tol: float) -> Tensor:
    """The fixed point of a map of fields, each a problem of its own; ``start`` has the positions first."""
    options = SolverOptions(tol=tol, max_steps=2000)
    found = solve_equilibrium(lambda z: step(z.movedim(-1, 0)).movedim(0, -1), start.movedim(0, -1), options)
    found.require(options, f"the field of {network!r}", raises=True)
    return found.value.movedim(-1, 0)


def _tolerance(field: Tensor) -> float:
    return 100.0 * torch.finfo(field.dtype).eps


# ---- CUDA ------------------------------------------------------------------------------------------------


def _fill_fused(left: Images, right: Images, target: Mapping[Kernel, Tensor], symmetric: bool) -> bool:
    """Fill the matrices by one Triton program per few pairs: ReLU-like DEQs in single precision on CUDA."""
    network, slopes = left.network, left.network.activations[0].two_slopes
    side = 1 << max(4, (max(network.image[1:]) - 1).bit_length())
    matrices = (left.pixels[0], *target.values())
    single = all(t.is_cuda and t.dtype == torch.float32 and t.stride(1) == 1 for t in matrices)
    if slopes is None or not single or side > 64 or not isinstance(network, ConvDEQ):
        return False
    device = importlib.import_module(f"{__package__}.device")
    program = device.program("triton_field", "field_kernel")
    if program is None:
        warn("Triton is missing or does not run, convolutional kernels are computed by plain torch")
        return False
    return device.attempt(lambda: _run_fused(program, left, right, target, slopes, side, symmetric)) is not None


def _run_fused(
    program: Any,
    left: Images,
    right: Images,
    target: Mapping[Kernel, Tensor],
    slopes: tuple[float, float],
    side: int,
    symmetric: bool,
) -> bool:
    (a, b), network = slopes, left.network
    ((sigma_a2, sigma_b2, sigma_c2),), (channels, height, width) = network.variances, network.image
    steep = 0.5 * (a * a + b * b)
    high = max(sigma_a2 * steep, 1e-6)  # a step of plain iteration leaves at most this share of the error
    if a * b >= 0.0 and high < 0.98:
        plan = SemiIteration.of(high, 3e-7)
    else:  # negative slopes, of which no spectrum is known
        plan = SemiIteration(1.0, 0.0, math.ceil(math.log(1e-7) / math.log(min(high, 0.99))))
    places = torch.arange(side, device=left.pixels.device)
    near = (places[:, None] - places).abs() <= network.filter // 2
    across, down = ((near & (places < size) & (places[:, None] < size)).float() for size in (width, height))
    band = 4096  # rows at once: a grid has at most 65,535 of them, and a band wastes little below the diagonal
    unasked = left.pixels.new_empty(min(band, len(left)), len(right) if len(target) < 3 else 1)
    for start in range(0, len(left), band):
        rows, first = slice(start, start + band), start if symmetric else 0
        outs = [target[k][rows, first:] if k in target else unasked for k in ("ck", "ntk", "ntk_frozen")]
        x, y = left[rows], right[first:]
        program[(-(-len(y) // 2), len(x))](
            *(images.pixels.permute(1, 2, 0).contiguous() for images in (x, y)),
            *(images.layers[0].variances.T.sqrt().contiguous() for images in (x, y)),
            *outs,
            across,
            down,
            len(y),
            *(out.stride(0) for out in outs),
            *(sigma_a2, sigma_b2, sigma_c2, 1.0 / network.filter**2),
            *((a - b) ** 2 / (2.0 * math.pi), a * b, steep),
            *plan,
            CHANNELS=channels,
            HEIGHT=height,
            WIDTH=width,
            SIDE=side,
            PAIRS=2,
            SYMMETRIC=symmetric,
            TANGENT=any(is_tangent(kernel) for kernel in target),
            num_warps=4,
        )
        if symmetric:  # the part of the band on the diagonal, and what lies to its right
            for out in target.values():
                square, rest = out[rows, rows], slice(start + band, None)
                square.copy_(square.triu() + square.triu(1).T)
                out[rest, rows].copy_(out[rows, rest].T)
    return True
