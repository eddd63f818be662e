"""Elementwise activations with their calculus.

An :class:`Activation` is a small frozen value: it evaluates itself and its derivatives on torch tensors
(any device, any dtype), and knows what the Gaussian numerics must know about it: where it has kinks, on
what length it varies, how it grows. NumPy arrays are accepted wherever tensors are.

>>> import notsodeep as nsd
>>> nsd.activation("leaky_relu", slope=0.1)
LeakyReLU(slope=0.1, gain=1.0)
>>> nsd.activation("tanh").parity
'odd'
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from .._quadrature import normal_rule
from ..errors import ActivationError, SerialisationError

Parity = Literal["odd", "even"]
ActivationLike: TypeAlias = "Activation | str"

_REGISTRY: dict[str, type[Activation]] = {}
_A = TypeVar("_A", bound="type[Activation]")

_ALIASES = {
    "identity": "linear",
    "lrelu": "leaky_relu",
    "leakyrelu": "leaky_relu",
    "hardtanh": "hard_tanh",
    "htanh": "hard_tanh",
    "atan": "arctan",
    "swish": "silu",
    "sine": "sin",
    "cosine": "cos",
    "piecewise": "piecewise_linear",
}


def _register(cls: _A) -> _A:
    _REGISTRY[cls.name] = cls
    return cls


@dataclass(frozen=True)
class Activation:
    """An elementwise function and its calculus.

    Subclasses give ``_value`` and, where a closed form is quicker than automatic differentiation,
    ``_slope`` and ``_curvature``. Derivatives are those of the smooth pieces; what happens at the kinks is
    described by :meth:`slope_jumps` and :meth:`value_jumps`.
    """

    name: ClassVar[str] = ""

    # -- what the Gaussian numerics need to know ---------------------------------------------------------
    @property
    def kinks(self) -> tuple[float, ...]:
        """Points where the function is not smooth, in increasing order."""
        return ()

    @property
    def lipschitz(self) -> float:
        """The smallest Lipschitz constant (``inf`` if there is none)."""
        raise NotImplementedError

    @property
    def parity(self) -> Parity | None:
        """``"odd"``, ``"even"`` or ``None``."""
        return None

    @property
    def homogeneity(self) -> float | None:
        """The degree d with phi(c x) = c^d phi(x) for all c > 0, or ``None``."""
        return None

    @property
    def feature(self) -> float:
        """Length below which each smooth piece is resolved by one quadrature panel."""
        return 1.0

    # -- evaluation --------------------------------------------------------------------------------------
    def _value(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _slope(self, x: Tensor) -> Tensor:
        return _differentiate(self._value, x)

    def _curvature(self, x: Tensor) -> Tensor:
        return _differentiate(self._slope, x)

    def __call__(self, x: Any) -> Any:
        """The value phi(x); tensors in, tensors out; arrays and numbers likewise."""
        return _on_tensor(self._value, x)

    def derivative(self, x: Any) -> Any:
        """phi'(x) on the smooth pieces; at a kink, the value of one side."""
        return _on_tensor(self._slope, x)

    def second_derivative(self, x: Any) -> Any:
        """phi''(x) on the smooth pieces, without the point masses at kinks."""
        return _on_tensor(self._curvature, x)

    def value_jumps(self) -> tuple[float, ...]:
        """phi(c+) - phi(c-) at each kink c."""
        return self._jumps(self._value)

    def slope_jumps(self) -> tuple[float, ...]:
        """phi'(c+) - phi'(c-) at each kink c."""
        return self._jumps(self._slope)

    def _jumps(self, function: Callable[[Tensor], Tensor]) -> tuple[float, ...]:
        if not self.kinks:
            return ()
        c = np.asarray(self.kinks, dtype=np.float64)
        sides = np.stack([np.nextafter(c, -np.inf), np.nextafter(c, np.inf)])
        below, above = function(torch.from_numpy(sides))
        gap = above - below
        scale = 1.0 + above.abs()
        return tuple(torch.where(gap.abs() <= 1e-12 * scale, torch.zeros_like(gap), gap).tolist())

    @property
    def continuous(self) -> bool:
        return not any(self.value_jumps())

    # -- new activations from old ------------------------------------------------------------------------
    def affine(self, gain: float = 1.0, scale: float = 1.0, skip: float = 0.0, shift: float = 0.0) -> Activation:
        """The activation ``gain * phi(scale * x) + skip * x + shift``."""
        if gain == 1.0 and scale == 1.0 and skip == 0.0 and shift == 0.0:
            return self
        return Affine(self, float(gain), float(scale), float(skip), float(shift))

    def centred(self, at: float) -> Activation:
        """phi - E[phi(at * xi)], xi standard normal: the theorems speak of activations centred at tau."""
        if not (math.isfinite(at) and at >= 0):
            raise ActivationError(f"centred(at=...) takes a finite, non-negative scale, got {at!r}")
        if self.parity == "odd":
            return self
        xi, weights = normal_rule(torch.tensor([at], dtype=torch.float64), self.kinks, self.feature)
        return self.affine(shift=-float((self._value(at * xi) * weights).sum()))

    def __neg__(self) -> Activation:
        return self.affine(gain=-1.0)

    def __mul__(self, factor: float) -> Activation:
        return self.affine(gain=factor)

    __rmul__ = __mul__

    # -- serialisation -----------------------------------------------------------------------------------
    def to_dict(self) -> dict[str, Any]:
        """A JSON document; :meth:`from_dict` reads it back."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"activation": self.name, **{k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}}

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Activation:
        if not isinstance(document, Mapping) or "activation" not in document:
            raise SerialisationError(f"expected a JSON object with the key 'activation', got {document!r}")
        parameters = {k: tuple(v) if isinstance(v, list) else v for k, v in document.items() if k != "activation"}
        if document["activation"] == Affine.name and "base" in parameters:
            parameters["base"] = Activation.from_dict(parameters["base"])
        return activation(document["activation"], **parameters)

    @staticmethod
    def from_callable(
        function: Callable[[Any], Any],
        kinks: Sequence[float] = (),
        *,
        derivative: Callable[[Any], Any] | None = None,
        lipschitz: float | None = None,
        name: str | None = None,
    ) -> Activation:
        """Turn any vectorised function (of a tensor or of a NumPy array) into an activation.

        ``kinks`` lists the points where the function or its slope jumps. What can be checked is checked:
        finite and vectorised, no undeclared kink, no growth that a Gaussian cannot integrate; the Lipschitz
        constant is estimated unless given. A torch function is differentiated automatically, a NumPy
        function by finite differences unless ``derivative`` is given.

        >>> import numpy as np
        >>> soft_sign = Activation.from_callable(lambda x: x / (1 + np.abs(x)), kinks=(0.0,))
        >>> round(soft_sign.lipschitz, 6)
        1.0
        """
        from .callables import make_callable

        return make_callable(function, kinks, derivative=derivative, lipschitz=lipschitz, name=name)


def _differentiate(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Elementwise derivative by automatic differentiation; the graph is kept when ``x`` needs one."""
    tracked = x.requires_grad and torch.is_grad_enabled()
    with torch.enable_grad():
        point = x if tracked else x.detach().requires_grad_(True)
        value = function(point)
        if not value.requires_grad:  # constant, or piecewise constant
            return torch.zeros_like(x)
        (slope,) = torch.autograd.grad(value.sum(), point, create_graph=tracked)
    return slope


