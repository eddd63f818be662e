"""Exact kernels of wide convolutional DEQs.

For a pair of images the covariance of the pre-activations is a field: one number per position. Without pooling the
equations close on pairs of equal positions, so the calculus of :mod:`recursion` holds with fields in place of numbers
and one new operation, the mean over the window of the filter:

    Lambda = sigma_a2 W[G(Lambda)] + sigma_b2 W[x . y] + sigma_c2,   CK = mean of G,   NTK = CK + sum of M Lambda,

where M = Gdot (1 / P + sigma_a2 W[M]) is the effect of the pre-activation at each position on the output. W adds up the
window, counts what lies outside the image as zero and divides by the size of the filter; it is symmetric.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .._equilibrium import SolverOptions, solve_equilibrium
from .._progress import track
from ..errors import ConvergenceError, warn
from ..networks import ConvDEQ, Kernel, is_tangent
from ._limits import LIMITS
from .fields import Both, FieldMaps, field_maps


def fill_convolutional(
    network: ConvDEQ, x: Tensor, y: Tensor | None, target: Mapping[Kernel, Tensor], progress: bool | None
) -> None:
    """Write the kernels of all pairs of images into ``target``, block by block; one triangle if ``y`` is ``None``."""
    left, right = Images.of(network, x) * 2 if y is None else Images.of(network, x, y)
    if not _fill_fused(left, right, target, y is None):
        entries = LIMITS.field_entries * (512 if x.is_cuda else 1)  # a GPU wants larger blocks than a cache
        side = max(1, math.isqrt(entries // network.positions))
        blocks = list(_blocks(len(left), len(right), side, y is None))
        for rows, columns in track(blocks, len(blocks), "convolutional kernel", progress):
            for kernel, values in _block(left[rows], right[columns], tuple(target)).items():
                target[kernel][rows, columns] = values
                if y is None and rows != columns:
                    target[kernel][columns, rows] = values.T
    if y is None:
        for kernel, values in convolutional_diagonal(network, x, tuple(target)).items():
            target[kernel].diagonal().copy_(values)


def convolutional_diagonal(network: ConvDEQ, x: Tensor, kernels: Sequence[Kernel]) -> dict[Kernel, Tensor]:
    """The kernels of every image with itself, in double precision: an angle of zero needs all digits of its cosine."""
    size = max(1, LIMITS.field_entries * (64 if x.is_cuda else 1) // network.positions)
    found = []
    for part in x.split(size):
        (images,) = Images.of(network, part.double())
        value, slope = images.maps.both(images.side, images.side, images.variances)
        source = _drive(network, (images.pixels * images.pixels).sum(1))
        found.append(_kernels(network, source, images.variances, value, slope, kernels))
    return {kernel: torch.cat([each[kernel] for each in found]) for kernel in kernels}


def _blocks(rows: int, columns: int, side: int, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    for i in range(0, rows, side):
        for j in range(i if symmetric else 0, columns, side):
            yield slice(i, min(i + side, rows)), slice(j, min(j + side, columns))


def _block(left: Images, right: Images, kernels: Sequence[Kernel]) -> dict[Kernel, Tensor]:
    n, m = len(left), len(right)
    i, j = torch.arange(n).repeat_interleave(m), torch.arange(m).repeat(n)
    found = pair_kernels(left[i.to(left.pixels.device)], right[j.to(left.pixels.device)], kernels)
    return {kernel: values.reshape(n, m) for kernel, values in found.items()}


# ---- images ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Images:
    """Images of a network, with what its layer needs of them.

    pixels : (n, channels, positions)
    variances : those of the pre-activations, (n, positions)
    side : what the layer needs of the images, which lie on the last but one dimension
    """

    network: ConvDEQ
    maps: FieldMaps
    pixels: Tensor
    variances: Tensor
    side: Tensor

    @staticmethod
    def of(network: ConvDEQ, *rows: Tensor) -> list[Images]:
        """Solve the equations of the variances, which are those of a pair of equal images, for sets of rows."""
        pixels = torch.cat(rows).reshape(sum(map(len, rows)), network.image[0], -1)
        maps, variances = _variances(network, (pixels * pixels).sum(1))
        images = Images(network, maps, pixels, variances, maps.side(variances))
        starts = [0, *itertools.accumulate(map(len, rows))]
        return [images[slice(*ends)] for ends in itertools.pairwise(starts)]

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, rows: slice | Tensor) -> Images:
        return Images(self.network, self.maps, self.pixels[rows], self.variances[rows], self.side[..., rows, :])


def _variances(network: ConvDEQ, squares: Tensor) -> tuple[FieldMaps, Tensor]:
    """The variances, by a layer that reaches as far as they do."""
    source = _drive(network, squares)
    top = _rounded(source)
    while True:
        maps = field_maps(network.dense.activation, top)
        q = _solve(network, functools.partial(_variance_step, network, maps, source), source, _tolerance(source))
        if _rounded(q) <= maps.top:
            return maps, q
        top = 2.0 * top


def _variance_step(network: ConvDEQ, maps: FieldMaps, source: Tensor, q: Tensor) -> Tensor:
    side = maps.side(q)
    return source + network.dense.variances[0] * window(network, maps.both(side, side, q)[0])


def _rounded(q: Tensor) -> float:
    """The largest standard deviation, rounded up to a power of sqrt(2), so that like data share a layer."""
    largest = float(q.max()) if q.numel() else 0.0
    return 2.0 ** (math.ceil(math.log2(largest)) / 2) if largest > 0 else 1.0


def window(network: ConvDEQ, field: Tensor) -> Tensor:
    """Add up the window around each position of a field (..., positions) and divide by the size of the filter."""
    images = field.reshape(-1, 1, *network.image[1:])
    return functional.avg_pool2d(images, network.filter, stride=1, padding=network.filter // 2).reshape(field.shape)


def _drive(network: ConvDEQ, products: Tensor) -> Tensor:
    drive: Tensor = network.dense.drive(window(network, products))
    return drive


# ---- pairs -----------------------------------------------------------------------------------------------


def pair_kernels(left: Images, right: Images, kernels: Sequence[Kernel]) -> dict[Kernel, Tensor]:
    """The kernels of each image of ``left`` with the image of ``right`` at the same place: Lambda first, then M."""
    network = left.network
    source = _drive(network, (left.pixels * right.pixels).sum(1))
    covariance, value, slope = _covariance(network, lambda field: left.maps.both(left.side, right.side, field), source)
    return _kernels(network, source, covariance, value, slope, kernels)


def _kernels(
    network: ConvDEQ, source: Tensor, covariance: Tensor, value: Tensor, slope: Tensor, kernels: Sequence[Kernel]
) -> dict[Kernel, Tensor]:
    """The kernels from the fields of Lambda, of its source, of G and of Gdot."""
    found: dict[Kernel, Tensor] = {"ck": value.mean(-1)}
    if any(is_tangent(kernel) for kernel in kernels):
        even = torch.full_like(slope, 1.0 / network.positions)
        effect = slope * _linear(network, network.dense.variances[0] * slope, even, _tolerance(slope))
        found["ntk"] = found["ck"] + (effect * covariance).sum(-1)
        found["ntk_frozen"] = found["ck"] + (effect * (covariance - source)).sum(-1)
    return {kernel: found[kernel] for kernel in kernels}


def _covariance(network: ConvDEQ, layer: Callable[[Tensor], Both], source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Lambda = source + sigma_a2 W[G(Lambda)] by Newton's method, and G and Gdot there."""
    field, tol, sigma_a2 = source, _tolerance(source), network.dense.variances[0]
    for _ in range(LIMITS.steps):
        value, slope = layer(field)
        gap = source + sigma_a2 * window(network, value) - field
        residual = _relative(gap, field)
        if residual <= tol:
            return field, value, slope
        # the equation of the step is solved as exactly as the step is worth
        field = field + _linear(network, sigma_a2 * slope, gap, max(tol, min(1e-2, residual)))
    raise _diverged(network, residual)


