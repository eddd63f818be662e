"""Specifications of networks: what they are, without weights and without data."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from .._arguments import not_negative, whole
from .._arrays import as_floats, isolated_settings
from .._caches import cached
from .._files import parsed
from .._maps import Averages
from .._words import Kernel as Kernel
from .._words import Readout as Readout
from .._words import as_html
from ..activations import Activation, ActivationLike, Affine, activation
from ..errors import ContractionError, InvalidInputError, SerialisationError
from ..gaussian import moments, spread
from ..units import NormUnits
from .nodes import FixedPoint, LayerNode, Node, Normalise, PreActivation, explicit
from .nodes import is_tangent as is_tangent
from .variances import pre_activation_variance

KERNELS: tuple[Kernel, ...] = get_args(Kernel)
_VARIANCES = ("sigma_a2", "sigma_b2", "sigma_c2")
SCALES = (1e-30, 1e30)  # between these, fourth powers of tau0 and their inverses are numbers


class Specification:
    """What networks share: an expression, and what may be asked of it."""

    activations: tuple[Activation, ...]
    implicit: ClassVar[bool] = False  # whether its features are a fixed point

    @property
    def tracked(self) -> bool:
        """Whether a variance is a tensor whose gradient is asked for."""
        return False

    def expression(self, rates: Sequence[Any] | None = None) -> tuple[Node, ...]:
        """Return the nodes of the network, with these learning rates."""
        raise NotImplementedError

    @property
    def plain(self) -> bool:
        """Whether it is the fixed point of one layer of units, as the papers have it."""
        return False

    @property
    def title(self) -> str:
        """What a short text calls the network."""
        return repr(self)

    @property
    def elementwise(self) -> bool:
        """Whether no unit sees the norm of its input."""
        return not any(isinstance(phi, NormUnits) for phi in self.activations)

    @property
    def given_variances(self) -> tuple[Any, ...]:
        """The variances as they were given, numbers or tensors; networks without them have none."""
        return ()

    def varied(self, *variances: Any) -> Self:
        """Return the network with other variances."""
        return self

    def detached(self) -> Self:
        """Return the network with plain numbers as its variances, which a cache may hold."""
        return self

    def check_contraction(self) -> None:
        """Raise :class:`ContractionError` unless a unique equilibrium is guaranteed; others have none to check."""

    def check_driven(self) -> None:
        """Raise an error if the kernel does not depend on the inputs."""

    @property
    def biased(self) -> bool:
        """Whether a bias enters the layers."""
        return False

    @property
    def homogeneous(self) -> bool:
        """Whether the kernels are homogeneous: k(cx, y) = c k(x, y) for all c > 0."""
        return not self.biased and all(phi.homogeneity == 1.0 for phi in self.activations)

    @property
    def odd(self) -> bool:
        """Whether the kernels are odd functions of the cosine: k(-x, y) = -k(x, y)."""
        return not self.biased and all(phi.parity == "odd" for phi in self.activations)

    @property
    def kinked(self) -> bool:
        """Whether an activation has kinks."""
        return any(phi.kinks for phi in self.activations)

    @property
    def closed(self) -> bool:
        """Whether all expectations have closed forms, or are short sums of some."""
        return all(
            phi.piecewise_linear or phi.closed_form() is not None or phi.mixed_form() is not None
            for phi in self.activations
        )

    @property
    def input_variance(self) -> float:
        """The variance that an input of norm one gives the first pre-activations, beside other things."""
        return 1.0

    def flattened(self, X: Any) -> Any:
        """Return inputs as rows; those of a dense network are."""
        return X

    def check_rows(self, rows: Tensor) -> None:
        """Refuse rows that the network cannot take; a dense one takes all."""

    def rates(self, learning_rates: Sequence[float] | None) -> tuple[float, ...] | None:
        """Return one multiplier per weight matrix where a network has them; ``None`` where all weights share one."""
        if learning_rates is not None:
            raise InvalidInputError(f"learning_rates belong to an ENN; {self.title} has one rate for all weights")
        return None

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return the network that ``to_dict`` wrote."""
        network = network_from_dict(document)
        if not isinstance(network, cls):
            raise SerialisationError(f"expected the description of a {cls.__name__}, got {network!r}")
        return network


