"""Linear maps of rows: products with a matrix and convolutions, weights given each time, and averages of images."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Gradients(NamedTuple):
    """Gradients of k outputs at n rows in one array of weights, written out, or as outer products left right'."""

    left: Tensor  # (n, k, entries), or (n, k, o)
    right: Tensor | None = None  # (n, i)

    @staticmethod
    def of(left: Tensor, right: Tensor) -> Gradients:
        """Take left (n, k, o, L) and right (n, L, i): sums over L positions are written out, a single one is not."""
        if right.shape[1] == 1:
            return Gradients(left.squeeze(3), right.squeeze(1))
        return Gradients((left.flatten(1, 2) @ right).reshape(*left.shape[:2], -1))

    def written(self) -> Tensor:
        """Return the entries, (n, k, entries)."""
        return self.left if self.right is None else torch.einsum("nko,ni->nkoi", self.left, self.right).flatten(2)

    def inner(self, other: Gradients, full: bool = False) -> Tensor:
        """Return the inner products, summed over outputs, (n, m), or for all pairs of outputs, (n, k, m, k)."""
        if full:
            products = torch.einsum("nkp,mlp->nkml", self.left, other.left)
        else:
            products = self.left.flatten(1) @ other.left.flatten(1).mT
        if self.right is None or other.right is None:
            return products
        rows = self.right @ other.right.mT
        return products * (rows[:, None, :, None] if full else rows)

    def squares(self) -> Tensor:
        """Return the squared norms, summed over outputs, (n,)."""
        squares = self.left.square().sum((1, 2))
        return squares if self.right is None else squares * self.right.square().sum(1)

    def push(self, weights: Tensor) -> Tensor:
        """Return the inner products with arrays of weights, (c, ...): a tensor of shape (n, k, c)."""
        flat = weights.reshape(len(weights), -1)
        if self.right is None:
            return self.left @ flat.mT
        return torch.einsum("nko,cno->nkc", self.left, self.right @ flat.unflatten(1, (self.left.shape[2], -1)).mT)

    def pull(self, v: Tensor) -> Tensor:
        """Return sums over rows with the coefficients v, (n, c), for a single output: (c, entries)."""
        left = self.left[:, 0]
        if self.right is None:
            return v.mT @ left
        return torch.stack([((column[:, None] * left).mT @ self.right).flatten() for column in v.mT])


@dataclass(frozen=True)
class Product:
    """The map u -> u A' of rows u (..., m), for a matrix A (..., m, m), and the factor ``gain`` of it in a layer."""

    gain: float
    beyond = 0
    """How many more dimensions the weights have than the rows."""

    def features(self, weights: Tensor) -> int:
        """Return the length of a row."""
        return weights.shape[-1]

    def terms(self, weights: Tensor) -> int:
        """Return the number of products in an entry of the map."""
        return weights[0].numel()

    def spread(self, weights: Tensor) -> float:
        """Return a bound of the norm of the map whose weights are |A|."""
        return float(weights.detach().double().norm()) * (1.0 + 1e-9)

    def symbols(self, weights: Tensor) -> Tensor:
        """Return matrices (b, m, n), in double precision, the largest norm of which is a bound of the map's."""
        return weights.detach().double().unsqueeze(0)

    def forward(self, weights: Tensor, u: Tensor) -> Tensor:
        return u @ weights.mT

    def affine(self, drive: Tensor, u: Tensor, weights: Tensor) -> Tensor:
        """Return ``drive`` plus ``gain`` times the map, fused where the shapes allow it."""
        if u.ndim == 2 and weights.ndim == 2:
            return torch.addmm(drive, u, weights.mT, alpha=self.gain)
        return drive + self.gain * self.forward(weights, u)

    def back(self, weights: Tensor, h: Tensor) -> Tensor:
        """Apply the transposed map."""
        return self.forward(self.transposed(weights), h)

    def transposed(self, weights: Tensor) -> Tensor:
        """Return the weights of the transposed map."""
        return weights.mT

    def outer(self, left: Tensor, right: Tensor, like: Tensor) -> Tensor:
        """Return the gradient of <left, map(right)> in weights of the shape of ``like``."""
        if like.ndim == 2 and left.ndim > 2:
            left, right = left.reshape(-1, left.shape[-1]), right.reshape(-1, right.shape[-1])
        product = left.mT @ right
        return product if product.shape == like.shape else product.sum_to_size(like.shape)

    def windows(self, u: Tensor, weights: Tensor) -> Tensor:
        """Return what the weights see of rows at each position: (n, positions, entries)."""
        return u.unsqueeze(1)


