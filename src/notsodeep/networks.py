"""Specifications of networks: what they are, without weights and without data.

>>> import notsodeep as nsd
>>> nsd.DEQ("relu", sigma_a2=0.2)
DEQ(ReLU(), sigma_a2=0.2, sigma_b2=0.8)
>>> nsd.ENN(["tanh", "relu"]).depth
2
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, get_args, overload

import numpy as np
import torch
from torch import Tensor

from ._arrays import as_floats, isolated_settings
from ._caches import cached
from ._files import parsed
from ._fixed_point import newton
from ._words import Kernel as Kernel
from ._words import Readout as Readout
from .activations import Activation, ActivationLike, activation
from .errors import ContractionError, ConvergenceError, InvalidInputError, SerialisationError
from .gaussian import moments, spread

KERNELS: tuple[Kernel, ...] = get_args(Kernel)
SCALES = (1e-30, 1e30)  # between these, fourth powers of tau0 and their inverses are numbers


class _Frozen:
    """A value: no attribute changes after construction; equality and hash are those of the content."""

    __slots__ = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The names of the kernels."""
        return KERNELS

    @property
    def activations(self) -> tuple[Activation, ...]:
        """The activations of the layers."""
        raise NotImplementedError

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
        """Return the network that ``to_dict`` wrote.

        Parameters
        ----------
        document : dict

        Returns
        -------
        DEQ or ENN
        """
        network = network_from_dict(document)
        if not isinstance(network, cls):
            raise SerialisationError(f"expected the description of a {cls.__name__}, got {network!r}")
        return network

    def _content(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen; build a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen; {name!r} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._content()))