class Dense(Specification):
    """A network of vectors, whose kernels depend on norms and an angle."""

    image: ClassVar[None] = None

    @property
    def dense(self) -> Self:
        """The network without positions: this one."""
        return self


@dataclass(frozen=True, init=False, repr=False)
class DEQ(Dense):
    """Specify the deep equilibrium model z = phi(sigma_a A z + sigma_b B x + sigma_c c) / sqrt(m), f(x) = a . z.

    Parameters
    ----------
    phi : str, Activation or callable, or a list of them
        The name of an activation, an activation, or a torch module or function. A list makes a cell of several layers,
        h_1 = phi_1(sigma_a A z + sigma_b B x + sigma_c c) / sqrt(m), h_l = phi_l(W_l h_(l-1)) / sqrt(m), z = h_L.
    sigma_a2 : float or Tensor
        The variance of the recurrent weights. A unique equilibrium is guaranteed below :attr:`limit`.
    sigma_b2 : float or Tensor, optional
        The variance of the input weights, ``1 - sigma_a2`` by default.
    sigma_c2 : float or Tensor, default 0
        The variance of the bias c. Kernels are differentiable in a variance that is a tensor with ``requires_grad``.
    readout : {"activation", "pre-activation"}
        The output is f(x) = a . z, or one more pre-activation, f(x) = sigma_a a . z + sigma_b b . x + sigma_c c', with
        weights of its own: then ck and ntk are G* and K* of the preprint and of the workshop paper.
    normalise : bool, default False
        Whether the pre-activations are divided by their root mean square, as normalisation layers do. Then the
        covariance equation always has a solution; :attr:`limit` says where it is unique for every input.

    Examples
    --------
    >>> deq = DEQ("relu", sigma_a2=0.2)
    >>> deq, deq.limit
    (DEQ(ReLU(), sigma_a2=0.2, sigma_b2=0.8), 0.25)
    >>> cell = DEQ(["tanh", "relu"], sigma_a2=0.05)
    >>> cell, cell.limit
    (DEQ([Tanh(), ReLU()], sigma_a2=0.05, sigma_b2=0.95), 0.0625)
    >>> DEQ(torch.nn.LeakyReLU(0.1), sigma_a2=0.2, sigma_b2=1.0)
    DEQ(LeakyReLU(slope=0.1, gain=1.0), sigma_a2=0.2, sigma_b2=1)
    """

    activations: tuple[Activation, ...]
    sigma_a2: float
    sigma_b2: float
    sigma_c2: float
    readout: Readout
    normalise: bool
    implicit: ClassVar[bool] = True

    def __init__(
        self,
        phi: ActivationLike | Sequence[ActivationLike],
        sigma_a2: float | Tensor,
        sigma_b2: float | Tensor | None = None,
        sigma_c2: float | Tensor = 0.0,
        readout: Readout = "activation",
        normalise: bool = False,
    ) -> None:
        if not isinstance(readout, str) or readout not in get_args(Readout):
            raise InvalidInputError(f"readout must be one of {get_args(Readout)}, got {readout!r:.60}")
        if not isinstance(normalise, bool | np.bool_):
            raise InvalidInputError(f"normalise must be True or False, got {normalise!r:.60}")
        first = _variance("sigma_a2", sigma_a2)
        if sigma_b2 is None and first >= 1.0:
            raise InvalidInputError(
                f"sigma_b2 defaults to 1 - sigma_a2, which is not positive for sigma_a2 = {first:.6g}; give sigma_b2"
            )
        object.__setattr__(self, "activations", _layers_of(phi, "the cell of a DEQ"))
        object.__setattr__(self, "sigma_a2", first)
        object.__setattr__(self, "sigma_b2", _variance("sigma_b2", 1.0 - first if sigma_b2 is None else sigma_b2))
        object.__setattr__(self, "sigma_c2", _variance("sigma_c2", sigma_c2))
        object.__setattr__(self, "readout", readout)
        object.__setattr__(self, "normalise", bool(normalise))

    @property
    def activation(self) -> Activation:
        """The activation of a cell of one layer, for what is defined by it alone."""
        if not self.plain:
            what = f"a cell of {len(self.activations)} layers" if not self.normalise else "normalised pre-activations"
            raise InvalidInputError(
                f"this is defined for a DEQ with one layer, got {what} ({self!r}). Exact kernels, estimators and "
                "match_one_layer take it"
            )
        return self.activations[0]

    @property
    def plain(self) -> bool:
        """Whether the cell is one layer of units, as the papers have it."""
        return len(self.activations) == 1 and not self.normalise

    @property
    def title(self) -> str:
        """What a short text calls the network."""
        names = (phi.base.name if isinstance(phi, Affine) else phi.name for phi in self.activations)
        return f"{'-'.join(names)} DEQ"

    @property
    def cell(self) -> tuple[Any, ...]:
        """The nodes between a pre-activation and the features."""
        before = (Normalise(),) if self.normalise else ()
        return (*before, *map(LayerNode, self.activations))

    def expression(self, rates: Sequence[Any] | None = None) -> tuple[Node, ...]:
        """Return the fixed point of the cell with its readout."""
        outer = () if self.readout == "activation" else (PreActivation(self.sigma_a2),)
        return (self.fixed_point, *outer)

    @property
    def fixed_point(self) -> FixedPoint:
        """The node that holds the equation of the equilibrium."""
        return FixedPoint(self.cell, self.sigma_a2, functools.partial(self.drive, tracked=True), self)

    @property
    def homogeneous(self) -> bool:
        """Whether the kernels are homogeneous; normalised pre-activations make them no function of one norm."""
        return super().homogeneous and not self.normalise

    @property
    def variances(self) -> tuple[float, float, float]:
        """(sigma_a2, sigma_b2, sigma_c2) as plain numbers, also when they are tensors that track gradients."""
        a, b, c = (v.detach() if isinstance(v, Tensor) else v for v in self.given_variances)
        return float(a), float(b), float(c)

    @property
    def input_variance(self) -> float:
        return self.variances[1]

    @property
    def given_variances(self) -> tuple[Any, ...]:
        """The variances as they were given, numbers or tensors."""
        return self.sigma_a2, self.sigma_b2, self.sigma_c2

    @property
    def tracked(self) -> bool:
        """Whether a variance is a tensor whose gradient is asked for."""
        return any(isinstance(v, Tensor) for v in self.given_variances)

    def varied(self, *variances: Any) -> DEQ:
        """Return the DEQ with other variances; ``None`` stands for its own."""
        a, b, c = (mine if v is None else v for mine, v in zip(self.variances, variances, strict=True))
        return DEQ(self.activations, a, b, c, self.readout, self.normalise)

    @property
    def biased(self) -> bool:
        """Whether sigma_c2 is positive."""
        return self.variances[2] > 0.0

    @property
    def constant_column(self) -> float:
        """The entry of one more column of inputs that does what the bias does; 0 where none can.

        The limit of normalised pre-activations depends on the bias, so that they keep it.
        """
        _, b, c = self.variances
        return 0.0 if self.normalise or b == 0.0 else math.sqrt(c / b)

    def __hash__(self) -> int:  # two equal tensors have different hashes
        return hash((self.activations, self.variances, self.readout, self.normalise))

    def __repr__(self) -> str:
        a, b, c = self.variances
        bias = f", sigma_c2={c:.10g}" if c else ""
        seen = f", readout={self.readout!r}" if self.readout != "activation" else ""
        norm = ", normalise=True" if self.normalise else ""
        return f"DEQ({self._units}, sigma_a2={a:.10g}, sigma_b2={b:.10g}{bias}{seen}{norm})"

    @property
    def _units(self) -> str:
        names = ", ".join(map(repr, self.activations))
        return names if len(self.activations) == 1 else f"[{names}]"

    def _repr_html_(self) -> str:
        rows = [("activation", self._units), *zip(_VARIANCES, self.variances, strict=True)]
        more = [("pre-activations", "normalised")] if self.normalise else []
        return as_html("DEQ", [*rows, *more, ("sigma_a2 guaranteed below", self.limit), ("readout sees", self.readout)])

    @property
    def lipschitz(self) -> float:
        """The product of the Lipschitz constants of the activations."""
        return math.prod(phi.lipschitz for phi in self.activations)

    @property
    def limit(self) -> float:
        """1 / (4^L Lip^2) for L layers: below it the finite-width map is a contraction.

        With normalised pre-activations no such bound exists. Then this is the sigma_a2 below which the covariance
        equation has one solution for every input, sigma_a2 (F'(1) - F(1)) < sigma_c2, F the cell at variance one.
        """
        if self.normalise:
            return _normalised_limit(self.activations, self.variances[2])
        lipschitz = self.lipschitz
        return math.inf if lipschitz == 0 else 0.25 ** len(self.activations) / lipschitz / lipschitz

    @property
    def usual_variance(self) -> float:
        """0.2, the sigma_a2 of the papers' examples, or 0.8 of the limit where that is lower."""
        return 0.2 if self.limit > 0.2 else float(f"{0.8 * self.limit:.3g}")

    @property
    def advice(self) -> str:
        """The advice for an equation of the kernels that has no solution."""
        known = f" (a solution is guaranteed below {self.limit:.6g})" if self.limit > 0 else ""
        return f"sigma_a2 = {self.variances[0]:.6g} is likely too large for a kernel to exist: lower it{known}"

    def check_driven(self) -> None:
        """Raise an error if the kernel does not depend on the inputs."""
        if self.variances[1] == 0.0:
            raise InvalidInputError(
                f"sigma_b2 = 0: {self!r} does not see its input, there is no kernel to match; give sigma_b2 > 0"
            )

    def check_contraction(self) -> None:
        """Raise :class:`ContractionError` unless a unique equilibrium is guaranteed."""
        if self.variances[0] >= self.limit and self.variances[0] > 0:
            if self.normalise:
                wanted = f"below {self.limit:.6g} the kernel of every input is unique; sigma_c2 > 0 widens this range"
            else:
                power = f"(4^{len(self.activations)} Lip^2)" if len(self.activations) > 1 else "(4 Lip^2)"
                wanted = f"it must be below 1/{power} = {self.limit:.6g} (Lip = {self.lipschitz:.6g})"
            raise ContractionError(
                f"sigma_a2 = {self.variances[0]:.6g} is outside the contraction range of {self._units}: {wanted}, "
                "or no unique equilibrium is guaranteed. Lower sigma_a2, or pass check=False to compute the kernel "
                "wherever its equations still converge"
            )

    def centred(self, tau0: float = 1.0) -> DEQ:
        """Return the DEQ whose layers are centred at the scales of their inputs, of which the theorems speak.

        The first layer becomes phi - E[phi(tau* xi)], where tau* is :meth:`centred_scale`.
        """
        layers = _centred_layers(self.activations, 1.0 if self.normalise else self.centred_scale(tau0))
        return DEQ(layers, self.sigma_a2, self.sigma_b2, self.sigma_c2, self.readout, self.normalise)

    def centred_scale(self, tau0: float = 1.0) -> float:
        """Return the solution tau* of tau*^2 = sigma_a2 Var[phi(tau* xi)] + sigma_b2 tau0^2 + sigma_c2."""
        return _centred_scale(self.detached(), check_tau0(tau0))

    def detached(self) -> DEQ:
        """Return the DEQ with plain numbers as its variances, which a cache may hold."""
        return self.varied(*self.variances) if self.tracked else self

    def drive(self, inner: Any, *, tracked: bool = False) -> Any:
        """Return ``sigma_b2 * inner + sigma_c2``, the part of the inputs; ``tracked`` keeps tensors."""
        _, b, c = (None, self.sigma_b2, self.sigma_c2) if tracked else self.variances
        return b * inner + c

    def to_dict(self) -> dict[str, Any]:
        """Return the network as a JSON document, which :meth:`from_dict` reads."""
        layers = [phi.to_dict() for phi in self.activations]
        own = {"network": "DEQ", "activation": layers[0] if len(layers) == 1 else layers, "readout": self.readout}
        more = {"normalise": True} if self.normalise else {}
        return {**own, **dict(zip(_VARIANCES, self.variances, strict=True)), **more}


