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
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    def slope_range(self) -> tuple[float, float]:
        """The infimum and the supremum of phi' (infinite where there is none, or where phi jumps)."""
        raise NotImplementedError

    @property
    def lipschitz(self) -> float:
        """The smallest Lipschitz constant (``inf`` if there is none)."""
        low, high = self.slope_range
        return max(abs(low), abs(high))

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
        return _gaps(self._sides()[0])

    def slope_jumps(self) -> tuple[float, ...]:
        """phi'(c+) - phi'(c-) at each kink c."""
        return _gaps(self._sides()[1])

    def _sides(self) -> tuple[Tensor, Tensor]:
        """Values and slopes just below (row 0) and just above (row 1) each kink."""
        c = np.asarray(self.kinks, dtype=np.float64)
        points = torch.from_numpy(np.stack([np.nextafter(c, -np.inf), np.nextafter(c, np.inf)]))
        return self._value(points), self._slope(points)

    @property
    def continuous(self) -> bool:
        """Whether phi has no jumps."""
        return not any(self.value_jumps())

    def _mean(self, tau: float) -> float:
        """E[phi(tau xi)], xi standard normal."""
        if self.parity == "odd":
            return 0.0
        xi, weights = normal_rule(torch.tensor([tau], dtype=torch.float64), self.kinks, self.feature)
        return float((self._value(tau * xi) * weights).sum())

    # -- new activations from old ------------------------------------------------------------------------
    def affine(self, gain: float = 1.0, scale: float = 1.0, skip: float = 0.0, shift: float = 0.0) -> Activation:
        """The activation ``gain * phi(scale * x) + skip * x + shift``."""
        if gain == 1.0 and scale == 1.0 and skip == 0.0 and shift == 0.0:
            return self
        return Affine(self, float(gain), float(scale), float(skip), float(shift))

    def centred(self, at: float) -> Activation:
        """phi - E[phi(at * xi)], xi standard normal: the theorems speak of activations centred at tau.

        >>> Activation.from_dict({"activation": "relu"}).centred(at=1.0)
        Affine(ReLU(), shift=-0.39894228040143...)
        """
        if not (isinstance(at, int | float | np.floating) and math.isfinite(at) and at >= 0):
            raise ActivationError(f"centred(at=...) takes a finite, non-negative scale, got {at!r}")
        return self.affine(shift=-self._mean(float(at)))

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
        """An activation from what :meth:`to_dict` wrote."""
        if not isinstance(document, Mapping) or "activation" not in document:
            raise SerialisationError(f"expected a JSON object with the key 'activation', got {document!r}")
        parameters: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in document.items() if k != "activation"
        }
        if document["activation"] == Affine.name and "base" in parameters:
            parameters["base"] = Activation.from_dict(parameters["base"])
        try:
            return activation(document["activation"], **parameters)
        except ActivationError as error:
            raise SerialisationError(f"this document does not describe an activation: {error}") from None

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
        from .checks import make_callable

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
    if isinstance(x, Tensor) and not x.is_complex():
        return function(x if x.is_floating_point() else x.to(torch.get_default_dtype()))
    array = np.asarray(x)
    if array.dtype.kind not in "fiub":
        raise ActivationError(f"an activation takes real numbers, got {array.dtype} ({type(x).__name__})")
    dtype = array.dtype if array.dtype in (np.float16, np.float32, np.float64) else np.float64
    # a copy in native order: torch shares memory otherwise, and warns if that memory is read-only
    result = function(torch.from_numpy(np.array(array, dtype=dtype, order="C"))).detach().numpy()
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
    key = spec.strip().lower().replace("-", "_").replace(" ", "_")
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


def _gaps(sides: Tensor) -> tuple[float, ...]:
    """What lies above minus what lies below, differences at rounding level read as none."""
    below, above = sides
    gap = above - below
    return tuple(torch.where(gap.abs() <= 1e-12 * (1.0 + above.abs()), torch.zeros_like(gap), gap).tolist())


def _numbers(owner: Activation, *names: str) -> None:
    """Store the fields ``names`` as finite Python floats: they are then hashable, comparable and fit for JSON."""
    for name in names:
        object.__setattr__(owner, name, _number(owner, name, getattr(owner, name)))


def _sequences(owner: Activation, *names: str) -> None:
    """Store the fields ``names`` as tuples of finite Python floats."""
    for name in names:
        given = getattr(owner, name)
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise ActivationError(f"{type(owner).__name__}: {name} must be a sequence of numbers, got {given!r}")
        values = tuple(_number(owner, f"{name}[{i}]", value) for i, value in enumerate(given))
        object.__setattr__(owner, name, values)


def _number(owner: Activation, name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ActivationError(f"{type(owner).__name__}: {name} must be a finite number, got {value!r}")
    return number


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
        object.__setattr__(self, "base", activation(self.base))
        _numbers(self, "gain", "scale", "skip", "shift")
        if self.scale <= 0:
            raise ActivationError(f"Affine: the input scale must be positive, got {self.scale!r}")

    def affine(self, gain: float = 1.0, scale: float = 1.0, skip: float = 0.0, shift: float = 0.0) -> Activation:
        return self.base.affine(
            self.gain * gain, self.scale * scale, self.skip * gain * scale + skip, self.shift * gain + shift
        )

    @property
    def kinks(self) -> tuple[float, ...]:
        return tuple(k / self.scale for k in self.base.kinks)

    def __repr__(self) -> str:
        changed = [f for f in dataclasses.fields(self)[1:] if getattr(self, f.name) != f.default]
        return f"Affine({', '.join([repr(self.base), *(f'{f.name}={getattr(self, f.name)!r}' for f in changed)])})"

    @property
    def slope_range(self) -> tuple[float, float]:
        steepness = self.gain * self.scale
        ends = [steepness * s + self.skip if steepness else self.skip for s in self.base.slope_range]
        return (min(ends), max(ends))

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

    def _sides(self) -> tuple[Tensor, Tensor]:
        # through the base: a kink divided by the scale is rounded, and its neighbours may miss the base's kink
        value, slope = self.base._sides()
        kinks = torch.tensor(self.kinks, dtype=torch.float64)
        return self.gain * value + self.skip * kinks + self.shift, self.gain * self.scale * slope + self.skip

    def _mean(self, tau: float) -> float:
        return self.gain * self.base._mean(self.scale * tau) + self.shift

    def to_dict(self) -> dict[str, Any]:
        """A JSON document; :meth:`from_dict` reads it back."""
        return {**super().to_dict(), "base": self.base.to_dict()}
