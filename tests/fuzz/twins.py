"""Twins of ``match`` and ``match_sphere`` against quadratures of the theory: numbers, kernels, bounds and source code.

The four numbers follow from moments of the activations that a twin ships, and of the DEQ's, by the recursions of the
theory (sections 4 and 5); kernels from nested quadrature. Nothing here uses the jets and series of the library.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import notsodeep as nsd
from fuzz.draws import PLAIN, an_activation
from fuzz.modules import a_cell
from fuzz.quadrature import equilibrium, recursion, resolves, rule_at
from helpers import tolerance, ulps
from notsodeep.activations import Activation
from notsodeep.equivalents import Coefficients
from notsodeep.matching import Twin
from notsodeep.matching.families import FAMILIES
from notsodeep.networks import KERNELS

Array = NDArray[Any]
Four = tuple[float, float, float, float]
MATCHED = 1e-9  # what every match promises
KNOWN = 2e-10  # of kernels by quadrature
ANGULAR = 2e-8  # of slopes with kinks between inputs on one line, whose angle is a root of rounding
LEAST = 1e-4  # of the diagonal, below which a number is held against this share of it


# ---- the four numbers ------------------------------------------------------------------------------------


def moments(phi: Activation, tau: float) -> tuple[float, float, float, float, float, float]:
    """E[phi], and of phi - E[phi]: the variance, E1, E2, Q2 and D2 of the theory, by parts, so that kinks count."""
    t, weights = rule_at(phi, tau)
    values = np.asarray(phi(tau * t))
    mean = float(weights @ values)
    f, slopes = values - mean, np.asarray(phi.derivative(tau * t))
    bent = t * t - 1.0
    return (
        mean,
        float(weights @ f**2),
        float(weights @ (t * f)) / tau,
        float(weights @ (bent * f)) / tau**2,
        float(weights @ (bent * f**2)) / tau**2,
        float(weights @ slopes**2),
    )


def numbers_of_deq(deq: nsd.DEQ, tau0: float, kernel: str) -> Four:
    """(c1, c2, c3, diagonal) of the centred DEQ (theory, section 4)."""
    a, b, _ = deq.variances
    (phi,) = deq.activations
    square = b * tau0**2
    for _ in range(5000):
        before, square = square, a * moments(phi, math.sqrt(square))[1] + b * tau0**2
        if abs(square - before) <= ulps(1) * square:
            break
    _, gamma2, e1, e2, q2, d2 = moments(phi, math.sqrt(square))
    den = 1.0 - a * e1**2
    lam, alpha4 = b / den, b / (1.0 - 0.5 * a * q2)
    c = (e1**2 * lam, e2**2 * alpha4**2 / (4.0 * den), e2**2 * lam**2 / (2.0 * den), gamma2)
    if kernel == "ntk":
        third = c[2] / den + lam**2 * e2**2 / den**2
        c = (c[0] * (1.0 + 1.0 / den), c[1] / den, third, gamma2 + square * d2 / (1.0 - a * d2))
    elif kernel == "ntk_frozen":
        c = (c[0] / den, c[1] / den, (c[2] + c[0] / den * a * e2**2 * lam) / den, gamma2 / (1.0 - a * d2))
    if deq.readout == "pre-activation":
        c = (a * c[0] + b, a * c[1], a * c[2], a * c[3] + b * tau0**2)
    return c


def numbers_of_layers(layers: tuple[Activation, ...], tau0: float, kernel: str, rates: Any) -> Four:
    """Those of an explicit network as it is shipped, whose layers must be centred (theory, section 5)."""
    first, *others = rates or (1.0,) * (len(layers) + 1)
    first = first if kernel == "ntk" else 0.0
    one, two, three, four, square = 1.0, 0.0, 0.0, 1.0, tau0**2
    tangent = np.array([first, 0.0, 0.0, first * square])
    for phi, rate in zip(layers, others, strict=True):
        mean, variance, e1, e2, q2, d2 = moments(phi, math.sqrt(square))
        # means cancel what they are made of, of which a shift may hold much
        assert abs(mean) <= 1e-10 * math.sqrt(variance), f"a layer has the mean {mean}: {phi!r}"
        curved = e2**2 * one * tangent[0]
        two, three = e1**2 * two + 0.25 * e2**2 * four**2, e1**2 * three + 0.5 * e2**2 * one**2
        one, four, square = e1**2 * one, 0.5 * q2 * four, variance
        tangent = rate * np.array([one, two, three, square]) + tangent * np.array([e1**2, e1**2, e1**2, d2])
        tangent[2] += curved
    return (one, two, three, square) if kernel == "ck" else tuple(tangent.tolist())


def deviation(numbers: Any, wanted: Four, tau0: float) -> float:
    """The largest relative difference; small numbers are compared on the scale of the diagonal."""
    units = tau0 ** np.array([2.0, 4.0, 4.0, 0.0])
    have, want = np.array(numbers) * units, np.array(wanted) * units
    return float((np.abs(have - want) / np.maximum(np.abs(want), LEAST * wanted[3])).max())


def a_match(rng: np.random.Generator) -> Twin:
    """A twin of a random DEQ, kernel, scale and family, where there is one."""
    phi = nsd.activation(str(rng.choice(PLAIN))) if rng.random() < 0.6 else an_activation(rng)
    if rng.random() < 0.03:
        deq = a_cell(rng)
    else:
        share = float(rng.choice([0.0, rng.uniform(0.0, 0.99), 0.999], p=[0.05, 0.9, 0.05]))
        sigma_a2 = share * min(nsd.DEQ(phi, 0.0).limit, 1.0)
        sigma_b2 = 1.0 - sigma_a2 if rng.random() < 0.6 else float(10.0 ** rng.uniform(-2, 1))
        deq = nsd.DEQ(phi, sigma_a2, sigma_b2, readout=str(rng.choice(["activation"] * 3 + ["pre-activation"])))
    tau0 = 1.0 if rng.random() < 0.3 else float(10.0 ** rng.uniform(-1.5, 1.5))
    statistics: Any = tau0
    if rng.random() < 0.1:
        X = rng.standard_normal((30, 20)) * tau0 / math.sqrt(20.0)
        statistics = nsd.MixtureStatistics.estimate(X, rng.integers(2, size=30))
    family = "auto" if rng.random() < 0.5 else str(rng.choice(sorted(FAMILIES)))
    return nsd.match(deq, statistics, str(rng.choice(KERNELS)), family)


def check_numbers(twin: Twin) -> int:
    """The numbers of both networks and the stated residual; how many were compared."""
    tau0, proof, label = twin.tau0, twin.certificate, f"{twin!r} at {twin.tau0}: {twin.deq!r}"
    assert tau0 is not None
    assert proof.target is not None
    assert proof.achieved is not None
    square = (tau0**2,) * 3
    for network in (twin.deq, twin.network):
        if not resolves(network, square, (twin.coefficients.diagonal,) * 3):
            return 0
    wanted = numbers_of_deq(twin.deq, tau0, twin.kernel)
    have = numbers_of_layers(twin.network.activations, tau0, twin.kernel, twin.learning_rates)
    for which, numbers, own in (("target", proof.target, wanted), ("achieved", proof.achieved, have)):
        assert isinstance(numbers, Coefficients)
        off = deviation(numbers.four, own, tau0)
        assert off <= MATCHED, f"{which} differs by {off:.1e}: {numbers.four} and {own}: {label}"
    off = deviation(have, wanted, tau0)
    assert off <= twin.residual + MATCHED, f"residual {off:.1e} against {twin.residual:.1e}: {label}"
    return 8


# ---- kernels of any twin ---------------------------------------------------------------------------------


def kernel_of(network: Any, s: tuple[float, float, float], kernel: str, rates: Any = None) -> float | None:
    """The kernel of one pair by nested quadrature, and plain iteration; ``None`` where panels do not resolve it."""
    ck = equilibrium(network, s) if isinstance(network, nsd.DEQ) else None
    if isinstance(network, nsd.DEQ) and ck is None:
        return None
    if not resolves(network, s, ck or (0.0, 0.0, 0.0)):
        return None
    return recursion(network, s, ck, rates, slopes=kernel != "ck")[kernel]


def check_kernels(rng: np.random.Generator, twin: Twin) -> int:
    """``kernel_matrix`` and the distance that ``verify`` states, on a few rows of about the twin's norm."""
    size = twin.tau0 or 1.0
    X = rng.standard_normal((3, int(rng.choice([1, 2, 5]))))
    X *= size / np.linalg.norm(X, axis=1)[:, None]
    X = X if twin.tau0 is None else X * rng.uniform(0.5, 1.5, (3, 1))
    S = X @ X.T
    name, rates = ("ck", None) if twin.trains == "readout" else (twin.kernel, twin.learning_rates)
    truth, own = np.zeros((3, 3)), np.zeros((3, 3))
    for i, j in zip(*np.triu_indices(3), strict=True):
        s = (S[i, i], S[j, j], S[i, j])
        pair = kernel_of(twin.deq, s, twin.kernel), kernel_of(twin.network, s, name, rates)
        if None in pair:
            return 0
        truth[i, j], own[i, j] = truth[j, i], own[j, i] = pair
    known = ANGULAR if twin.deq.kinked or twin.network.kinked else KNOWN
    label = f"{twin!r}: {twin.deq!r}, {twin.network!r} on {X.tolist()}"
    K = twin.kernel_matrix(X)
    off = float(np.abs(K - own).max() / np.abs(own).max())
    assert off <= known, f"kernel_matrix differs by {off:.1e}: {label}"
    stated, distance = twin.verify(X).distance, np.linalg.norm(truth - own, 2) / np.linalg.norm(truth, 2)
    # the library's norm is found by Lanczos steps
    assert abs(stated - distance) <= 10.0 * known + 1e-4 * distance, f"verify says {stated}, not {distance}: {label}"
    return 6


