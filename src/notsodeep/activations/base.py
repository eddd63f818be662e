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
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from .._arguments import finite
from .._arrays import isolated_settings
from .._files import parsed
from ..errors import ActivationError, InvalidInputError, SerialisationError
from .forms import ClosedForm, Dual, Function
from .panels import Panels, Resolved, Straight, Tails, find_tails, normal_nodes

if TYPE_CHECKING:
    from .polynomial import Polynomial

Parity = Literal["odd", "even"]
ActivationLike: TypeAlias = "Activation | str"

_REGISTRY: dict[str, type[Activation]] = {}
_A = TypeVar("_A", bound="type[Activation]")


def register(cls: _A) -> _A:
    """Make a class known by its name and its aliases."""
    for name in (cls.name, *cls.aliases):
        _REGISTRY[name] = cls
    return cls


@dataclass(frozen=True)
class Activation:
    """An elementwise function and its calculus.

    Subclasses give ``_value`` and, where a closed form is quicker than automatic differentiation,
    ``_slope`` and ``_curvature``. Derivatives are those of the smooth pieces; what happens at the kinks is
    described by :meth:`slope_jumps` and :meth:`value_jumps`. Everything else that depends on the function is a
    method here with a default that is right for any activation, and an override where more is known.
    """

    name: ClassVar[str] = ""
    elementwise: ClassVar[bool] = True
    """False for a layer that is no function of its pre-activations alone."""
    aliases: ClassVar[tuple[str, ...]] = ()
    torch_functions: ClassVar[tuple[Callable[..., Tensor], ...]] = ()
    """The functions of torch that are this activation with its default parameters; the first is its source, too."""
    torch_module: ClassVar[type[torch.nn.Module] | None] = None
    """The module of torch that is this activation; its attributes are read by :meth:`from_module`."""

    def __post_init__(self) -> None:
        """Fields of numbers, and of tuples of numbers, become finite Python floats."""
        for name, depth in _numeric_fields(type(self)):  # type: ignore[arg-type]
            plain = finite(f"{type(self).__name__}: {name}", getattr(self, name), depth, ActivationError)
            object.__setattr__(self, name, plain)

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

    def panels(self) -> Panels:
        """The panels on which phi, phi' and phi'' look like polynomials; found once and kept."""
        return _panels(self)

    def tails(self) -> Tails | None:
        """The straight lines on which phi settles, to rounding, or ``None``."""
        return _tails(self)

    def _smooth_parts(self) -> tuple[Function, ...]:
        """What the panels must resolve."""
        return (self._value, self._slope, self._curvature)

    def _price(self) -> float:
        """What evaluations cost beside those of the library's own functions."""
        return 1.0

    # -- evaluation --------------------------------------------------------------------------------------
    def _value(self, x: Tensor) -> Tensor:
        """Torch's own function, unless a class has parameters or another form."""
        return self.torch_functions[0](x)

    def _slope(self, x: Tensor) -> Tensor:
        return differentiate(self._value, x)

    def _curvature(self, x: Tensor) -> Tensor:
        return differentiate(self._slope, x)

    def __call__(self, x: Any) -> Any:
        """The value phi(x); tensors in, tensors out; arrays and numbers likewise."""
        return _on_tensor(self._value, x)

    def derivative(self, x: Any) -> Any:
        """phi'(x) on the smooth pieces; at a kink, the value of one side."""
        return _on_tensor(self._slope, x)

    def second_derivative(self, x: Any) -> Any:
        """phi''(x) on the smooth pieces, without the point masses at kinks."""
        return _on_tensor(self._curvature, x)

    def continued(self, x: Tensor) -> Tensor:
        """The formula of phi at complex numbers: its continuation, if phi is analytic."""
        return self._value(x)

    def units(self, before: Tensor, inputs: Tensor) -> Tensor:
        """What a layer makes of its pre-activations W x; only units that see norms look at its input x."""
        return self._value(before)

    def at_norm(self, x: Any, norm: float) -> Any:
        """phi(x), to be drawn; of a layer that sees norms, one unit at the pre-activations x of inputs of this norm."""
        return self(x)

    def unit_slopes(self, before: Tensor, inputs: Tensor) -> Tensor:
        """The derivative of :meth:`units` with respect to ``before``, entry by entry."""
        return self._slope(before)

    def value_jumps(self) -> tuple[float, ...]:
        """phi(c+) - phi(c-) at each kink c."""
        return gaps(self.sides()[0])

    def slope_jumps(self) -> tuple[float, ...]:
        """phi'(c+) - phi'(c-) at each kink c."""
        return gaps(self.sides()[1])

    def sides(self) -> tuple[Tensor, Tensor]:
        """Values and slopes just below (row 0) and just above (row 1) each kink."""
        c = np.asarray(self.kinks, dtype=np.float64)
        points = torch.from_numpy(np.stack([np.nextafter(c, -np.inf), np.nextafter(c, np.inf)]))
        return self._value(points), self._slope(points)

    @property
    def continuous(self) -> bool:
        """Whether phi has no jumps."""
        return not self.kinks or not any(self.value_jumps())

    # -- closed forms, where there are any -----------------------------------------------------------------
    @property
    def two_slopes(self) -> tuple[float, float] | None:
        """(a, b) if phi(x) = a x for x > 0 and b x for x < 0."""
        return None

    @property
    def piecewise_linear(self) -> bool:
        """Whether phi is continuous and linear between its kinks."""
        return self.two_slopes is not None

    def canonical(self) -> Activation:
        """The same function in the form whose expectations are computed best."""
        return self

    def polynomial(self) -> Polynomial | None:
        """The activation as a polynomial without an affine wrapper, where it is one."""
        return None

    def closed_form(self) -> ClosedForm | None:
        """(qx, qy, lam) -> (E[phi(u) phi(v)], E[phi'(u) phi'(v)]) where both are known in closed form."""
        return None

    def closed_means(self, q: Tensor) -> Dual:
        """E[phi] and E[phi'] at variances q; given wherever :meth:`closed_form` is."""
        raise NotImplementedError

    def closed_moments(self, tau: Tensor) -> list[Tensor] | None:
        """E[phi], E[phi^2], Var[phi], E[phi'], E[phi''], E[phi'^2] and E[(phi^2)''] at tau xi, where all are known."""
        exact = self.polynomial()
        return None if exact is None else exact.closed_moments(tau)

    def closed_coefficients(self, tau: Tensor, terms: int, derivative: bool = False) -> Tensor | None:
        """E[f(tau xi) h_k(xi)], k < terms, of f = phi or phi', shape (len(tau), terms), where they are known."""
        exact = self.polynomial()
        return None if exact is None else exact.closed_coefficients(tau, terms, derivative)

    @property
    def breaks(self) -> tuple[tuple[float, tuple[float, ...]], ...] | None:
        """Where phi consists of polynomials: the places where they meet, and the jumps of phi, phi', ... there."""
        return None

    def layer(self, qx: Tensor, qy: Tensor) -> Any:
        """The activation's own layer at pairs of variances, or ``None`` for the one that serves every function.

        A layer answers ``value(lam)`` and ``both(lam)``, which is (value, slope), at covariances lam.
        """
        return None

    def _mean(self, tau: float) -> float:
        """E[phi(tau xi)], xi standard normal."""
        if self.parity == "odd":
            return 0.0
        scale = torch.tensor([tau], dtype=torch.float64)
        if self.closed_form() is not None and tau < 1e150:  # whose square is a number
            return float(self.closed_means(scale**2)[0])
        xi, weights = normal_nodes(scale, self.panels())
        return float((self._value(tau * xi) * weights).sum())

    # -- in torch, and as text ---------------------------------------------------------------------------
    def source(self, x: str) -> str:
        """phi of the expression ``x`` as PyTorch source."""
        if self.torch_functions:
            name = self.torch_functions[0].__name__
            home = "torch" if getattr(torch, name, None) is self.torch_functions[0] else "torch.nn.functional"
            return f"{home}.{name}({x})"
        raise InvalidInputError(
            f"{self!r} cannot be written as PyTorch source; match with a built-in family (hard_tanh, leaky_relu, "
            "hermite)"
        )

    def source_lines(self, name: str) -> list[str]:
        """A function ``name`` of a tensor that computes phi, as lines of PyTorch source."""
        return [f"def {name}(x):", f"    return {self.source('x')}"]

    @classmethod
    def from_module(cls, module: Any) -> Self | None:
        """The activation a module of type :attr:`torch_module` computes, or ``None`` if it computes another."""
        return cls()

    # -- new activations from old ------------------------------------------------------------------------
    def affine(self, gain: float = 1.0, scale: float = 1.0, skip: float = 0.0, shift: float = 0.0) -> Activation:
        """The activation ``gain * phi(scale * x) + skip * x + shift``."""
        from .affine import Affine

        wrapped = Affine(self, gain, scale, skip, shift)
        return self if wrapped.trivial else wrapped

    @isolated_settings
    def centred(self, at: float) -> Activation:
        """phi - E[phi(at * xi)], xi standard normal: the theorems speak of activations centred at tau.

        >>> Activation.from_dict({"activation": "relu"}).centred(at=1.0)
        Affine(ReLU(), shift=-0.39894228040143...)
        """
        if not 0.0 <= at < math.inf:
            raise ActivationError(f"centred: at must be a finite, non-negative scale, got {at!r}")
        return self.affine(shift=-self._mean(at))

    def __neg__(self) -> Activation:
        return self.affine(gain=-1.0)

    def __mul__(self, factor: float) -> Activation:
        return self.affine(gain=factor)

    __rmul__ = __mul__

    # -- serialisation -----------------------------------------------------------------------------------
    def to_dict(self) -> dict[str, Any]:
        """A JSON document; :meth:`from_dict` reads it back."""
        content: dict[str, Any] = {"activation": self.name}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            plain = list(value) if isinstance(value, tuple) else value
            content[field.name] = value.to_dict() if isinstance(value, Activation) else plain
        return content

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Activation:
        """An activation from what :meth:`to_dict` wrote."""
        return _from_document(parsed(document, "an activation"))

    @staticmethod
    @isolated_settings
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