@cached(1024)
@isolated_settings
def _centred_scale(deq: DEQ, tau0: float) -> float:
    square = torch.tensor([tau0**2], dtype=torch.float64)
    return float(pre_activation_variance(deq, square, lambda phi, q: spread(phi, q.sqrt())).sqrt())


@isolated_settings
def _centred_layers(activations: Sequence[Activation], tau: float) -> list[Activation]:
    """Return each activation centred at the scale of its inputs, ``tau`` for the first."""
    layers = []
    for phi in activations:
        layers.append(phi.centred(at=tau))
        tau = math.sqrt(moments(phi, tau).variance)
    return layers


@cached(1024)
@isolated_settings
def _normalised_limit(activations: tuple[Activation, ...], sigma_c2: float) -> float:
    """Return the sigma_a2 below which sigma_a2 (F'(1) - F(1)) < sigma_c2, F the cell between equal inputs."""
    tau, steep = 1.0, 1.0
    for phi in activations:
        at = moments(phi, tau)
        tau, steep = math.sqrt(at.square), steep * at.slope_square
    excess = steep - tau * tau
    return math.inf if excess <= 0.0 else sigma_c2 / excess


def _layers_of(given: Any, what: str) -> tuple[Activation, ...]:
    """Return one activation or several as a tuple."""
    single = isinstance(given, str | Activation) or callable(given)
    if not (single or isinstance(given, Iterable)) or getattr(given, "ndim", 1) == 0:
        raise InvalidInputError(f"{what} takes an activation or a list of activations, got {given!r}")
    layers = [given] if single else list(given)
    if not layers:
        raise InvalidInputError(f"{what} needs at least one layer, got an empty list of activations")
    return tuple(activation(a) for a in layers)


