"""A twin as plain PyTorch source: a file to paste into a project that does not know notsodeep.

>>> import notsodeep as nsd
>>> print(nsd.pytorch_code(nsd.match(nsd.DEQ("tanh", sigma_a2=0.2), 1.0)).splitlines()[-1])
        return torch.nn.functional.linear(x, self.readout)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .activations import (
    ELU,
    GELU,
    SELU,
    Activation,
    Affine,
    Arctan,
    Cos,
    Erf,
    HardTanh,
    Hermite,
    LeakyReLU,
    Linear,
    PiecewiseLinear,
    Quadratic,
    ReLU,
    Sigmoid,
    SiLU,
    Sin,
    Softplus,
    Tanh,
)
from .errors import InvalidInputError
from .matching import Twin

__all__ = ["pytorch_code"]

_CALLS: dict[type[Activation], str] = {
    Arctan: "torch.atan({x})",
    Cos: "torch.cos({x})",
    Erf: "torch.erf({x})",
    GELU: "torch.nn.functional.gelu({x})",
    ReLU: "torch.relu({x})",
    SELU: "torch.nn.functional.selu({x})",
    Sigmoid: "torch.sigmoid({x})",
    SiLU: "torch.nn.functional.silu({x})",
    Sin: "torch.sin({x})",
    Softplus: "torch.nn.functional.softplus({x})",
    Tanh: "torch.tanh({x})",
}
"""Activations without parameters, as torch writes them; the ones with parameters follow below."""


def pytorch_code(twin: Twin, in_features: int = 784, width: int = 4096, out_features: int = 10) -> str:
    """Source of a module ``Twin`` with the twin's network, in the parametrisation of the theory.

    The code imports torch alone. Where the twin has learning rates, ``parameter_groups(lr)`` gives them to an
    optimiser. The sizes are defaults of the constructor and may be changed there.
    """
    if not isinstance(twin, Twin):
        raise InvalidInputError(f"pytorch_code takes a Twin, as nsd.match returns it, got {type(twin).__name__}")
    functions = [_function(f"layer_{i}", phi) for i, phi in enumerate(twin.network.activations, 1)]
    parts = ["import math", "", "import torch", *[line for f in functions for line in ("", "", *f)], "", ""]
    return "\n".join([*parts, *_module(twin, in_features, width, out_features)]) + "\n"


def _module(twin: Twin, in_features: int, width: int, out_features: int) -> list[str]:
    steps = []
    for i in range(twin.depth):
        steps.append(
            f"        x = layer_{i + 1}(torch.nn.functional.linear(x, self.weights[{i}])) / math.sqrt(self.width)"
        )
    unit = ["        x = torch.nn.functional.normalize(x, dim=-1)"] if twin.normalise else []
    return [
        "class Twin(torch.nn.Module):",
        f'    """{twin.depth} hidden layer{"s" if twin.depth > 1 else ""} with the {twin.kernel} of a',
        f"    {twin.deq!r}.",
        '    """',
        "",
        f"    def __init__(self, in_features={in_features}, width={width}, out_features={out_features}):",
        "        super().__init__()",
        "        self.width = width",
        f"        sizes = [in_features] + [width] * {twin.depth}",
        "        self.weights = torch.nn.ParameterList(",
        "            torch.nn.Parameter(torch.randn(m, k)) for k, m in zip(sizes, sizes[1:])",
        "        )",
        "        self.readout = torch.nn.Parameter(torch.randn(out_features, width))",
        *_groups(twin),
        "",
        "    def forward(self, x):",
        *unit,
        *steps,
        "        return torch.nn.functional.linear(x, self.readout)",
    ]


def _groups(twin: Twin) -> list[str]:
    if twin.learning_rates is None:
        return []
    return [
        "",
        "    def parameter_groups(self, lr):",
        f"        rates = {[float(r) for r in twin.learning_rates]!r}",
        "        return [{'params': [w], 'lr': lr * r} for w, r in zip([*self.weights, self.readout], rates)]",
    ]


# ---- activations -----------------------------------------------------------------------------------------