class DEQ(_Frozen):
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
        The variance of the bias c.
    readout : {"activation", "pre-activation"}
        The output is f(x) = a . z, or one more pre-activation, f(x) = sigma_a a . z + sigma_b b . x + sigma_c c', with
        weights of its own: then ck and ntk are G* and K* of the preprint and of the workshop paper.

    Notes
    -----
    Kernels are differentiable in a variance that is a tensor of no dimension with ``requires_grad``.

    Examples
    --------
    >>> deq = DEQ("relu", sigma_a2=0.2)
    >>> deq, deq.limit
    (DEQ(ReLU(), sigma_a2=0.2, sigma_b2=0.8), 0.25)
    >>> DEQ(torch.nn.LeakyReLU(0.1), sigma_a2=0.2, sigma_b2=1.0)
    DEQ(LeakyReLU(slope=0.1, gain=1.0), sigma_a2=0.2, sigma_b2=1)
    """

    __slots__ = ("activation", "readout", "sigma_a2", "sigma_b2", "sigma_c2")
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
        object.__setattr__(self, "activation", activation(phi))
        if readout not in get_args(Readout):
            raise InvalidInputError(f"readout must be one of {get_args(Readout)}, got {readout!r:.60}")
        object.__setattr__(self, "readout", readout)
        object.__setattr__(self, "sigma_a2", _variance("sigma_a2", sigma_a2))
        number = float(self.sigma_a2.detach() if isinstance(self.sigma_a2, Tensor) else self.sigma_a2)
        if sigma_b2 is None and number >= 1.0:
            raise InvalidInputError(
                f"sigma_b2 defaults to 1 - sigma_a2, which is not positive for sigma_a2 = {number}; give sigma_b2"
            )
        object.__setattr__(
            self, "sigma_b2", _variance("sigma_b2", 1.0 - self.sigma_a2 if sigma_b2 is None else sigma_b2)
        )
        object.__setattr__(self, "sigma_c2", _variance("sigma_c2", sigma_c2))

    @property
    def variances(self) -> tuple[float, float, float]:
        """(sigma_a2, sigma_b2, sigma_c2) as plain numbers, also when they are tensors that track gradients."""
        a, b, c = (v.detach() if isinstance(v, Tensor) else v for v in (self.sigma_a2, self.sigma_b2, self.sigma_c2))
        return float(a), float(b), float(c)

    @property
    def activations(self) -> tuple[Activation, ...]:
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

    def _content(self) -> tuple[Any, ...]:
        return (self.activation, *self.variances, self.readout)

    def __repr__(self) -> str:
        a, b, c = self.variances
        bias = f", sigma_c2={c:.10g}" if c else ""
        seen = f", readout={self.readout!r}" if self.readout != "activation" else ""
        return f"DEQ({self.activation!r}, sigma_a2={a:.10g}, sigma_b2={b:.10g}{bias}{seen})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (DEQ, (self.activation, self.sigma_a2, self.sigma_b2, self.sigma_c2, self.readout))

    @property
    def limit(self) -> float:
        """1 / (4 Lip^2): below it the finite-width map is a contraction."""
        lipschitz = self.activation.lipschitz
        return math.inf if lipschitz == 0 else 0.25 / lipschitz**2

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
        """Return the DEQ with phi - E[phi(tau* xi)], where tau* is :meth:`centred_scale`; the theorems speak of it.

        Parameters
        ----------
        tau0 : float, default 1
            The scale of the inputs, sqrt(E||x||^2).

        Returns
        -------
        DEQ
        """
        tau = self.centred_scale(tau0)
        return DEQ(self.activation.centred(at=tau), self.sigma_a2, self.sigma_b2, self.sigma_c2, self.readout)

    def centred_scale(self, tau0: float = 1.0) -> float:
        """Return the solution tau* of tau*^2 = sigma_a2 Var[phi(tau* xi)] + sigma_b2 tau0^2 + sigma_c2.

        Parameters
        ----------
        tau0 : float, default 1
            The scale of the inputs.

        Returns
        -------
        float
            The scale of the pre-activations of the centred DEQ (preprint, Remark 3).

        Raises
        ------
        ConvergenceError
            If the equation has no solution.

        Examples
        --------
        >>> round(DEQ("tanh", 0.2).centred_scale(tau0=1.0), 10)
        0.9348716109
        """
        return _centred_scale(self.detached(), check_tau0(tau0))

    def detached(self) -> DEQ:
        """Return the DEQ with plain numbers as its variances, which a cache may hold."""
        return DEQ(self.activation, *self.variances, self.readout) if self.tracked else self

    def drive(self, inner: Any, *, tracked: bool = False) -> Any:
        """Return what the inputs contribute to the covariance of the pre-activations.

        Parameters
        ----------
        inner : float, array or tensor
            The inner products of the inputs.
        tracked : bool, default False
            Whether gradients reach the variances.

        Returns
        -------
        float, array or tensor
            ``sigma_b2 * inner + sigma_c2``.
        """
        _, b, c = (None, self.sigma_b2, self.sigma_c2) if tracked else self.variances
        return b * inner + c

    def to_dict(self) -> dict[str, Any]:
        """Return the network as a JSON document, which :meth:`from_dict` reads."""
        return {
            "network": "DEQ",
            "activation": self.activation.to_dict(),
            "sigma_a2": self.variances[0],
            "sigma_b2": self.variances[1],
            **({"sigma_c2": self.variances[2]} if self.variances[2] else {}),
            **({"readout": self.readout} if self.readout != "activation" else {}),
        }


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


class ENN(_Frozen):
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

    __slots__ = ("activations",)
    activations: tuple[Activation, ...]

    def __init__(self, activations: Iterable[ActivationLike] | ActivationLike) -> None:
        single = isinstance(activations, str | Activation) or callable(activations)
        if not (single or isinstance(activations, Iterable)) or getattr(activations, "ndim", 1) == 0:
            raise InvalidInputError(f"an explicit network takes a list of activations, got {activations!r}")
        given: list[Any] = [activations] if single else list(activations)  # type: ignore[arg-type]
        if not given:
            raise InvalidInputError("an explicit network needs at least one layer, got an empty list of activations")
        object.__setattr__(self, "activations", tuple(activation(a) for a in given))

    def _content(self) -> tuple[Any, ...]:
        return self.activations

    def __repr__(self) -> str:
        return f"ENN([{', '.join(repr(a) for a in self.activations)}])"

    def __reduce__(self) -> tuple[Any, ...]:
        return (ENN, (self.activations,))

    @property
    def depth(self) -> int:
        """The number of hidden layers L."""
        return len(self.activations)

    @isolated_settings
    def centred(self, tau0: float = 1.0) -> ENN:
        """Return the network with each layer centred at the scale tau_{l-1} of its inputs.

        Parameters
        ----------
        tau0 : float, default 1
            The scale of the inputs of the first layer.

        Returns
        -------
        ENN
        """
        layers, tau = [], check_tau0(tau0)
        for phi in self.activations:
            layers.append(phi.centred(at=tau))
            tau = math.sqrt(moments(phi, tau).variance)
        return ENN(layers)

    def to_dict(self) -> dict[str, Any]:
        """Return the network as a JSON document, which :meth:`from_dict` reads."""
        return {"network": "ENN", "activations": [a.to_dict() for a in self.activations]}


Network = DEQ | ENN


# ---- what may be asked of a network ------------------------------------------------------------------------


def check_network(network: Any) -> None:
    """Refuse what is neither a DEQ nor an ENN."""
    if not isinstance(network, DEQ | ENN):
        raise InvalidInputError(f"expected a DEQ or an ENN, got {type(network).__name__}")


def check_unbiased(deq: DEQ, what: str) -> None:
    """Refuse a bias, which correlates orthogonal inputs; ``what`` is not defined then."""
    if deq.biased:
        raise InvalidInputError(
            f"{what} is defined for a DEQ without a bias, got {deq!r}: with sigma_c2 > 0 orthogonal inputs are "
            "correlated. Use the exact kernels, match_sphere or match_one_layer, or set sigma_c2 = 0"
        )


def check_kernel(network: Any, kernel: Any) -> None:
    """Refuse an unknown kernel, and the tangent kernels of a network that has no gradient."""
    check_network(network)
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
    check_network(network)
    has = network.kernels
    known = isinstance(kernels, Sequence) and all(isinstance(k, str) and k in has for k in kernels)
    if isinstance(kernels, str) or not known or not kernels:
        raise InvalidInputError(f"kernels must be a non-empty sequence out of {has}, got {kernels!r}")
    for kernel in kernels if has == KERNELS else ():
        check_kernel(network, kernel)
    return tuple(kernels)


def is_tangent(kernel: str) -> bool:
    """Whether more than the readout is trained, so that slopes enter."""
    return kernel != "ck"


@overload
def rates_of(network: ENN, learning_rates: Sequence[float] | None) -> tuple[float, ...]: ...
@overload
def rates_of(network: Network, learning_rates: Sequence[float] | None) -> tuple[float, ...] | None: ...
def rates_of(network: Network, learning_rates: Sequence[float] | None) -> tuple[float, ...] | None:
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


def network_from_dict(document: Mapping[str, Any] | str) -> Network:
    """Return the DEQ or the ENN that ``to_dict`` wrote.

    Parameters
    ----------
    document : dict or str
        The document, or its JSON text.

    Returns
    -------
    DEQ or ENN

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
        if kind == "DEQ":
            variances = (document["sigma_a2"], document["sigma_b2"], document.get("sigma_c2", 0.0))
            readout = document.get("readout", "activation")
            return DEQ(Activation.from_dict(document["activation"]), *variances, readout)
        if kind == "ENN":
            return ENN([Activation.from_dict(a) for a in document["activations"]])
    except (KeyError, TypeError) as error:
        raise SerialisationError(f"the description of this {kind} is incomplete: {error!r}") from None
    except InvalidInputError as error:
        raise SerialisationError(f"this does not describe a {kind}: {error}") from None
    raise SerialisationError(f"the key 'network' must be 'DEQ' or 'ENN', got {kind!r}")