# ---- the sphere ------------------------------------------------------------------------------------------


def a_sphere(rng: np.random.Generator) -> Twin:
    """A twin on the sphere of any DEQ, with few terms or many."""
    if rng.random() < 0.25:
        deq = a_cell(rng)
    else:
        phi = nsd.activation(str(rng.choice(PLAIN))) if rng.random() < 0.6 else an_activation(rng)
        sigma_a2 = float(rng.choice([0.0, rng.uniform(0.0, 0.99)], p=[0.05, 0.95])) * min(nsd.DEQ(phi, 0.0).limit, 1.0)
        sigma_b2, sigma_c2 = 10.0 ** rng.uniform(-2, 1.5), 10.0 ** rng.uniform(-3, 1) * (rng.random() < 0.3)
        deq = nsd.DEQ(phi, sigma_a2, float(sigma_b2), float(sigma_c2))
    if rng.random() < 0.3:
        deq = nsd.DEQ(deq.activations, *deq.variances, "pre-activation", deq.normalise)
    terms = int(rng.choice([2, 3, 4, 7, 12, 30, 60, 100, 171]))
    return nsd.match_sphere(deq, str(rng.choice(KERNELS)), terms)


@functools.cache
def _hermite_rule() -> tuple[Array, Array]:
    x, w = np.polynomial.hermite_e.hermegauss(180)  # exact for products of two units of 171 terms
    return x, w / math.sqrt(2.0 * math.pi)