def _function(name: str, phi: Activation) -> list[str]:
    if isinstance(phi, Hermite) and phi.degree > 8:
        return _recurrence(name, phi)
    return [f"def {name}(x):", f"    return {_expression(phi, 'x')}"]


def _expression(phi: Activation, x: str) -> str:
    if type(phi) in _CALLS:
        return _CALLS[type(phi)].format(x=x)
    if type(phi) in _WRITERS:
        return _WRITERS[type(phi)](phi, x)
    raise InvalidInputError(
        f"{phi!r} cannot be written as PyTorch source; match with a built-in family (hard_tanh, leaky_relu, hermite)"
    )


def _affine(phi: Affine, x: str) -> str:
    inside = x if phi.scale == 1.0 else f"({phi.scale!r} * {x})"
    terms = [_expression(phi.base, inside) if phi.gain == 1.0 else f"{phi.gain!r} * ({_expression(phi.base, inside)})"]
    terms += [f"{phi.skip!r} * {x}"] if phi.skip else []
    terms += [repr(phi.shift)] if phi.shift else []
    return " + ".join(terms).replace("+ -", "- ")


def _hermite(phi: Hermite, x: str) -> str:
    """Horner's scheme: well conditioned for the few orders of a matched twin."""
    monomials = _monomials(phi)
    inside = x if phi.scale == 1.0 else f"({x} / {phi.scale!r})"
    text = repr(monomials[-1])
    for c in reversed(monomials[:-1]):
        text = f"{c!r} + {inside} * ({text})"
    return text


def _monomials(phi: Hermite) -> list[float]:
    """The coefficients of 1, x, x^2 ... from those of the orthonormal Hermite polynomials."""
    size = phi.degree + 1
    before, here = [0.0] * size, [1.0] + [0.0] * (size - 1)
    total = [0.0] * size
    for k in range(size):
        total = [t + phi.coefficients[k] * h for t, h in zip(total, here, strict=True)]
        shifted = [0.0, *here[:-1]]
        up = [(s - math.sqrt(k) * b) / math.sqrt(k + 1) for s, b in zip(shifted, before, strict=True)]
        before, here = here, up
    return total


def _recurrence(name: str, phi: Hermite) -> list[str]:
    """Many orders lose their digits as monomials: the three-term recurrence keeps them."""
    return [
        f"def {name}(x):",
        f"    coefficients = {list(phi.coefficients[: phi.degree + 1])!r}",
        f"    x, before, here, total = x / {phi.scale!r}, torch.zeros_like(x), torch.ones_like(x), torch.zeros_like(x)",
        "    for k, c in enumerate(coefficients):",
        "        total = total + c * here",
        "        before, here = here, (x * here - math.sqrt(k) * before) / math.sqrt(k + 1)",
        "    return total",
    ]


def _piecewise(phi: PiecewiseLinear, x: str) -> str:
    terms = [f"{phi.slopes[0]!r} * {x}"]
    constant = phi.at_zero
    for knot, left, right in zip(phi.knots, phi.slopes, phi.slopes[1:], strict=False):
        terms.append(f"{right - left!r} * torch.relu({x} - {knot!r})")
        constant -= (right - left) * max(-knot, 0.0)
    return " + ".join([*terms, repr(constant)]).replace("+ -", "- ")


_WRITERS: dict[type[Activation], Callable[..., str]] = {
    Affine: _affine,
    ELU: lambda phi, x: f"torch.nn.functional.elu({x}, {phi.alpha!r})",
    HardTanh: lambda phi, x: f"{phi.a!r} * {x}.clamp({-phi.c!r}, {phi.c!r})",
    Hermite: _hermite,
    LeakyReLU: lambda phi, x: f"torch.where({x} > 0, {phi.gain!r} * {x}, {phi.slope!r} * {x})",
    Linear: lambda phi, x: f"{phi.slope!r} * {x}",
    PiecewiseLinear: _piecewise,
    Quadratic: lambda phi, x: f"{phi.a!r} * {x}**2 + {phi.b!r} * {x} + {phi.c!r}",
}