def _on_tensor(function: Callable[[Tensor], Tensor], x: Any) -> Any:
    if isinstance(x, Tensor):
        return function(x)
    array = np.asarray(x)
    if not np.issubdtype(array.dtype, np.floating):
        array = array.astype(np.float64)
    result = function(torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape)).numpy()
    return result if isinstance(x, np.ndarray) else result[()]


def activation(spec: ActivationLike, /, **parameters: Any) -> Activation:
    """An activation by name, or the given one unchanged.

    >>> activation("hard_tanh", a=0.5, c=2.0)
    HardTanh(a=0.5, c=2.0)
    """
    if isinstance(spec, Activation):
        if parameters:
            raise ActivationError(
                f"parameters {sorted(parameters)} were given together with a ready activation {spec!r}"
            )
        return spec
    if not isinstance(spec, str):
        raise ActivationError(
            f"an activation is a name or an Activation, got {spec!r}; for a function use Activation.from_callable"
        )
    key = spec.strip().lower().replace("-", "_")
    key = _ALIASES.get(key, key)
    if key not in _REGISTRY:
        near = difflib.get_close_matches(key, [*_REGISTRY, *_ALIASES], n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ActivationError(f"unknown activation {spec!r}; {hint}known: {', '.join(sorted(_REGISTRY))}")
    try:
        return _REGISTRY[key](**parameters)
    except TypeError as error:
        known = [f.name for f in dataclasses.fields(_REGISTRY[key])]
        raise ActivationError(f"{key} takes the parameters {known}, got {sorted(parameters)}: {error}") from None


def activation_names() -> list[str]:
    """The names :func:`activation` knows."""
    return sorted(_REGISTRY)


def _finite(owner: Activation, **values: float) -> None:
    for key, value in values.items():
        if not math.isfinite(value):
            raise ActivationError(f"{type(owner).__name__}: {key} must be a finite number, got {value!r}")


@_register
@dataclass(frozen=True)
class Affine(Activation):
    """gain * base(scale * x) + skip * x + shift; use :meth:`Activation.affine`, which builds it flat."""

    base: Activation
    gain: float = 1.0
    scale: float = 1.0
    skip: float = 0.0
    shift: float = 0.0
    name: ClassVar[str] = "affine"

    def __post_init__(self) -> None:
        _finite(self, gain=self.gain, scale=self.scale, skip=self.skip, shift=self.shift)
        if self.scale <= 0:
            raise ActivationError(f"Affine: the input scale must be positive, got {self.scale!r}")

    def affine(self, gain: float = 1.0, scale: float = 1.0, skip: float = 0.0, shift: float = 0.0) -> Activation:
        return self.base.affine(
            self.gain * gain, self.scale * scale, self.skip * gain * scale + skip, self.shift * gain + shift
        )

    @property
    def kinks(self) -> tuple[float, ...]:
        return tuple(k / self.scale for k in self.base.kinks)

    @property
    def lipschitz(self) -> float:
        if self.skip == 0.0:
            return abs(self.gain) * self.scale * self.base.lipschitz
        return _slope_supremum(self)

    @property
    def parity(self) -> Parity | None:
        inner = self.base.parity
        if inner == "odd" and self.shift == 0.0:
            return "odd"
        return "even" if inner == "even" and self.skip == 0.0 else None

    @property
    def homogeneity(self) -> float | None:
        inner = self.base.homogeneity
        return inner if self.shift == 0.0 and (self.skip == 0.0 or inner == 1.0) else None

    @property
    def feature(self) -> float:
        return self.base.feature / self.scale

    def _value(self, x: Tensor) -> Tensor:
        out = self.base._value(x if self.scale == 1.0 else self.scale * x)
        out = out if self.gain == 1.0 else self.gain * out
        out = out if self.skip == 0.0 else out + self.skip * x
        return out if self.shift == 0.0 else out + self.shift

    def _slope(self, x: Tensor) -> Tensor:
        return self.gain * self.scale * self.base._slope(self.scale * x) + self.skip

    def _curvature(self, x: Tensor) -> Tensor:
        return self.gain * self.scale**2 * self.base._curvature(self.scale * x)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "base": self.base.to_dict()}


def _slope_supremum(phi: Activation, reach: float = 60.0) -> float:
    """sup |phi'| over a fine grid that includes both sides of every kink; built-in slopes settle well inside it."""
    grid = torch.linspace(-reach, reach, 240_001, dtype=torch.float64) * phi.feature
    sides = torch.tensor([np.nextafter(k, s) for k in phi.kinks for s in (-np.inf, np.inf)], dtype=torch.float64)
    return float(phi._slope(torch.cat([grid, sides])).abs().max())