def of_units(twin: Twin, rho: float) -> float:
    """The kernel of the unit that is shipped, of values and slopes of the function alone."""
    (phi,) = twin.network.activations
    x, w = _hermite_rule()
    v = rho * x[:, None] + math.sqrt(1.0 - rho * rho) * x
    total = 0.0
    for function, share in ((phi, 1.0), (phi.derivative, rho if twin.trains == "all" else 0.0)):
        if share:
            total += share * float((w * np.asarray(function(x))) @ (np.asarray(function(v)) @ w))
    return total


def check_sphere(rng: np.random.Generator, twin: Twin) -> int:
    """No cosine at which the shipped unit is farther from the DEQ than the bound; and the bound is no larger than
    what is missing of equal inputs."""
    cosines = [1.0, -1.0, *rng.uniform(-1.0, 1.0, 2), float(np.cos(10.0 ** rng.uniform(-4, -1)))]
    along, compared = None, 0
    for rho in cosines:
        truth = kernel_of(twin.deq, (1.0, 1.0, rho), twin.kernel)
        if truth is None:
            return compared
        along = truth if along is None else along
        off = abs(truth - of_units(twin, rho))
        known = (ANGULAR if twin.deq.kinked and twin.kernel != "ck" else KNOWN) * along
        label = f"{twin!r} of {twin.network.activations[0].degree + 1} terms, at {rho}: {twin.deq!r}"
        assert off <= twin.bound + known, f"{off:.3e} against {twin.bound:.3e}: {label}"
        if rho == 1.0:
            assert twin.bound <= off + known, f"a bound of {twin.bound:.3e}, {off:.3e} are missing: {label}"
        compared += 1
    return compared


# ---- source code -----------------------------------------------------------------------------------------


def check_source(rng: np.random.Generator, twin: Twin) -> int:
    """The module that is printed, with the weights of the library's network, on random rows."""
    size, kind = twin.tau0 or (twin.norms or (1.0, 1.0))[1], str(rng.choice(["ntk", "standard"]))
    model = nsd.nn.ENN(twin, 3, 16, 2, int(rng.integers(99)), parametrisation=kind, dtype=torch.float64)
    names: dict[str, Any] = {}
    exec(nsd.pytorch_code(twin, 3, 16, 2, kind), names)
    printed = names["Twin"]().double()
    with torch.no_grad():
        for mine, its in zip((*printed.weights, printed.readout), (*model.weights, model.readout), strict=True):
            mine.copy_(its)
    x = torch.from_numpy(rng.standard_normal((5, 3)))
    x *= size / x.norm(dim=1, keepdim=True)
    with torch.no_grad():
        off, scale = (printed(x) - model(x)).abs().max(), model.features(x).abs().max() * 4.0 + 1e-300
    # sums of powers cancel
    assert float(off / scale) <= tolerance(amplified=1e3), f"the source differs by {off / scale:.1e}: {twin!r}"
    return len(x)