def _linear(network: ConvDEQ, weight: Tensor, source: Tensor, tol: float) -> Tensor:
    """The solution of h = source + W[weight h]."""
    return _solve(network, lambda h: source + window(network, weight * h), source, tol)


def _solve(network: ConvDEQ, step: Callable[[Tensor], Tensor], start: Tensor, tol: float) -> Tensor:
    found = solve_equilibrium(step, start, SolverOptions(tol=tol, max_steps=2000))
    if not bool(found.converged.all()):
        raise _diverged(network, float(found.residual.max()))
    return found.value


def _tolerance(field: Tensor) -> float:
    return 40.0 * torch.finfo(field.dtype).eps


def _relative(gap: Tensor, field: Tensor) -> float:
    """The largest of |gap| / |field| over all pairs."""
    sizes = torch.linalg.vector_norm(field, dim=-1)
    return float((torch.linalg.vector_norm(gap, dim=-1) / torch.where(sizes > 0, sizes, 1.0)).max())


def _diverged(network: ConvDEQ, residual: float) -> ConvergenceError:
    return ConvergenceError(
        f"the covariances of {network!r} were not reached (relative residual {residual:.1e}); lower sigma_a2 (a "
        f"solution is guaranteed below {network.limit:.6g})"
    )


# ---- CUDA ------------------------------------------------------------------------------------------------