@dataclass(frozen=True)
class Convolution(Product):
    """The map u -> A * u of flattened images u (..., channels * positions), for filters A (..., m, c, k, k).

    Filters have an odd size, and positions outside the image count as zero. Filters with further dimensions in front
    are applied one by one.
    """

    gain: float
    size: tuple[int, int]
    """Height and width of an image."""
    stride: int = 1
    """The steps in which filters move; the transposed map is that of steps of one."""
    beyond = 2

    def features(self, weights: Tensor) -> int:
        return weights.shape[-3] * self.size[0] * self.size[1]

    def spread(self, weights: Tensor) -> float:
        return weights.shape[-1] * super().spread(weights)  # the sum over positions of the filter, by Cauchy-Schwarz

    def symbols(self, weights: Tensor) -> Tensor:
        # on a torus that holds image and border the convolution is diagonal; the image is a part of it
        torus = [length + weights.shape[-1] - 1 for length in self.size]
        return torch.fft.fft2(weights.detach().double(), s=torus).flatten(2).permute(2, 0, 1) * (1.0 + 1e-12)

    def forward(self, weights: Tensor, u: Tensor) -> Tensor:
        if weights.ndim > 4:
            return torch.stack([self.forward(weights[i % len(weights)], row) for i, row in enumerate(u)])
        around = weights.shape[-1] // 2
        image = functional.conv2d(self._images(u), weights, stride=self.stride, padding=around)
        return image.reshape(*u.shape[:-1], -1)

    def transposed(self, weights: Tensor) -> Tensor:
        return weights.transpose(-4, -3).flip(-2, -1)

    def outer(self, left: Tensor, right: Tensor, like: Tensor) -> Tensor:
        if like.ndim > 4:
            parts = [self.outer(*pair, like[i % len(like)]) for i, pair in enumerate(zip(left, right, strict=True))]
            return torch.stack(parts).sum_to_size(like.shape)
        # images are the filters of a convolution over the batch
        ends, starts = (self._images(rows).transpose(0, 1) for rows in (left, right))
        return functional.conv2d(starts, ends, padding=like.shape[-1] // 2).transpose(0, 1)

    def windows(self, u: Tensor, weights: Tensor) -> Tensor:
        size = weights.shape[-1]
        return functional.unfold(self._images(u), size, padding=size // 2, stride=self.stride).mT

    def _images(self, rows: Tensor) -> Tensor:
        return rows.reshape(-1, rows.shape[-1] // (self.size[0] * self.size[1]), *self.size)


@dataclass(frozen=True)
class Averages:
    """The averages over boxes that a readout sees of flattened images (..., channels * positions).

    Boxes of c x c positions lie wherever they meet the image, one position apart, and positions outside count as zero.
    A box of 1 leaves the image as it is, "global" is one mean over the image. The map divides by the root of the number
    of positions, but for "global", so that the squared norm of a constant image is nearly the same for all boxes.
    """

    size: tuple[int, int]
    box: int | Literal["global"]

    @property
    def count(self) -> int:
        """The number of averages of a channel."""
        return 1 if self.box == "global" else math.prod(n + self.box - 1 for n in self.size)

    @property
    def shifts(self) -> dict[tuple[int, int], float]:
        """The weights w_d of inner products of averages, sum_d w_d / P sum_p z(p) z(p + d), for the shifts d."""
        reach = self.size if self.box == "global" else (self.box, self.box)
        down, across = (range(1 - n, n) for n in reach)
        every = itertools.product(down, across)
        if self.box == "global":
            return dict.fromkeys(every, 1.0 / math.prod(self.size))
        return {(i, j): (self.box - abs(i)) * (self.box - abs(j)) / self.box**4 for i, j in every}

    def forward(self, u: Tensor) -> Tensor:
        if self.box == 1:
            return u / math.sqrt(math.prod(self.size))
        down, across = self._bands(u)
        return (down @ u.unflatten(-1, (-1, *self.size)) @ across.mT).flatten(-3)

    def back(self, h: Tensor) -> Tensor:
        """Apply the transposed map."""
        if self.box == 1:
            return self.forward(h)
        down, across = self._bands(h)
        return (down.mT @ h.unflatten(-1, (-1, len(down), len(across))) @ across).flatten(-3)

    def _bands(self, like: Tensor) -> list[Tensor]:
        """Return the averages along either direction, as matrices (averages, positions)."""
        if self.box == "global":
            return [like.new_full((1, n), 1.0 / n) for n in self.size]
        ends = [torch.arange(n + self.box - 1, device=like.device)[:, None] for n in self.size]
        after = [end - torch.arange(n, device=like.device) for end, n in zip(ends, self.size, strict=True)]
        scales = [self.box * math.sqrt(n) for n in self.size]
        return [((k >= 0) & (k < self.box)).to(like) / scale for k, scale in zip(after, scales, strict=True)]


def root_mean_square(rows: Tensor) -> Tensor:
    """Return the root mean square along the last dimension, which is kept, also where squares are no numbers."""
    largest = rows.detach().abs().amax(-1, keepdim=True)
    unit = torch.where(largest > 0, largest, 1.0)
    return unit * (rows / unit).square().mean(-1, keepdim=True).sqrt()
