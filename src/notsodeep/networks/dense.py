"""Specifications of networks of vectors: what they are, without weights and without data."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np
import torch
from torch import Tensor

from .._arguments import isolation, not_negative
from .._arrays import as_floats
from .._caches import cached
from .._words import Readout, as_html
from ..activations import Activation, ActivationLike, Affine, activation
from ..errors import ContractionError, InvalidInputError
from ..gaussian import moments
from .base import VARIANCES, Dense, check_tau0
from .nodes import FixedPoint, LayerNode, Node, Normalise, PreActivation, explicit, pre_activation_variance


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
        The output is f(x) = a . z, or f(x) = sigma_a a . z + sigma_b b . x + sigma_c c', one more pre-activation with
        its own weights. In the second case ck and ntk are G* and K* of the preprint and of the workshop paper.
    normalise : bool, default False
        Whether to divide the pre-activations by their root mean square, as normalisation layers do. The covariance
        equation then always has a solution, which is unique for every input below :attr:`limit`.

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
    _completes: ClassVar[bool] = False  # of one DEQ: whether its sigma_b2 is 1 - sigma_a2, and that is a tensor

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
        second = _variance("sigma_b2", 1.0 - first if sigma_b2 is None else sigma_b2)
        object.__setattr__(self, "sigma_b2", second)
        if sigma_b2 is None and isinstance(second, Tensor):
            object.__setattr__(self, "_completes", True)
        object.__setattr__(self, "sigma_c2", _variance("sigma_c2", sigma_c2))
        object.__setattr__(self, "readout", readout)
        object.__setattr__(self, "normalise", bool(normalise))

    @property
    def activation(self) -> Activation:
        """The activation of a cell of one layer, for what is defined by it alone."""
        if not self.plain:
            what = f"a cell of {len(self.activations)} layers" if not self.normalise else "normalised pre-activations"
            raise InvalidInputError(
                f"this is defined for a DEQ with one layer, got {what} ({self!r}). Exact kernels, estimators, "
                "match_one_layer and match_sphere take it"
            )
        return self.activations[0]

    @property
    def plain(self) -> bool:
        """Whether the cell is one layer of units, as the papers have it."""
        return len(self.activations) == 1 and not self.normalise

    @property
    def title(self) -> str:
        names = (phi.base.name if isinstance(phi, Affine) else phi.name for phi in self.activations)
        return f"{'-'.join(names)} DEQ"

    @property
    def cell(self) -> tuple[Any, ...]:
        """The nodes between a pre-activation and the features."""
        before = (Normalise(),) if self.normalise else ()
        return (*before, *map(LayerNode, self.activations))

    def expression(self, rates: Sequence[Any] | None = None) -> tuple[Node, ...]:
        outer = () if self.readout == "activation" else (PreActivation(self.sigma_a2),)
        return (self.fixed_point, *outer)

    @property
    def fixed_point(self) -> FixedPoint:
        """The node that holds the equation of the equilibrium."""
        return FixedPoint(self.cell, self.sigma_a2, functools.partial(self.drive, tracked=True), self)

    @property
    def homogeneous(self) -> bool:
        """Whether the kernels are homogeneous in the inputs; with normalised pre-activations they are not."""
        return super().homogeneous and not self.normalise

    @property
    def variances(self) -> tuple[float, float, float]:
        """(sigma_a2, sigma_b2, sigma_c2) as plain numbers, also when they are tensors that track gradients."""
        a, b, c = (v.detach() if isinstance(v, Tensor) else v for v in self.given_variances)
        return float(a), float(b), float(c)

    @property
    def given_variances(self) -> tuple[Any, ...]:
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
        return self.variances[2] > 0.0

    @property
    def drives(self) -> tuple[float, float]:
        """(sigma_b2, sigma_c2); not those of normalised pre-activations, whose limit depends on the bias."""
        return (1.0, 0.0) if self.normalise else super().drives

    def __hash__(self) -> int:  # two equal tensors have different hashes
        # a tuple of its own: from Python 3.14 on tuples keep their hashes, and functions see whether they have changed
        return hash((*self.activations, self.variances, self.readout, self.normalise))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), **({"sigma_b2": None} if self._completes else {})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["sigma_b2"] is None:  # it follows the sigma_a2 of the copy
            with torch.enable_grad():
                state = {**state, "sigma_b2": 1.0 - state["sigma_a2"]}
        vars(self).update(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> DEQ:
        state = self.__getstate__()
        for name in VARIANCES:
            if isinstance(state[name], Tensor) and not state[name].is_leaf:
                raise InvalidInputError(
                    f"the {name} of {self!r} is computed from other tensors, and a copy would not follow these: copy "
                    "deq.detached(), which has plain numbers, or build a DEQ from copies of these tensors"
                )
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        copied.__setstate__(copy.deepcopy(state, memo))
        return copied

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
        rows = [("activation", self._units), *zip(VARIANCES, self.variances, strict=True)]
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
        """Return the DEQ with layers centred at the scales of their inputs, as the theorems assume.

        The first layer becomes phi - E[phi(tau* xi)], where tau* is :meth:`centred_scale`.
        """
        layers = _centred_layers(self.activations, 1.0 if self.normalise else self.centred_scale(tau0))
        return DEQ(layers, self.sigma_a2, self.sigma_b2, self.sigma_c2, self.readout, self.normalise)

    def centred_scale(self, tau0: float = 1.0) -> float:
        """Return the solution tau* of tau*^2 = sigma_a2 Var[phi(tau* xi)] + sigma_b2 tau0^2 + sigma_c2."""
        return _centred_scale(self.detached(), check_tau0(tau0))

    def detached(self) -> DEQ:
        return self.varied(*self.variances) if self.tracked else self

    def drive(self, inner: Any, *, tracked: bool = False) -> Any:
        """Return ``sigma_b2 * inner + sigma_c2``, the part of the inputs; ``tracked`` keeps tensors."""
        _, b, c = (None, self.sigma_b2, self.sigma_c2) if tracked else self.variances
        return b * inner + c

    def to_dict(self) -> dict[str, Any]:
        """Return the network as a JSON document, which :meth:`from_dict` reads."""
        layers = [phi.to_dict() for phi in self.activations]
        document = {"network": "DEQ", "activation": layers[0] if len(layers) == 1 else layers, "readout": self.readout}
        more = {"normalise": True} if self.normalise else {}
        return {**document, **dict(zip(VARIANCES, self.variances, strict=True)), **more}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> DEQ:
        given = document["activation"]
        phi = [Activation.from_dict(a) for a in (given if isinstance(given, list) else [given])]
        variances = (document["sigma_a2"], document["sigma_b2"], document.get("sigma_c2", 0.0))
        return cls(phi, *variances, document.get("readout", "activation"), document.get("normalise", False))


@cached(1024)
@isolation()
def _centred_scale(deq: DEQ, tau0: float) -> float:
    square = torch.tensor([tau0**2], dtype=torch.float64)
    return float(pre_activation_variance(deq, square, _spread).sqrt())


def _spread(phi: Activation, q: Tensor) -> tuple[Tensor, Tensor]:
    """Return Var[phi(sqrt(q) xi)] and its derivative in q."""
    at = moments(phi, q.sqrt())
    return at.variance, 0.5 * at.square_curvature - at.mean * at.curvature


@isolation()
def _centred_layers(activations: Sequence[Activation], tau: float) -> list[Activation]:
    """Return each activation centred at the scale of its inputs, ``tau`` for the first."""
    layers = []
    for phi in activations:
        layers.append(phi.centred(at=tau))
        tau = math.sqrt(moments(phi, tau).variance)
    return layers


@cached(1024)
@isolation()
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
    if not single and (not isinstance(given, Iterable) or getattr(given, "ndim", 1) != 1):
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

    def __hash__(self) -> int:  # as that of a DEQ
        return hash((*self.activations,))

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

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> ENN:
        return cls([Activation.from_dict(a) for a in document["activations"]])


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
