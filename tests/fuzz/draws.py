"""Random networks and random data: everything that a case of the fuzzer is made of follows from its own seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import notsodeep as nsd
from notsodeep.activations import Activation

Array = NDArray[Any]
NEED_PARAMETERS = ("affine", "hermite", "quadratic")
PLAIN = [name for name in nsd.activations.activation_names() if name not in NEED_PARAMETERS]


CALLABLES: list[tuple[Callable[[Any], Any], tuple[float, ...]]] = [
    (lambda x: x * torch.sigmoid(1.5 * x), ()),
    (lambda x: torch.tanh(x) + 0.3 * torch.exp(-(x**2)), ()),
    (lambda x: torch.clamp(x, -1, 1), (-1.0, 1.0)),
    (lambda x: torch.log1p(2.0 * torch.sinh(0.5 * x.clamp(-300, 300)) ** 2) + torch.relu(x.abs() - 300.0), ()),
    (lambda x: torch.sin(3.0 * x), ()),
    (lambda x: 0.5 * torch.erf(x / 0.7) - 0.2 * torch.erf(x) + torch.erf(x / 2.5), ()),
    (lambda x: x / torch.sqrt(1.0 + x * x), ()),
    (lambda x: torch.maximum(0.1 * x, x - 0.5), (5.0 / 9.0,)),
    (lambda x: x / (1.0 + x.abs()), (0.0,)),
]
_MADE: dict[int, Activation] = {}


def a_callable(rng: np.random.Generator) -> Activation:
    """One of a few functions without a name in the library, accepted once and kept."""
    which = int(rng.integers(len(CALLABLES)))
    if which not in _MADE:
        function, kinks = CALLABLES[which]
        _MADE[which] = Activation.from_callable(function, kinks=kinks, name=f"callable {which}")
    return _MADE[which]


def an_activation(rng: np.random.Generator) -> Activation:
    """Built-in ones mostly; affine, polynomials and callables in proportion."""
    kind = rng.choice(["plain", "parameters", "polynomial", "callable", "affine"], p=_SHARES)
    if kind == "plain":
        return nsd.activation(str(rng.choice(PLAIN)))
    if kind == "parameters":
        return _with_parameters(rng)
    if kind == "polynomial":
        orders = int(rng.choice([2, 3, 4, 6, 30]))
        coefficients = rng.standard_normal(orders) / (1.0 + np.arange(orders)) ** 2
        return nsd.activation("hermite", coefficients=tuple(coefficients.tolist()))
    if kind == "callable":
        return a_callable(rng)
    base = nsd.activation(str(rng.choice(PLAIN))) if rng.random() < 0.8 else a_callable(rng)
    gain, scale, skip, shift = rng.uniform(-1.5, 1.5), 2.0 ** rng.uniform(-2, 2), rng.uniform(-0.5, 0.5), rng.normal()
    return base.affine(gain, scale, skip * (rng.random() < 0.4), shift * (rng.random() < 0.6))


_SHARES = [0.50, 0.16, 0.06, 0.10, 0.18]


def _with_parameters(rng: np.random.Generator) -> Activation:
    name = str(rng.choice(["elu", "hard_tanh", "leaky_relu", "linear", "quadratic"]))
    if name == "elu":
        return nsd.activation(name, alpha=float(rng.uniform(0.1, 2)))
    if name == "hard_tanh":
        return nsd.activation(name, a=float(rng.uniform(0.2, 2)), c=float(rng.uniform(0.2, 3)))
    if name == "leaky_relu":
        return nsd.activation(name, slope=float(rng.uniform(-1, 1)))
    if name == "linear":
        return nsd.activation(name, slope=float(rng.uniform(0.1, 1.5)))
    return nsd.activation(name, a=float(rng.normal()), b=float(rng.normal()), c=float(rng.normal()))


def a_network(rng: np.random.Generator) -> nsd.DEQ | nsd.ENN:
    """A DEQ at a random share of its limit, or an ENN of one to four layers."""
    if rng.random() < 0.5:
        return nsd.ENN([an_activation(rng) for _ in range(int(rng.choice([1, 1, 1, 2, 2, 3, 4])))])
    phi = an_activation(rng)
    share = float(rng.choice([0.0, rng.uniform(0, 0.99), 0.999], p=[0.05, 0.9, 0.05]))
    sigma_a2 = share * min(nsd.DEQ(phi, 0.0).limit, 1.0)
    sigma_b2 = float(rng.choice([1.0 - sigma_a2, rng.uniform(0, 2), 0.0], p=[0.6, 0.35, 0.05]))
    sigma_c2 = float(rng.uniform(0, 1) * (rng.random() < 0.3))
    return nsd.DEQ(phi, sigma_a2, sigma_b2, sigma_c2)


def rows(rng: np.random.Generator) -> Array:
    """Up to fifty points, sometimes more, which tables serve: ordinary ones, and the corners of the domain."""
    n = int(rng.choice([1, 2, 3, 6, 12, 24, 40, 50, 120], p=[0.08, 0.08, 0.08, 0.12, 0.14, 0.14, 0.14, 0.16, 0.06]))
    p = int(rng.choice([1, 2, 3, 10, 50]))
    X = rng.standard_normal((n, p))
    X /= np.linalg.norm(X, axis=1)[:, None]
    X *= _norms(rng, n)[:, None]
    for _ in range(int(rng.integers(0, 4))):
        i, j = rng.integers(n, size=2)
        kind = rng.choice(["duplicate", "near", "opposite", "zero", "longer", "integer"])
        if kind == "duplicate":
            X[i] = X[j]
        elif kind == "near":
            X[i] = X[j] * (1.0 + 10.0 ** rng.uniform(-16, -2) * rng.standard_normal(p))
        elif kind == "opposite":
            X[i] = -X[j]
        elif kind == "zero":
            X[i] = 0.0
        elif kind == "longer":
            X[i] = X[j] * float(np.clip(10.0 ** rng.uniform(-3, 3), 1e-3, 1e3))
        elif float(np.abs(X[i]).max()) < 1e6:
            X[i] = np.round(X[i])
    if rng.random() < 0.3:
        with np.errstate(over="ignore"):
            single = X.astype(np.float32)
        if rng.random() < 0.2:  # rows whose inverse norms are no numbers of this precision
            single[int(rng.integers(n))] = (10.0 ** rng.uniform(-45, -36) * rng.standard_normal(p)).astype(np.float32)
        return single if np.isfinite(single).all() else X
    return X


def _norms(rng: np.random.Generator, n: int) -> Array:
    kind = rng.choice(["unit", "ordinary", "large", "any", "each"], p=[0.25, 0.45, 0.1, 0.1, 0.1])
    if kind == "unit":
        return np.ones(n)
    if kind == "ordinary":
        return np.exp(rng.uniform(math.log(0.05), math.log(20.0), n))
    if kind == "large":
        return np.full(n, 10.0 ** rng.uniform(0, 4))
    one = 10.0 ** rng.uniform(-300, 300)
    return np.full(n, one) if kind == "any" else np.asarray(10.0 ** rng.uniform(-300, 300, n))


def a_mixture_sample(rng: np.random.Generator) -> tuple[nsd.GaussianMixture, Array, Array]:
    """A mixture of up to four classes, degenerate ones included, with rows and labels."""
    classes, p = int(rng.integers(1, 5)), int(rng.choice([1, 3, 20, 60]))
    n = int(rng.choice([2 * classes, 20, 60]))
    means = rng.standard_normal((classes, p)) * float(rng.choice([0.0, 1.0, 10.0]))
    covariances = [_covariance(rng, p) for _ in range(classes)]
    mixture = nsd.GaussianMixture(means, covariances)
    X, y = mixture.sample(max(n, classes), seed=int(rng.integers(1 << 30)))
    X = X * float(rng.choice([1.0, 10.0 ** rng.uniform(-3, 2), 10.0 ** rng.uniform(-300, 300)], p=[0.8, 0.15, 0.05]))
    if rng.random() < 0.05:
        X[:] = X[0]
    return mixture, X, y


def _covariance(rng: np.random.Generator, p: int) -> Any:
    kind = rng.choice(["number", "vector", "matrix", "low rank", "zero"], p=[0.4, 0.25, 0.2, 0.1, 0.05])
    if kind == "number":
        return float(rng.uniform(0.2, 3))
    if kind == "vector":
        return rng.uniform(0, 2, p) + 1e-3
    if kind == "zero":
        return 0.0
    factor = rng.standard_normal((p, p if kind == "matrix" else max(1, p // 4)))
    return factor @ factor.T / p