@dataclass(frozen=True, init=False, repr=False)
class ENN(Dense):
    """Specify the explicit network x_l = sigma_l(W_l x_{l-1}) / sqrt(m_l), l = 1 ... L, f(x) = a . x_L.

    Parameters
    ----------
    activations : list of str, Activation or callable
        One activation per hidden layer; a single one makes one layer.

    Examples
    --------
    >>> ENN(["tanh", "relu"])
    ENN([Tanh(), ReLU()])
    >>> ENN("tanh").depth
    1
    """

    activations: tuple[Activation, ...]

    def __init__(self, activations: Iterable[ActivationLike] | ActivationLike) -> None:
        object.__setattr__(self, "activations", _layers_of(activations, "an explicit network"))

    def expression(self, rates: Sequence[Any] | None = None) -> tuple[Node, ...]:
        """Return the layers and the readout; ``rates`` are those of W_1 ... W_L and of the readout."""
        return explicit(self.activations, (1.0,) * (self.depth + 1) if rates is None else rates)

    def __repr__(self) -> str:
        return f"ENN([{', '.join(repr(a) for a in self.activations)}])"

    def _repr_html_(self) -> str:
        return as_html("ENN", [(f"layer {i}", repr(phi)) for i, phi in enumerate(self.activations, 1)])

    @property
    def depth(self) -> int:
        """The number of hidden layers L."""
        return len(self.activations)

    def rates(self, learning_rates: Sequence[float] | None) -> tuple[float, ...]:
        """Return the multipliers of W_1 ... W_L and of the readout."""
        if learning_rates is None:
            return (1.0,) * (self.depth + 1)
        rates = as_floats(learning_rates, "learning_rates")
        if len(rates) != self.depth + 1 or min(rates) < 0:
            raise InvalidInputError(
                f"learning_rates needs {self.depth + 1} finite, non-negative numbers "
                f"(W_1 ... W_{self.depth}, readout), got {learning_rates!r}"
            )
        return tuple(rates)

    def centred(self, tau0: float = 1.0) -> ENN:
        """Return the network with each layer centred at the scale tau_{l-1} of its inputs; the first is ``tau0``."""
        return ENN(_centred_layers(self.activations, check_tau0(tau0)))

    def to_dict(self) -> dict[str, Any]:
        """Return the network as a JSON document, which :meth:`from_dict` reads."""
        return {"network": "ENN", "activations": [a.to_dict() for a in self.activations]}