def check_tau0(tau0: Any) -> float:
    """Return the scale of the inputs as a plain number, or refuse it."""
    if not (isinstance(tau0, int | float | np.floating) and 0 < tau0 < math.inf):
        raise InvalidInputError(f"tau0 must be a positive and finite number, got {tau0!r}")
    if not SCALES[0] <= tau0 <= SCALES[1]:
        raise InvalidInputError(
            f"tau0 must lie between {SCALES[0]:.0e} and {SCALES[1]:.0e}, got {tau0!r}; scale the inputs"
        )
    return float(tau0)


def _variance(name: str, value: float | Tensor) -> float | Tensor:
    if isinstance(value, str | bytes | bool):
        raise InvalidInputError(f"{name} must be a number, got {value!r}")
    if isinstance(value, Tensor):
        if value.ndim != 0:
            raise InvalidInputError(f"{name} must be a number, got a tensor of shape {tuple(value.shape)}")
        number, given = float(value.detach()), value if value.requires_grad else float(value)
    else:
        try:
            number = given = float(value)
        except (TypeError, ValueError, OverflowError):
            raise InvalidInputError(f"{name} must be a number, got {value!r:.60}") from None
    if not (math.isfinite(number) and number >= 0):
        raise InvalidInputError(f"{name} must be finite and not negative, got {number!r}")
    return given
