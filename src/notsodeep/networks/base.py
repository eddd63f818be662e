"""What networks have in common, and what may be asked of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from torch import Tensor

from .._files import parsed
from .._words import Kernel
from ..activations import Activation
from ..errors import InvalidInputError, SerialisationError
from .nodes import Node, is_tangent

KERNELS: tuple[Kernel, ...] = get_args(Kernel)
VARIANCES = ("sigma_a2", "sigma_b2", "sigma_c2")


class Specification:
    """What networks share: an expression, and what may be asked of it. A class is stored and read by its name."""

    kinds: ClassVar[dict[str, type[Specification]]] = {}

    activations: tuple[Activation, ...]
    implicit: ClassVar[bool] = False  # whether its features are a fixed point

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
        return all(phi.quick for phi in self.activations)

    def flattened(self, X: Any) -> Any:
        """Return inputs as rows; those of a dense network are."""
        return X

    def check_rows(self, rows: Tensor) -> None:
        """Refuse rows that the network cannot take; a dense one takes all."""

    @property
    def scales(self) -> tuple[Literal["columns", "rows"], ...]:
        """How the rows of a table may be scaled before a dense network takes them."""
        return ("columns", "rows")

    def rates(self, learning_rates: Sequence[float] | None) -> tuple[float, ...] | None:
        """Return one multiplier per weight matrix where a network has them; ``None`` where all weights share one."""
        if learning_rates is not None:
            raise InvalidInputError(f"learning_rates belong to an ENN; {self.title} has one rate for all weights")
        return None

    def __init_subclass__(cls) -> None:
        Specification.kinds[cls.__name__] = cls

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Any:
        """Return the network that a document of this kind describes."""
        raise InvalidInputError(f"a {cls.__name__} is no network by itself")

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

    @property
    def variances(self) -> tuple[Any, ...]:
        """(sigma_a2, sigma_b2, sigma_c2): without feedback and bias, inputs of norm one have variance one."""
        return 0.0, 1.0, 0.0

    @property
    def drives(self) -> tuple[float, float]:
        """The variances of input weights and bias, where they do no more than scale the inputs and add a constant."""
        return self.variances[1:]


def check_unbiased(deq: Any, what: str) -> None:
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
    for phi in network.activations:
        if not phi.continuous and is_tangent(kernel):
            raise InvalidInputError(
                f"{phi!r} jumps, so E[phi'(u) phi'(v)] does not exist and its NTK is infinite; "
                "only kernel='ck' is defined"
            )


def check_kernels(network: Any, kernels: Any) -> tuple[Kernel, ...]:
    """Refuse what is no non-empty sequence of kernels that the network has."""
    if isinstance(kernels, str) or not isinstance(kernels, Sequence) or not kernels:
        raise InvalidInputError(f"kernels must be a non-empty sequence out of {KERNELS}, got {kernels!r}")
    for kernel in kernels:
        check_kernel(network, kernel)
    return tuple(kernels)


def check_tau0(tau0: Any) -> float:
    """Return the scale of the inputs as a plain number, or refuse it."""
    low, high = 1e-30, 1e30  # between these, fourth powers of tau0 and their inverses are numbers
    if not (isinstance(tau0, int | float | np.floating) and low <= tau0 <= high):
        raise InvalidInputError(
            f"tau0 must be a number from {low:.0e} to {high:.0e}, got {tau0!r}; scale the inputs by nsd.standardise"
        )
    return float(tau0)


def network_from_dict(document: Mapping[str, Any] | str) -> Any:
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
    >>> import notsodeep as nsd
    >>> network_from_dict(nsd.ENN("tanh").to_dict())
    ENN([Tanh()])
    """
    document = parsed(document, "a network")
    kind = document.get("network")
    if not isinstance(kind, str) or kind not in Specification.kinds:
        raise SerialisationError(f"the key 'network' must be 'DEQ', 'ENN', 'ConvDEQ' or 'ConvENN', got {kind!r}")
    try:
        return Specification.kinds[kind].read(document)
    except (KeyError, TypeError) as error:
        raise SerialisationError(f"the description of this {kind} is incomplete: {error!r}") from None
    except InvalidInputError as error:
        raise SerialisationError(f"this does not describe a {kind}: {error}") from None