class _OfImages(Specification):
    """What convolutional networks share; ``dense`` is the network of the same layers without positions."""

    dense: DEQ | ENN
    image: tuple[int, int, int]
    filter: int
    pool: int | Literal["global"]

    def _set(self, dense: DEQ | ENN, image: Any, filter: Any, pool: Any) -> None:
        if not isinstance(image, Sequence) or len(image) != 3:
            raise InvalidInputError(f"image must be (channels, height, width), three numbers, got {image!r}")
        sizes = tuple(whole(name, n) for name, n in zip(("channels", "height", "width"), image, strict=True))
        if whole("filter", filter) % 2 == 0 or filter > min(sizes[1:]):
            raise InvalidInputError(
                f"filter must be an odd number and fit into an image of {sizes[1]} x {sizes[2]}, got {filter}"
            )
        if not (pool == "global" if isinstance(pool, str) else whole("pool", pool) <= min(sizes[1:])):
            raise InvalidInputError(
                f"pool must be the side of a box that fits into an image of {sizes[1]} x {sizes[2]} (1: none), or "
                f"'global', got {pool!r:.60}"
            )
        object.__setattr__(self, "dense", dense)
        object.__setattr__(self, "image", sizes)
        object.__setattr__(self, "filter", int(filter))
        object.__setattr__(self, "pool", pool if pool == "global" else int(pool))

    @property
    def averages(self) -> Averages:
        """The averages over boxes that the readout sees."""
        return Averages(self.image[1:], self.pool)

    def _sizes(self) -> str:
        return f", image={self.image}, filter={self.filter}" + (f", pool={self.pool!r}" if self.pool != 1 else "")

    @property
    def activations(self) -> tuple[Activation, ...]:  # type: ignore[override]
        """The activations of the layers."""
        return self.dense.activations

    @property
    def implicit(self) -> bool:  # type: ignore[override]
        """Whether its features are a fixed point."""
        return self.dense.implicit

    def check_contraction(self) -> None:
        """Raise :class:`ContractionError` unless a unique equilibrium is guaranteed."""
        self.dense.check_contraction()

    @property
    def positions(self) -> int:
        """The number of positions of an image, height * width."""
        return self.image[1] * self.image[2]

    def flattened(self, X: Any) -> Any:
        """Return images (n, channels, height, width) as rows; what has other dimensions stays as it is."""
        if getattr(X, "ndim", 2) != 4:
            return X
        if tuple(X.shape[1:]) != self.image:
            raise InvalidInputError(
                f"images must have shape (n, {', '.join(map(str, self.image))}), channels first, got {tuple(X.shape)}"
            )
        return X.reshape(len(X), math.prod(self.image))

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

    Examples
    --------
    >>> deq = ConvDEQ("relu", sigma_a2=0.2, image=(1, 8, 8))
    >>> deq, deq.positions
    (ConvDEQ(ReLU(), sigma_a2=0.2, sigma_b2=0.8, image=(1, 8, 8), filter=3), 64)
    """

    dense: DEQ
    image: tuple[int, int, int]
    filter: int
    pool: int | Literal["global"]
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
    ) -> None:
        dense = DEQ(phi, sigma_a2, sigma_b2, sigma_c2).detached()
        if len(dense.activations) > 1:
            raise InvalidInputError(f"the cell of a ConvDEQ has one layer, got {len(dense.activations)} activations")
        self._set(dense, image, filter, pool)

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
        own = {"network": "ConvDEQ", "image": list(self.image), "filter": self.filter, "pool": self.pool}
        return {**self.dense.to_dict(), **own}


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
    image, filter, pool : tuple of three int, int, and int or "global"
        The sizes of images, filters and boxes, as in :class:`ConvDEQ`.
    gain : float, default 1
        The factor of the kernels.

    Examples
    --------
    >>> ConvENN(["relu", "relu"], sigma_a2=0.2, sigma_b2=(1.0, 0.8), image=(1, 8, 8))
    ConvENN([ReLU(), ReLU()], sigma_a2=(0.0, 0.2), sigma_b2=(1.0, 0.8), image=(1, 8, 8), filter=3)
    """

    dense: ENN
    variances: tuple[tuple[float, float, float], ...]
    image: tuple[int, int, int]
    filter: int
    pool: int | Literal["global"]
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
        gain: float = 1.0,
    ) -> None:
        self._set(ENN(activations), image, filter, pool)
        columns = []
        for name, given in zip(_VARIANCES, (sigma_a2, sigma_b2, sigma_c2), strict=True):
            many = isinstance(given, Sequence | np.ndarray)
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
        layers = {name: list(v) for name, v in zip(_VARIANCES, zip(*self.variances, strict=True), strict=True)}
        own = {"network": "ConvENN", "image": list(self.image), "filter": self.filter, "pool": self.pool}
        return {**self.dense.to_dict(), **layers, **own, "gain": self.gain}