def _fill_fused(left: Images, right: Images, target: Mapping[Kernel, Tensor], symmetric: bool) -> bool:
    """Fill the matrices by one Triton program per few pairs: ReLU-like activations in single precision on CUDA."""
    network, slopes = left.network, left.network.dense.activation.two_slopes
    side = 1 << max(4, (max(network.image[1:]) - 1).bit_length())
    matrices = (left.pixels[0], *target.values())
    single = all(t.is_cuda and t.dtype == torch.float32 and t.stride(1) == 1 for t in matrices)
    if slopes is None or not single or side > 64:
        return False
    try:
        program = importlib.import_module(f"{__package__}.triton_field").field_kernel
    except ImportError as error:
        warn(f"Triton is missing, convolutional kernels are computed by plain torch: {error!r:.200}")
        return False
    tangent = any(is_tangent(kernel) for kernel in target)
    unasked = left.pixels.new_empty(len(left), len(right) if len(target) < 3 else 1)
    outs = [target.get(kernel, unasked) for kernel in ("ck", "ntk", "ntk_frozen")]
    _launch(program, left, right, outs, slopes, side, symmetric, tangent)
    if symmetric:
        for out in target.values():
            out.copy_(out.triu() + out.triu(1).T)
    return True


def _launch(
    program: Any,
    left: Images,
    right: Images,
    outs: Sequence[Tensor],
    slopes: tuple[float, float],
    side: int,
    symmetric: bool,
    tangent: bool,
) -> None:
    (a, b), network = slopes, left.network
    (sigma_a2, sigma_b2, sigma_c2), (channels, height, width) = network.dense.variances, network.image
    steep = 0.5 * (a * a + b * b)
    rate = max(sigma_a2 * steep, 1e-6)  # each step of the iteration leaves at most this share of the error
    steps = math.ceil(math.log(1e-7) / math.log(min(rate, 0.99)))
    places = torch.arange(side, device=left.pixels.device)
    band = ((places[:, None] - places).abs() <= network.filter // 2).float()
    inside = [(places < size).float() for size in (height, width)]
    program[(-(-len(right) // 2), len(left))](
        left.pixels.contiguous(),
        right.pixels.contiguous(),
        left.variances.sqrt().contiguous(),
        right.variances.sqrt().contiguous(),
        *outs,
        (band * inside[1] * inside[1][:, None]).contiguous(),
        (band * inside[0] * inside[0][:, None]).contiguous(),
        len(right),
        *(out.stride(0) for out in outs),
        sigma_a2,
        sigma_b2,
        sigma_c2,
        1.0 / network.filter**2,
        (a - b) ** 2 / (2.0 * math.pi),
        a * b,
        steep,
        steps,
        CHANNELS=channels,
        HEIGHT=height,
        WIDTH=width,
        SIDE=side,
        PAIRS=2,
        SYMMETRIC=symmetric,
        TANGENT=tangent,
        num_warps=4,
    )
