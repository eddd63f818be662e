"""Specifications of convolutional networks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from .._arguments import not_negative, positive_int
from .._maps import Averages
from ..activations import Activation, ActivationLike
from ..errors import InvalidInputError
from .base import VARIANCES, Specification
from .dense import DEQ, ENN


@dataclass(frozen=True, init=False, repr=False)
class _OfImages(Specification):
    """What convolutional networks share; ``dense`` is the network of the same layers without positions."""

    dense: DEQ | ENN
    image: tuple[int, int, int]
    filter: int
    pool: int | Literal["global"]
    stride: int

    def _set(self, dense: DEQ | ENN, image: Any, filter: Any, pool: Any, stride: Any) -> None:
        if not isinstance(image, Sequence) or len(image) != 3:
            raise InvalidInputError(f"image must be (channels, height, width), three numbers, got {image!r}")
        sizes = tuple(positive_int(name, n) for name, n in zip(("channels", "height", "width"), image, strict=True))
        if positive_int("filter", filter) % 2 == 0 or filter > min(sizes[1:]):
            raise InvalidInputError(
                f"filter must be an odd number and fit into an image of {sizes[1]} x {sizes[2]}, got {filter}"
            )
        if positive_int("stride", stride) > filter:
            raise InvalidInputError(f"stride must be at most the size of the filter, {filter}, got {stride}")
        given = {"dense": dense, "image": sizes, "filter": int(filter), "pool": pool, "stride": int(stride)}
        for name, value in given.items():
            object.__setattr__(self, name, value)
        high, wide = self.grid
        if not (pool == "global" if isinstance(pool, str) else positive_int("pool", pool) <= min(high, wide)):
            raise InvalidInputError(
                f"pool must be the side of a box that fits into {high} x {wide} positions (1: none), or 'global', got "
                f"{pool!r:.60}"
            )
        object.__setattr__(self, "pool", pool if pool == "global" else int(pool))

    @property
    def averages(self) -> Averages:
        """The averages over boxes that the readout sees."""
        return Averages(self.grid, self.pool)

    def _sizes(self) -> str:
        more = (f", {name}={value!r}" for name, value in (("pool", self.pool), ("stride", self.stride)) if value != 1)
        return f", image={self.image}, filter={self.filter}{''.join(more)}"

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes as arguments, and in documents."""
        return {"image": list(self.image), "filter": self.filter, "pool": self.pool, "stride": self.stride}

    @property
    def activations(self) -> tuple[Activation, ...]:  # type: ignore[override]
        """The activations of the layers."""
        return self.dense.activations

    @property
    def scales(self) -> tuple[Literal["columns", "rows"], ...]:
        """How images may be scaled: columns are pixels, whose sizes say something."""
        return ("rows",)

    @property
    def implicit(self) -> bool:  # type: ignore[override]
        """Whether its features are a fixed point."""
        return self.dense.implicit

    def check_contraction(self) -> None:
        """Raise :class:`ContractionError` unless a unique equilibrium is guaranteed."""
        self.dense.check_contraction()

    @property
    def grid(self) -> tuple[int, int]:
        """The numbers of rows and of columns of the positions of a layer."""
        high, wide = (-(-n // self.stride) for n in self.image[1:])
        return high, wide

    @property
    def positions(self) -> int:
        """The number of positions of a layer."""
        return math.prod(self.grid)

    def flattened(self, X: Any) -> Any:
        """Return images (n, channels, height, width) as rows; rows stay as they are."""
        shape, size = tuple(getattr(X, "shape", ())), math.prod(self.image)
        if shape[1:] == self.image:
            return X.reshape(len(X), size)
        if len(shape) > 2 and shape[-1] != size:
            raise InvalidInputError(
                f"images must have shape (n, {', '.join(map(str, self.image))}), channels first, got {shape}"
            )
        return X

    def check_rows(self, rows: Tensor) -> None:
        """Refuse rows that are not images of this size."""
        if rows.shape[1] != math.prod(self.image):
            raise InvalidInputError(
                f"rows of {rows.shape[1]} numbers are not images of {self.image} (channels, height, width), which have "
                f"{math.prod(self.image)}; flatten the images channels first, or give their size as image="
            )


@dataclass(frozen=True, init=False, repr=False)
class ConvDEQ(_OfImages):
    """Specify a convolutional DEQ with random filters, and a readout that sees all channels at all positions.

    Its m channels solve z(a) = phi(sum_b sigma_a A(b) z(a + b) + sigma_b B(b) x(a + b) + sigma_c c) / sqrt(m) at every
    position a. Here b runs over the window of the filter, positions outside the image count as zero, each entry of
    A(b) and B(b) has variance 1 / filter^2, and each entry of the readout 1 / positions.

    With ``pool=c`` the readout sees averages of the channels over boxes of c x c positions, one average for each place
    at which a box meets the image; positions outside count as zero. ``pool="global"`` is one mean over all positions,
    and the entries of the readout have variance 1. The kernels are sum_d (c - |d1|) (c - |d2|) / c^4 K_d over the
    shifts d of one image against the other, |d1|, |d2| < c, where K_d sums over the pairs of positions p, p + d.

    Parameters
    ----------
    phi : str, Activation or callable
        The activation.
    sigma_a2 : float
        The variance of the recurrent filters. A unique equilibrium is guaranteed at large width below :attr:`limit`.
    sigma_b2 : float, optional
        The variance of the input filters, ``1 - sigma_a2`` by default.
    sigma_c2 : float, default 0
        The variance of the bias c of a channel.
    image : tuple of three int
        Channels, height and width of an image. Data are (n, channels, height, width), or flattened: rows, channels
        first.
    filter : int, default 3
        Height and width of the filters, an odd number.
    pool : int or "global", default 1
        The side c of the boxes of average pooling before the readout. The cost grows as their shifts do, (2 c - 1)^2.
    stride : int, default 1
        The steps in which the input filters move, at most their size: the layer has a position for every s-th row and
        column of the image, beginning with the first.

    Examples
    --------
    >>> deq = ConvDEQ("relu", sigma_a2=0.2, image=(1, 8, 8))
    >>> deq, deq.positions
    (ConvDEQ(ReLU(), sigma_a2=0.2, sigma_b2=0.8, image=(1, 8, 8), filter=3), 64)
    """

    dense: DEQ
    gain = 1.0

    def __init__(
        self,
        phi: ActivationLike,
        sigma_a2: float,
        sigma_b2: float | None = None,
        sigma_c2: float = 0.0,
        *,
        image: Sequence[int],
        filter: int = 3,
        pool: int | Literal["global"] = 1,
        stride: int = 1,
    ) -> None:
        dense = DEQ(phi, sigma_a2, sigma_b2, sigma_c2)
        if dense.tracked:
            raise InvalidInputError("convolutional kernels have no gradients in the variances; give plain numbers")
        if len(dense.activations) > 1:
            raise InvalidInputError(f"the cell of a ConvDEQ has one layer, got {len(dense.activations)} activations")
        self._set(dense, image, filter, pool, stride)

    @property
    def variances(self) -> tuple[tuple[float, float, float], ...]:
        """(sigma_a2, sigma_b2, sigma_c2) of the one layer."""
        return (self.dense.variances,)

    @property
    def limit(self) -> float:
        """1 / (4 Lip^2): below it a wide network is a contraction, as a dense one is."""
        return self.dense.limit

    def __repr__(self) -> str:
        return f"Conv{self.dense!r}"[:-1] + f"{self._sizes()})"

    def to_dict(self) -> dict[str, Any]:
        """Return the network as a JSON document, which :func:`network_from_dict` reads."""
        return {**self.dense.to_dict(), "network": "ConvDEQ", **self.sizes}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> ConvDEQ:
        dense = DEQ.read({**document, "network": "DEQ"})
        a, b, c = dense.variances
        return cls(dense.activation, a, b, c, **_sizes_in(document))


@dataclass(frozen=True, init=False, repr=False)
class ConvENN(_OfImages):
    """Specify an explicit convolutional network of L layers, with the input injected into every layer or not.

    Its layers are z_l(a) = phi_l(sum_b sigma_a A_l(b) z_{l-1}(a + b) + sigma_b B_l(b) x(a + b) + sigma_c c_l) / sqrt(m)
    with z_0 = 0, in the notation of :class:`ConvDEQ`. The variance of each entry of the readout is gain / positions.

    Parameters
    ----------
    activations : list of str, Activation or callable
        One activation per hidden layer; a single one makes one layer.
    sigma_a2, sigma_b2, sigma_c2 : float or sequence of floats
        The variances of the filters A_l, of the input filters B_l and of the biases; one for all layers, or one each.
        The first layer has no A_1. With 0 as sigma_b2 of all layers but the first the input is not injected.
    image, filter, pool, stride : tuple of three int, int, int or "global", int
        The sizes of images, filters and boxes, and the steps of the input filters of all layers, as in
        :class:`ConvDEQ`.
    gain : float, default 1
        The factor of the kernels.

    Examples
    --------
    >>> ConvENN(["relu", "relu"], sigma_a2=0.2, sigma_b2=(1.0, 0.8), image=(1, 8, 8))
    ConvENN([ReLU(), ReLU()], sigma_a2=(0.0, 0.2), sigma_b2=(1.0, 0.8), image=(1, 8, 8), filter=3)
    """

    dense: ENN
    variances: tuple[tuple[float, float, float], ...]
    gain: float

    def __init__(
        self,
        activations: Iterable[ActivationLike] | ActivationLike,
        sigma_a2: float | Sequence[float],
        sigma_b2: float | Sequence[float],
        sigma_c2: float | Sequence[float] = 0.0,
        *,
        image: Sequence[int],
        filter: int = 3,
        pool: int | Literal["global"] = 1,
        stride: int = 1,
        gain: float = 1.0,
    ) -> None:
        self._set(ENN(activations), image, filter, pool, stride)
        columns = []
        for name, given in zip(VARIANCES, (sigma_a2, sigma_b2, sigma_c2), strict=True):
            many = isinstance(given, Sequence) or getattr(given, "ndim", 0) == 1
            column = [not_negative(name, v) for v in (given if many else [given] * self.depth)]  # type: ignore[union-attr]
            if len(column) != self.depth:
                raise InvalidInputError(f"{name} must be one number or one per layer ({self.depth}), got {given!r}")
            columns.append(column)
        columns[0][0] = 0.0  # nothing comes before the first layer
        object.__setattr__(self, "variances", tuple(zip(*columns, strict=True)))
        object.__setattr__(self, "gain", not_negative("gain", gain))

    @property
    def depth(self) -> int:
        """The number of hidden layers L."""
        return self.dense.depth

    def __repr__(self) -> str:
        a, b, c = zip(*self.variances, strict=True)
        bias, gain = f", sigma_c2={c}" if any(c) else "", f", gain={self.gain:.10g}" if self.gain != 1.0 else ""
        return f"Conv{self.dense!r}"[:-1] + f", sigma_a2={a}, sigma_b2={b}{bias}{self._sizes()}{gain})"

    def to_dict(self) -> dict[str, Any]:
        """Return the network as a JSON document, which :func:`network_from_dict` reads."""
        layers = {name: list(v) for name, v in zip(VARIANCES, zip(*self.variances, strict=True), strict=True)}
        return {**self.dense.to_dict(), **layers, "network": "ConvENN", **self.sizes, "gain": self.gain}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> ConvENN:
        layers = [Activation.from_dict(a) for a in document["activations"]]
        given = {name: document[name] for name in (*VARIANCES, "gain")}
        return cls(layers, **given, **_sizes_in(document))


def _sizes_in(document: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: document.get(name, 1) for name in ("pool", "stride")}  # files of older versions have none
    return {"image": document["image"], "filter": document["filter"], **given}
