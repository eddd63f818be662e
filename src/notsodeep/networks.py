"""Specifications of networks: what they are, without weights and without data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, get_args

import numpy as np
import torch
from torch import Tensor

from ._arguments import not_negative, whole
from ._arrays import as_floats, isolated_settings
from ._caches import cached
from ._files import parsed
from ._fixed_point import newton
from ._words import Kernel as Kernel
from ._words import Readout as Readout
from ._words import as_html
from .activations import Activation, ActivationLike, activation
from .errors import ContractionError, ConvergenceError, InvalidInputError, SerialisationError
from .gaussian import moments, spread

KERNELS: tuple[Kernel, ...] = get_args(Kernel)
_VARIANCES = ("sigma_a2", "sigma_b2", "sigma_c2")
SCALES = (1e-30, 1e30)  # between these, fourth powers of tau0 and their inverses are numbers


class _Network:
    """What a DEQ and an ENN share."""

    activations: tuple[Activation, ...]

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

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return the network that ``to_dict`` wrote."""
        network = network_from_dict(document)
        if not isinstance(network, cls):
            raise SerialisationError(f"expected the description of a {cls.__name__}, got {network!r}")
        return network


@dataclass(frozen=True, init=False, repr=False)
class DEQ(_Network):
    """Specify the deep equilibrium model z = phi(sigma_a A z + sigma_b B x + sigma_c c) / sqrt(m), f(x) = a . z.

    Parameters
    ----------
    phi : str, Activation or callable
        The name of an activation, an activation, or a torch module or function.
    sigma_a2 : float or Tensor
        The variance of the recurrent weights. A unique equilibrium is guaranteed below :attr:`limit`.
    sigma_b2 : float or Tensor, optional
        The variance of the input weights, ``1 - sigma_a2`` by default.
    sigma_c2 : float or Tensor, default 0
        The variance of the bias c. Kernels are differentiable in a variance that is a tensor with ``requires_grad``.
    readout : {"activation", "pre-activation"}
        The output is f(x) = a . z, or one more pre-activation, f(x) = sigma_a a . z + sigma_b b . x + sigma_c c', with
        weights of its own: then ck and ntk are G* and K* of the preprint and of the workshop paper.

    Examples
    --------
    >>> deq = DEQ("relu", sigma_a2=0.2)
    >>> deq, deq.limit
    (DEQ(ReLU(), sigma_a2=0.2, sigma_b2=0.8), 0.25)
    >>> DEQ(torch.nn.LeakyReLU(0.1), sigma_a2=0.2, sigma_b2=1.0)
    DEQ(LeakyReLU(slope=0.1, gain=1.0), sigma_a2=0.2, sigma_b2=1)
    """

    activation: Activation
    sigma_a2: float
    sigma_b2: float
    sigma_c2: float
    readout: Readout

    def __init__(
        self,
        phi: ActivationLike,
        sigma_a2: float | Tensor,
        sigma_b2: float | Tensor | None = None,
        sigma_c2: float | Tensor = 0.0,
        readout: Readout = "activation",
    ) -> None:
        if not isinstance(readout, str) or readout not in get_args(Readout):
            raise InvalidInputError(f"readout must be one of {get_args(Readout)}, got {readout!r:.60}")
        first = _variance("sigma_a2", sigma_a2)
        if sigma_b2 is None and first >= 1.0:
            raise InvalidInputError(
                f"sigma_b2 defaults to 1 - sigma_a2, which is not positive for sigma_a2 = {first:.6g}; give sigma_b2"
            )
        object.__setattr__(self, "activation", activation(phi))
        object.__setattr__(self, "sigma_a2", first)
        object.__setattr__(self, "sigma_b2", _variance("sigma_b2", 1.0 - first if sigma_b2 is None else sigma_b2))
        object.__setattr__(self, "sigma_c2", _variance("sigma_c2", sigma_c2))
        object.__setattr__(self, "readout", readout)

    @property
    def variances(self) -> tuple[float, float, float]:
        """(sigma_a2, sigma_b2, sigma_c2) as plain numbers, also when they are tensors that track gradients."""
        a, b, c = (v.detach() if isinstance(v, Tensor) else v for v in (self.sigma_a2, self.sigma_b2, self.sigma_c2))
        return float(a), float(b), float(c)

    @property
    def activations(self) -> tuple[Activation, ...]:  # type: ignore[override]
        """The activation of the one layer, as a tuple."""
        return (self.activation,)

    @property
    def tracked(self) -> bool:
        """Whether a variance is a tensor whose gradient is asked for."""
        return any(isinstance(v, Tensor) for v in (self.sigma_a2, self.sigma_b2, self.sigma_c2))

    @property
    def biased(self) -> bool:
        """Whether sigma_c2 is positive."""
        return self.variances[2] > 0.0

    def __hash__(self) -> int:  # two equal tensors have different hashes
        return hash((self.activation, self.variances, self.readout))

    def __repr__(self) -> str:
        a, b, c = self.variances
        bias = f", sigma_c2={c:.10g}" if c else ""
        seen = f", readout={self.readout!r}" if self.readout != "activation" else ""
        return f"DEQ({self.activation!r}, sigma_a2={a:.10g}, sigma_b2={b:.10g}{bias}{seen})"

    def _repr_html_(self) -> str:
        rows = [("activation", repr(self.activation)), *zip(_VARIANCES, self.variances, strict=True)]
        return as_html("DEQ", [*rows, ("sigma_a2 guaranteed below", self.limit), ("readout sees", self.readout)])

    @property
    def limit(self) -> float:
        """1 / (4 Lip^2): below it the finite-width map is a contraction."""
        lipschitz = self.activation.lipschitz
        return math.inf if lipschitz == 0 else 0.25 / lipschitz / lipschitz

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
            raise ContractionError(
                f"sigma_a2 = {self.variances[0]:.6g} is outside the contraction range of {self.activation!r}: "
                f"it must be below 1/(4 Lip^2) = {self.limit:.6g} (Lip = {self.activation.lipschitz:.6g}), or no "
                "unique equilibrium is guaranteed. Lower sigma_a2, or pass check=False to compute the kernel "
                "wherever its equations still converge"
            )

    def centred(self, tau0: float = 1.0) -> DEQ:
        """Return the DEQ with phi - E[phi(tau* xi)], of which the theorems speak; tau* is :meth:`centred_scale`."""
        tau = self.centred_scale(tau0)
        return DEQ(self.activation.centred(at=tau), self.sigma_a2, self.sigma_b2, self.sigma_c2, self.readout)

    def centred_scale(self, tau0: float = 1.0) -> float:
        """Return the solution tau* of tau*^2 = sigma_a2 Var[phi(tau* xi)] + sigma_b2 tau0^2 + sigma_c2."""
        return _centred_scale(self.detached(), check_tau0(tau0))

    def detached(self) -> DEQ:
        """Return the DEQ with plain numbers as its variances, which a cache may hold."""
        return DEQ(self.activation, *self.variances, self.readout) if self.tracked else self

    def drive(self, inner: Any, *, tracked: bool = False) -> Any:
        """Return ``sigma_b2 * inner + sigma_c2``, the part of the inputs; ``tracked`` keeps tensors."""
        _, b, c = (None, self.sigma_b2, self.sigma_c2) if tracked else self.variances
        return b * inner + c

    def to_dict(self) -> dict[str, Any]:
        """Return the network as a JSON document, which :meth:`from_dict` reads."""
        own = {"network": "DEQ", "activation": self.activation.to_dict(), "readout": self.readout}
        return {**own, **dict(zip(_VARIANCES, self.variances, strict=True))}