Convolutional = ConvDEQ | ConvENN
Network = DEQ | ENN


# ---- what may be asked of a network ------------------------------------------------------------------------


def check_unbiased(deq: DEQ, what: str) -> None:
    """Refuse a bias, which correlates orthogonal inputs; ``what`` is not defined then."""
    if deq.biased:
        raise InvalidInputError(
            f"{what} is defined for a DEQ without a bias, got {deq!r}: with sigma_c2 > 0 orthogonal inputs are "
            "correlated. Use the exact kernels, match_sphere or match_one_layer, or set sigma_c2 = 0"
        )


def check_kernel(network: Any, kernel: Any) -> None:
    """Refuse an unknown kernel, and the tangent kernels of a network that has no gradient."""
    if not isinstance(network, Dense):
        raise InvalidInputError(f"expected a DEQ or an ENN, got {type(network).__name__}")
    if not (isinstance(kernel, str) and kernel in KERNELS):
        raise InvalidInputError(f"kernel must be one of {KERNELS}, got {kernel!r}")
    jumping = [phi for phi in network.activations if not phi.continuous] if is_tangent(kernel) else []
    if jumping:
        raise InvalidInputError(
            f"{jumping[0]!r} jumps, so E[phi'(u) phi'(v)] does not exist and its NTK is infinite; "
            "only kernel='ck' is defined"
        )


