"""The base class of activations, and the registry that finds them by name.

An :class:`Activation` is a small frozen value. It evaluates itself and its derivatives on torch tensors of any device
and dtype, and tells the Gaussian numerics where it has kinks, on what length it varies and how it grows.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .._arguments import checked, finite, shown
from .._caches import cached
from .._files import parsed
from ..errors import ActivationError, InvalidInputError, SerialisationError
from .forms import ClosedForm, Dual, Function, Smoothed, smoothed_pieces
from .panels import Panels, Resolved, Straight, Tails, find_tails, normal_nodes

if TYPE_CHECKING:
    from .polynomial import Polynomial

Parity = Literal["odd", "even"]
ActivationLike: TypeAlias = "Activation | str | Callable[[Tensor], Tensor]"

_REGISTRY: dict[str, type[Activation]] = {}


@dataclass(frozen=True)
class Activation:
    """An elementwise function phi and its calculus.

    A subclass gives ``_value`` and, where a closed form is quicker than automatic differentiation, ``_slope`` and
    ``_curvature``. Every other method has a default that is right for any function; a subclass overrides what it knows.
    Tensors, NumPy arrays and numbers are accepted as arguments.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> phi = nsd.activation("leaky_relu", slope=0.1)
    >>> phi
    LeakyReLU(slope=0.1, gain=1.0)
    >>> phi(torch.tensor([-1.0, 2.0]))
    tensor([-0.1000,  2.0000])
    >>> phi.kinks, phi.lipschitz, phi.parity
    ((0.0,), 1.0, None)
    """

    name: ClassVar[str] = ""
    is_wave: ClassVar[bool] = False  # whether phi'' = -phi
    aliases: ClassVar[tuple[str, ...]] = ()
    torch_forms: ClassVar[tuple[Callable[..., Any], ...]] = ()  # functions and modules of torch that are this one
    module_fields: ClassVar[Mapping[str, str]] = {}  # where such a module holds the parameters

    def __init_subclass__(cls) -> None:
        """Register a class that has a name: it is exported from :mod:`notsodeep.activations` and found by its name."""
        super().__init_subclass__()
        if isinstance(vars(cls).get("name"), str):
            _REGISTRY.update(dict.fromkeys((cls.name, *cls.aliases), cls))

    def __post_init__(self) -> None:
        """Turn fields of numbers, and of tuples of numbers, into finite Python floats."""
        for name, note in ((field.name, str(field.type)) for field in dataclasses.fields(self)):
            if re.fullmatch(r"(tuple\[)*float(, \.{3}\])*", note):
                most, label = math.inf if name == "shift" else 1e100, f"{type(self).__name__}: {name}"
                plain = finite(label, getattr(self, name), note.count("tuple"), ActivationError, most)
                object.__setattr__(self, name, plain)

    # -- what the Gaussian numerics need to know ---------------------------------------------------------
    @property
    def kinks(self) -> tuple[float, ...]:
        """The points where phi is not smooth, in increasing order."""
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
    def suprema(self) -> tuple[float, float] | None:
        """Bounds on |phi''| and on |x phi' - phi|, where phi has a closed form and both are bounded; else ``None``.

        The derivative of x phi' - phi is x phi'': its extrema are its limits, or lie at zero and at inflection points.
        """
        return None

    @property
    def parity(self) -> Parity | None:
        """The symmetry of phi: ``"odd"``, ``"even"`` or ``None``."""
        return None

    @property
    def homogeneity(self) -> float | None:
        """The degree d with phi(c x) = c^d phi(x) for all c > 0, or ``None``."""
        return None

    def panels(self) -> Panels:
        """Return the panels on which phi, phi' and phi'' look like polynomials."""
        return _structure(self)[0]

    def tails(self) -> Tails | None:
        """Return the straight lines that phi follows far out, to rounding, or ``None``."""
        return _structure(self)[1]

    def smooth_parts(self) -> tuple[Function, ...]:
        """Return the functions that the panels must resolve."""
        return (self._value, self._slope, self._curvature)

    # -- evaluation --------------------------------------------------------------------------------------
    def _value(self, x: Tensor) -> Tensor:
        return self.torch_forms[0](x)  # a class without parameters is one function of torch

    def _slope(self, x: Tensor) -> Tensor:
        return differentiate(self._value, x)

    def _curvature(self, x: Tensor) -> Tensor:
        return differentiate(self._slope, x)

    def __call__(self, x: Any) -> Any:
        """Return phi(x) in the type of x: a tensor, an array or a number."""
        return _on_tensor(self._value, x)

    def derivative(self, x: Any) -> Any:
        """Return phi'(x) on the smooth pieces, in the type of x; at a kink it is the value of one side."""
        return _on_tensor(self._slope, x)

    def second_derivative(self, x: Any) -> Any:
        """Return phi''(x) on the smooth pieces, in the type of x, without the point masses at kinks."""
        return _on_tensor(self._curvature, x)

    def continued(self, x: Tensor) -> Tensor:
        """Evaluate the formula of phi at a complex tensor, where it continues an analytic phi."""
        return self._value(x)

    def units(self, before: Tensor, inputs: Tensor) -> Tensor:
        """Return what a layer makes of its pre-activations W x (..., width) and its inputs x (..., p).

        Units that are more than a function of W x have a method of their own.
        """
        return self._value(before)

    def value_jumps(self) -> tuple[float, ...]:
        """Return phi(c+) - phi(c-) at each kink c."""
        return gaps(self.sides()[0])

    def slope_jumps(self) -> tuple[float, ...]:
        """Return phi'(c+) - phi'(c-) at each kink c."""
        return gaps(self.sides()[1])

    def sides(self) -> tuple[Tensor, Tensor]:
        """Return values and slopes just below (row 0) and just above (row 1) each kink."""
        c = np.asarray(self.kinks, dtype=np.float64)
        with np.errstate(under="ignore"):  # beside zero
            points = torch.from_numpy(np.stack([np.nextafter(c, -np.inf), np.nextafter(c, np.inf)]))
        return self._value(points), self._slope(points)

    @property
    def continuous(self) -> bool:
        """Whether phi has no jumps."""
        return not self.kinks or not any(self.value_jumps())

    # -- closed forms, where there are any -----------------------------------------------------------------
    @property
    def conical(self) -> bool:
        """Whether the kernel of a layer is analytic in the angle between its inputs, up to equal and opposite ones."""
        return set(self.kinks) <= {0.0}

    @property
    def two_slopes(self) -> tuple[float, float] | None:
        """The slopes (a, b) if phi(x) = a x for x > 0 and b x for x < 0, else ``None``."""
        return None

    @property
    def piecewise_linear(self) -> bool:
        """Whether phi is continuous and linear between its kinks."""
        return self.two_slopes is not None

    def canonical(self) -> Activation:
        """Return the form of phi whose expectations are computed best."""
        return self

    def polynomial(self) -> Polynomial | None:
        """Return the activation as a polynomial without an affine wrapper, where it is one."""
        return None

    def closed_form(self) -> ClosedForm | None:
        """Return the function (qx, qy, lam) -> (E[phi(u) phi(v)], E[phi'(u) phi'(v)]) if both have a closed form."""
        return None

    def mixed_form(self) -> ClosedForm | None:
        """Return that function as a double sum of closed forms: exact at any variance, but no quicker than a series."""
        return None

    @property
    def quick(self) -> bool:
        """Whether single expectations have closed forms, or are short sums of some."""
        return self.piecewise_linear or self.closed_form() is not None or self.mixed_form() is not None

    def _closed_means(self, q: Tensor) -> Dual:
        """Return E[phi] and E[phi'] at variances q; given wherever :meth:`closed_form` or :meth:`mixed_form` is."""
        raise NotImplementedError

    def closed_moments(self, tau: Tensor) -> list[Tensor] | None:
        """Return the fields of :class:`notsodeep.gaussian.Moments` at scales tau (n,), if all have a closed form."""
        exact = self.polynomial()
        return None if exact is None else exact.closed_moments(tau)

    @property
    def breaks(self) -> tuple[tuple[float, tuple[float, ...]], ...] | None:
        """The places where the polynomials of which phi consists meet, with the jumps of phi, phi', ... there."""
        return None

    def smoothed(self, mean: Tensor, noise: Tensor) -> Smoothed | None:
        """Return E[phi], E[phi'] and E[phi''] at mean + noise xi, without point masses, if they are closed."""
        if self.breaks is None:
            return None
        origin = torch.tensor(-1e-300, dtype=torch.float64)
        centre = [float(f(origin)) for f in (self._value, self._slope, self._curvature)]
        return smoothed_pieces(centre, self.breaks, mean, noise)

    def at(self, domain: Any, points: Any) -> tuple[Any, Any]:
        """Return what a layer of these units does to covariances in a domain, and the variances behind it."""
        return domain.layer(self, points), domain.through(self, points)

    def _mean(self, tau: float) -> float:
        """Return E[phi(tau xi)], xi standard normal."""
        if self.parity == "odd":
            return 0.0
        scale = torch.tensor([tau], dtype=torch.float64)
        if self.closed_form() is not None and tau < 1e150:  # whose square is a number
            return float(self._closed_means(scale**2)[0])
        xi, weights = normal_nodes(scale, self.panels())
        return float((self._value(tau * xi) * weights).sum())

    # -- in torch, and as text ---------------------------------------------------------------------------
    def _source(self, x: str) -> str:
        """Return phi of the expression ``x`` as PyTorch source."""
        if self.torch_forms:
            name = self.torch_forms[0].__name__
            home = "torch" if getattr(torch, name, None) is self.torch_forms[0] else "torch.nn.functional"
            return f"{home}.{name}({x})"
        raise InvalidInputError(
            f"{self!r} cannot be written as PyTorch source; match with a built-in family (hard_tanh, leaky_relu, "
            "hermite)"
        )

    def source_lines(self, name: str) -> list[str]:
        """Return the lines of a function of this name that computes phi, as PyTorch source."""
        return [f"def {name}(x):", f"    return {self._source('x')}"]

    # -- new activations from old ------------------------------------------------------------------------
    def affine(self, gain: float = 1.0, scale: float = 1.0, skip: float = 0.0, shift: float = 0.0) -> Activation:
        """Return the activation ``gain * phi(scale * x) + skip * x + shift``, where ``scale`` is positive."""
        from .affine import Affine

        made = Affine(self, gain, scale, skip, shift)
        return self if (made.gain, made.scale, made.skip, made.shift) == (1.0, 1.0, 0.0, 0.0) else made

    @checked
    def centred(self, at: float) -> Activation:
        """Return phi - E[phi(at xi)] with xi standard normal, the form that the theorems assume."""
        if not 0.0 <= at < math.inf:
            raise ActivationError(f"centred: at must be a finite, non-negative scale, got {at!r}")
        return self.affine(shift=-self._mean(at))

    # -- serialisation -----------------------------------------------------------------------------------
    def to_dict(self) -> dict[str, Any]:
        """Return the activation as a JSON document, which :meth:`from_dict` reads."""
        content: dict[str, Any] = {"activation": self.name}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            plain = list(value) if isinstance(value, tuple) else value
            content[field.name] = value.to_dict() if isinstance(value, Activation) else plain
        return content

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Activation:
        """Return the activation that :meth:`to_dict` wrote, or raise :class:`SerialisationError`."""
        return _from_document(parsed(document, "an activation"))

    @staticmethod
    @checked
    def from_callable(
        function: Callable[[Any], Any], kinks: Sequence[float] = (), *, name: str | None = None
    ) -> Activation:
        """Turn an elementwise torch function into an activation, after every check that can be made.

        ``kinks`` are the points where the function or its slope jumps, ``name`` is what is printed. An
        :class:`ActivationError` says which check fails and what to do. The range of the slope is estimated.

        Examples
        --------
        >>> soft_sign = Activation.from_callable(lambda x: x / (1 + x.abs()), kinks=(0.0,))
        >>> round(soft_sign.lipschitz, 6)
        1.0
        """
        from .callables import make_callable

        return make_callable(function, kinks, name)