def pre_activation_variance(
    deq: DEQ, squares: Tensor, mean_square: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> Tensor:
    """Return the solutions q of q = sigma_a2 V(q) + drive at inputs of these squared norms.

    ``mean_square`` maps q to V(q) = E[phi(sqrt(q) xi)^2] and its derivative; V is the variance of phi if it is centred.
    """
    sigma_a2 = deq.variances[0]
    drive = deq.drive(squares)
    if deq.activation.homogeneity == 1.0:  # V(q) = q V(1)
        share = sigma_a2 * float(mean_square(torch.ones(1, dtype=torch.float64))[0])
        if share >= 1.0:
            raise ConvergenceError(
                f"the variance equation of {deq!r} has no solution: sigma_a2 E[phi(xi)^2] = {share:.4g} >= 1; "
                f"{deq.advice}"
            )
        return drive / (1.0 - share)

    def rest(q: Tensor, which: Tensor | None) -> tuple[Tensor, Tensor]:
        value, rate = mean_square(q)
        return q - sigma_a2 * value - (drive if which is None else drive[which]), 1.0 - sigma_a2 * rate

    start = drive if bool((drive > 0).all()) else drive + sigma_a2 * mean_square(drive)[0]
    far = 1e12 * (1.0 + drive)
    root = newton(rest, start, drive, torch.full_like(drive, math.inf), flattest=0.05, far=far, still=1e-8)
    if not root.converged:
        raise ConvergenceError(
            f"the variance equation of {deq!r} did not converge (relative residual {root.residual:.1e}); {deq.advice}"
        )
    return root.value


@cached(1024)
@isolated_settings
def _centred_scale(deq: DEQ, tau0: float) -> float:
    square = torch.tensor([tau0**2], dtype=torch.float64)
    return float(pre_activation_variance(deq, square, lambda q: spread(deq.activation, q.sqrt())).sqrt())


@dataclass(frozen=True, init=False, repr=False)
class ENN(_Network):
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
        single = isinstance(activations, str | Activation) or callable(activations)
        if not (single or isinstance(activations, Iterable)) or getattr(activations, "ndim", 1) == 0:
            raise InvalidInputError(f"an explicit network takes a list of activations, got {activations!r}")
        given: list[Any] = [activations] if single else list(activations)  # type: ignore[arg-type]
        if not given:
            raise InvalidInputError("an explicit network needs at least one layer, got an empty list of activations")
        object.__setattr__(self, "activations", tuple(activation(a) for a in given))

    def __repr__(self) -> str:
        return f"ENN([{', '.join(repr(a) for a in self.activations)}])"

    def _repr_html_(self) -> str:
        return as_html("ENN", [(f"layer {i}", repr(phi)) for i, phi in enumerate(self.activations, 1)])

    @property
    def depth(self) -> int:
        """The number of hidden layers L."""
        return len(self.activations)

    @isolated_settings
    def centred(self, tau0: float = 1.0) -> ENN:
        """Return the network with each layer centred at the scale tau_{l-1} of its inputs; the first is ``tau0``."""
        layers, tau = [], check_tau0(tau0)
        for phi in self.activations:
            layers.append(phi.centred(at=tau))
            tau = math.sqrt(moments(phi, tau).variance)
        return ENN(layers)

    def to_dict(self) -> dict[str, Any]:
        """Return the network as a JSON document, which :meth:`from_dict` reads."""
        return {"network": "ENN", "activations": [a.to_dict() for a in self.activations]}


class _OfImages:
    """What convolutional networks share; ``dense`` is the network of the same layers without positions."""

    dense: DEQ | ENN
    image: tuple[int, int, int]
    filter: int

    def _set(self, dense: DEQ | ENN, image: Any, filter: Any) -> None:
        if not isinstance(image, Sequence) or len(image) != 3:
            raise InvalidInputError(f"image must be (channels, height, width), three numbers, got {image!r}")
        sizes = tuple(whole(name, n) for name, n in zip(("channels", "height", "width"), image, strict=True))
        if whole("filter", filter) % 2 == 0 or filter > min(sizes[1:]):
            raise InvalidInputError(
                f"filter must be an odd number and fit into an image of {sizes[1]} x {sizes[2]}, got {filter}"
            )
        object.__setattr__(self, "dense", dense)
        object.__setattr__(self, "image", sizes)
        object.__setattr__(self, "filter", int(filter))

    @property
    def activations(self) -> tuple[Activation, ...]:
        """The activations of the layers."""
        return self.dense.activations

    @property
    def positions(self) -> int:
        """The number of positions of an image, height * width."""
        return self.image[1] * self.image[2]

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
        Channels, height and width of an image. Rows of data are flattened images, channels first.
    filter : int, default 3
        Height and width of the filters, an odd number.

    Examples
    --------
    >>> deq = ConvDEQ("relu", sigma_a2=0.2, image=(1, 8, 8))
    >>> deq, deq.positions
    (ConvDEQ(ReLU(), sigma_a2=0.2, sigma_b2=0.8, image=(1, 8, 8), filter=3), 64)
    """

    dense: DEQ
    image: tuple[int, int, int]
    filter: int
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
    ) -> None:
        self._set(DEQ(phi, sigma_a2, sigma_b2, sigma_c2).detached(), image, filter)

    @property
    def variances(self) -> tuple[tuple[float, float, float], ...]:
        """(sigma_a2, sigma_b2, sigma_c2) of the one layer."""
        return (self.dense.variances,)

    @property
    def limit(self) -> float:
        """1 / (4 Lip^2): below it a wide network is a contraction, as a dense one is."""
        return self.dense.limit

    def __repr__(self) -> str:
        return f"Conv{self.dense!r}"[:-1] + f", image={self.image}, filter={self.filter})"

    def to_dict(self) -> dict[str, Any]:
        """Return the network as a JSON document, which :func:`network_from_dict` reads."""
        return {**self.dense.to_dict(), "network": "ConvDEQ", "image": list(self.image), "filter": self.filter}


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
    image, filter : tuple of three int, and int
        The sizes of images and filters, as in :class:`ConvDEQ`.
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
        gain: float = 1.0,
    ) -> None:
        self._set(ENN(activations), image, filter)
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
        return (
            f"Conv{self.dense!r}"[:-1]
            + f", sigma_a2={a}, sigma_b2={b}{bias}, image={self.image}, filter={self.filter}{gain})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the network as a JSON document, which :func:`network_from_dict` reads."""
        layers = {name: list(v) for name, v in zip(_VARIANCES, zip(*self.variances, strict=True), strict=True)}
        own = {"network": "ConvENN", "image": list(self.image), "filter": self.filter, "gain": self.gain}
        return {**self.dense.to_dict(), **layers, **own}


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
    if not isinstance(network, DEQ | ENN):
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


def is_tangent(kernel: str) -> bool:
    """Whether more than the readout is trained, so that slopes enter."""
    return kernel != "ck"


def rates_of(network: Network, learning_rates: Sequence[float] | None) -> Any:
    """Return one multiplier per weight matrix of an explicit network, W_1 ... W_L, readout; ``None`` for a DEQ."""
    if isinstance(network, DEQ):
        if learning_rates is not None:
            raise InvalidInputError("learning_rates belong to explicit networks; a DEQ has one rate for all weights")
        return None
    count = network.depth + 1
    if learning_rates is None:
        return (1.0,) * count
    rates = as_floats(learning_rates, "learning_rates")
    if len(rates) != count or min(rates) < 0:
        raise InvalidInputError(
            f"learning_rates needs {count} finite, non-negative numbers "
            f"(W_1 ... W_{network.depth}, readout), got {learning_rates!r}"
        )
    return rates


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
            phi = Activation.from_dict(document["activation"])
            variances = (document["sigma_a2"], document["sigma_b2"], document.get("sigma_c2", 0.0))
            if kind == "DEQ":
                return DEQ(phi, *variances, document.get("readout", "activation"))
            return ConvDEQ(phi, *variances, image=document["image"], filter=document["filter"])
        if kind in ("ENN", "ConvENN"):
            layers = [Activation.from_dict(a) for a in document["activations"]]
            if kind == "ENN":
                return ENN(layers)
            return ConvENN(layers, **{k: document[k] for k in (*_VARIANCES, "image", "filter", "gain")})
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