@functools.cache
def _numeric_fields(cls: type[Activation]) -> list[tuple[str, int]]:
    """The fields that hold numbers, and how deep in tuples."""
    notes = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    return [(name, n.count("tuple")) for name, n in notes.items() if re.fullmatch(r"(tuple\[)*float(, \.{3}\])*", n)]


def _from_document(document: Any) -> Activation:
    if not isinstance(document, Mapping) or "activation" not in document:
        shown = document if isinstance(document, str | int | float | list | None) else type(document).__name__
        raise SerialisationError(f"expected a JSON object with the key 'activation', got {shown!r:.200}")
    parameters = {str(k): tuple(v) if isinstance(v, list) else v for k, v in document.items() if k != "activation"}
    for key in {"base", "turned"} & parameters.keys():
        if not isinstance(parameters[key], Mapping):
            raise SerialisationError(f"the key {key!r} must hold the JSON object of an activation")
        parameters[key] = _from_document(parameters[key])
    try:
        return activation(document["activation"], **parameters)
    except ActivationError as error:
        raise SerialisationError(f"this document does not describe an activation: {error}") from None


def differentiate(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Elementwise derivative by automatic differentiation; the graph is kept when ``x`` needs one."""
    tracked = x.requires_grad and torch.is_grad_enabled()
    with torch.inference_mode(False), torch.enable_grad():
        point = x if tracked else (x.clone() if x.is_inference() else x.detach()).requires_grad_(True)
        value = function(point)
        if not value.requires_grad:  # constant, or piecewise constant
            return torch.zeros_like(x)
        (slope,) = torch.autograd.grad(value.sum(), point, create_graph=tracked)
    return slope


def _on_tensor(function: Callable[[Tensor], Tensor], x: Any) -> Any:
    if isinstance(x, Tensor) and not x.is_complex() and x.layout == torch.strided:
        return function(x if x.is_floating_point() else x.to(torch.get_default_dtype()))
    try:
        array = np.asarray(x)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of several lengths, for one
        raise ActivationError(f"an activation takes an array of real numbers: {error}") from None
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
    if key not in _REGISTRY:
        near = difflib.get_close_matches(key[:50], list(_REGISTRY), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ActivationError(f"unknown activation {spec[:50]!r}; {hint}known: {', '.join(activation_names())}")
    try:
        return _REGISTRY[key](**parameters)
    except TypeError as error:
        known = [f.name for f in dataclasses.fields(_REGISTRY[key])]
        raise ActivationError(f"{key} takes the parameters {known}, got {sorted(parameters)}: {error}") from None


def activation_names() -> list[str]:
    """The names of the elementwise functions that :func:`activation` knows."""
    return sorted({cls.name for cls in _REGISTRY.values() if cls.elementwise})


def activation_classes() -> list[type[Activation]]:
    """The class behind every name."""
    return [_REGISTRY[name] for name in activation_names()]


@functools.lru_cache(maxsize=1024)
def _panels(phi: Activation) -> Panels:
    if phi.piecewise_linear:
        return Straight(phi.kinks)
    return Resolved(phi._smooth_parts(), phi.kinks, phi.tails(), repr(phi), phi._price())


@functools.lru_cache(maxsize=1024)
def _tails(phi: Activation) -> Tails | None:
    return find_tails(phi._value, phi._slope, phi.kinks)


def gaps(sides: Tensor) -> tuple[float, ...]:
    """What lies above minus what lies below, differences at rounding level read as none."""
    below, above = sides
    gap = above - below
    return tuple(torch.where(gap.abs() <= 1e-12 * (1.0 + above.abs()), torch.zeros_like(gap), gap).tolist())