def check_kernels(network: Any, kernels: Any) -> tuple[Kernel, ...]:
    """Refuse what is no non-empty sequence of kernels that the network has."""
    check_kernel(network, "ck")
    known = isinstance(kernels, Sequence) and all(isinstance(k, str) and k in KERNELS for k in kernels)
    if isinstance(kernels, str) or not known or not kernels:
        raise InvalidInputError(f"kernels must be a non-empty sequence out of {KERNELS}, got {kernels!r}")
    for kernel in kernels:
        check_kernel(network, kernel)
    return tuple(kernels)


def network_from_dict(document: Mapping[str, Any] | str) -> Network | Convolutional:
    """Return the network that ``to_dict`` wrote.

    Parameters
    ----------
    document : dict or str
        The document, or its JSON text.

    Returns
    -------
    DEQ, ENN, ConvDEQ or ConvENN

    Raises
    ------
    SerialisationError
        If the document does not describe a network.

    Examples
    --------
    >>> network_from_dict(ENN("tanh").to_dict())
    ENN([Tanh()])
    """
    document = parsed(document, "a network")
    kind = document.get("network")
    try:
        if kind in ("DEQ", "ConvDEQ"):
            given = document["activation"]
            phi: Any = tuple(Activation.from_dict(a) for a in (given if isinstance(given, list) else [given]))
            variances = (document["sigma_a2"], document["sigma_b2"], document.get("sigma_c2", 0.0))
            if kind == "DEQ":
                return DEQ(phi, *variances, document.get("readout", "activation"), document.get("normalise", False))
            sizes = {"image": document["image"], "filter": document["filter"], "pool": document.get("pool", 1)}
            return ConvDEQ(phi[0], *variances, **sizes)
        if kind in ("ENN", "ConvENN"):
            layers = [Activation.from_dict(a) for a in document["activations"]]
            if kind == "ENN":
                return ENN(layers)
            given = {k: document[k] for k in (*_VARIANCES, "image", "filter", "gain")}
            return ConvENN(layers, **given, pool=document.get("pool", 1))
    except (KeyError, TypeError) as error:
        raise SerialisationError(f"the description of this {kind} is incomplete: {error!r}") from None
    except InvalidInputError as error:
        raise SerialisationError(f"this does not describe a {kind}: {error}") from None
    raise SerialisationError(f"the key 'network' must be 'DEQ', 'ENN', 'ConvDEQ' or 'ConvENN', got {kind!r}")


def check_tau0(tau0: Any) -> float:
    """Return the scale of the inputs as a plain number, or refuse it."""
    low, high = SCALES
    if not (isinstance(tau0, int | float | np.floating) and low <= tau0 <= high):
        raise InvalidInputError(f"tau0 must be a number from {low:.0e} to {high:.0e}, got {tau0!r}; scale the inputs")
    return float(tau0)


def _variance(name: str, value: Any) -> Any:
    """Return a variance as a plain number, or as a tensor of no dimension if its gradient is asked for."""
    if not isinstance(value, Tensor) or value.ndim:
        return not_negative(name, value)
    try:
        number = not_negative(name, float(value.detach()))
    except RuntimeError as error:
        raise InvalidInputError(f"{name} must be a number; give those of a vmap one at a time ({error})") from None
    followed = value.requires_grad or torch.autograd.forward_ad.unpack_dual(value).tangent is not None
    return value if followed else number