def _from_document(document: Any) -> Activation:
    if not isinstance(document, Mapping) or "activation" not in document:
        shown = document if isinstance(document, str | int | float | list | None) else type(document).__name__
        raise SerialisationError(f"expected a JSON object with the key 'activation', got {shown!r:.200}")
    parameters = {str(k): tuple(v) if isinstance(v, list) else v for k, v in document.items() if k != "activation"}
    for key in {"base"} & parameters.keys():
        if not isinstance(parameters[key], Mapping):
            raise SerialisationError(f"the key {key!r} must hold the JSON object of an activation")
        parameters[key] = _from_document(parameters[key])
    try:
        return activation(document["activation"], **parameters)
    except ActivationError as error:
        raise SerialisationError(f"this document does not describe an activation: {error}") from None


def differentiate(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the elementwise derivative by automatic differentiation, with a graph when ``x`` has one."""
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
        wide = x.is_floating_point() and x.itemsize > 1  # torch has no functions of floats of eight bits
        return function(x if wide else x.to(torch.get_default_dtype()))
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
    """Return the activation of a name, of a torch module or of a torch function.

    Parameters
    ----------
    spec : str, Activation or callable
        A name of :func:`activation_names`; an activation, which is returned unchanged; or a torch module or function.
        A function without a name here is checked by :meth:`Activation.from_callable`.
    **parameters : float
        The parameters of a named activation, such as ``slope=0.1``.

    Returns
    -------
    Activation

    Examples
    --------
    >>> activation("hard_tanh", a=0.5, c=2.0)
    HardTanh(a=0.5, c=2.0)
    >>> activation(torch.nn.LeakyReLU(0.2))
    LeakyReLU(slope=0.2, gain=1.0)
    """
    if isinstance(spec, str):
        return _named(spec, parameters)
    if parameters:
        raise ActivationError(f"parameters {sorted(parameters)} were given together with a ready activation {spec!r}")
    if isinstance(spec, Activation):
        return spec
    if not callable(spec) or isinstance(spec, type):
        raise ActivationError(
            f"an activation is a name, a torch module, a torch function or an Activation, got {shown(spec)}"
            + ("; make an instance of it" if isinstance(spec, type) else "")
        )
    return _of_torch(spec) or Activation.from_callable(spec)


def _named(spec: str, parameters: Mapping[str, Any]) -> Activation:
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


def _of_torch(function: Any) -> Activation | None:
    """Return the built-in activation that a torch module or function is, or ``None``."""
    for cls in activation_classes():
        if any(form in (function, type(function)) for form in cls.torch_forms):
            given = {field: getattr(function, at) for field, at in cls.module_fields.items() if hasattr(function, at)}
            made, x = cls(**given), torch.linspace(-20.0, 20.0, 201, dtype=torch.float64).sinh()
            return made if torch.allclose(made(x), function(x.clone()), rtol=1e-9) else None
    return None


def activation_names() -> list[str]:
    """Return the names of the elementwise functions that :func:`activation` knows.

    Returns
    -------
    list of str

    Examples
    --------
    >>> activation_names()[:4]
    ['affine', 'arctan', 'cos', 'elu']
    """
    return sorted({cls.name for cls in _REGISTRY.values() if cls.units is Activation.units})


def activation_classes() -> list[type[Activation]]:
    """Return the classes behind these names."""
    return [_REGISTRY[name] for name in activation_names()]


@cached(1024)
def _structure(phi: Activation) -> tuple[Panels, Tails | None]:
    """Return the panels that phi needs, and the straight lines that it follows far out."""
    tails = find_tails(phi._value, phi._slope, phi.kinks)
    if phi.piecewise_linear:
        return Straight(phi.kinks), tails
    return Resolved(phi.smooth_parts(), phi.kinks, tails, repr(phi)), tails


def gaps(sides: Tensor) -> tuple[float, ...]:
    """Return what lies above minus what lies below, where differences at rounding level are zero."""
    below, above = sides
    gap = above - below
    return tuple(torch.where(gap.abs() <= 1e-12 * (1.0 + above.abs()), torch.zeros_like(gap), gap).tolist())
