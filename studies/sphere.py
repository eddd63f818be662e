"""A ReLU DEQ on the unit sphere and one layer with a quadratic activation (workshop paper, Figure 1, both rows).

The kernels are the paper's: G* and K* are the CK and the NTK of all weights of a DEQ whose readout is one more
pre-activation. Its DEQ, phi = sqrt(2) ReLU at sigma_a2 = 0.2, lies outside the guaranteed contraction range (0.125).
The equations of the infinite-width kernel still have their solution, so the check is waived.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import brentq

import notsodeep as nsd
from notsodeep.kernels import power_series, sphere_diagonal

from ._measure import kernel_of, spectral_norm
from ._runner import Document, Point, Setup, Study
from ._spectra import draw_bulk, draw_largest, histograms
from ._style import COLOURS, panels, shared_legend


def unit_rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    """n points drawn uniformly from the unit sphere in dimension d."""
    rows = np.random.default_rng(seed).standard_normal((n, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def sphere_equivalent(network: Any, X: np.ndarray, kernel: Any = "ck") -> nsd.equivalents.EquivalentKernel:
    """The paper's alpha 11' + beta X X' + mu I on rows of norm one, for any network (docs/theory.md, section 7).

    With g the kernel as a function of the cosine, alpha = g(0) + g''(0)/(2d), beta = g'(0) and mu = g(1) - g(0) -
    g'(0); they are ``.core``, ``.gain`` and ``.shift``.
    """
    g = power_series(network, 3, kernel)
    alpha, mu = g[0] + g[2] / X.shape[1], float(sphere_diagonal(network, kernel) - g[0] - g[1])
    ones = np.ones((len(X), 1))
    return nsd.equivalents.EquivalentKernel(X, float(g[1]), ones, np.array([[alpha]]), mu, network, kernel)


def printed_coefficients(kernel: str, d: int, sigma_a2: float) -> dict[str, float]:
    """alpha, beta and mu of Theorem 1 (CK) or 3 (NTK), by the paper's own f, g and h; ``"printed beta"`` has its sign.

    The k'(0) that the paper prints is the negative of the derivative of its k.
    """

    def f(x: float) -> float:
        return (math.sqrt(1.0 - x * x) + (math.pi - math.acos(x)) * x) / math.pi

    at = brentq(lambda x: sigma_a2 * f(x) - x, 0.0, 1.0, xtol=1e-15)
    gap = math.sqrt(1.0 - at * at)
    slope, bend = (math.pi - math.acos(at)) / math.pi, 1.0 / (math.pi * gap)  # f' and f''
    rest = 1.0 - sigma_a2 * slope
    first, second = (1.0 - sigma_a2) / rest, sigma_a2 * (1.0 - sigma_a2) ** 2 * bend / rest**3
    if kernel == "ck":
        return {"alpha": at + second / (2 * d), "beta": first, "mu": 1.0 - at - first, "printed beta": first}
    s, bent = sigma_a2 * bend, sigma_a2 * at / (math.pi * gap**3)  # of h(x) = x / (1 - sigma_a2 f'(x))
    h1 = 1.0 / rest + at * s / rest**2
    h2 = (2.0 * s + at * bent) / rest**2 + 2.0 * at * s**2 / rest**3
    k1, k2 = first * h1, (1.0 - sigma_a2) ** 2 * (h2 * rest + sigma_a2 * h1 * bend) / rest**3
    zero = at / rest
    return {
        "alpha": zero + k2 / (2 * d),
        "beta": k1,
        "mu": 1.0 / (1.0 - sigma_a2) - zero - k1,
        "printed beta": (1.0 - sigma_a2) * h1 / (sigma_a2 * slope - 1.0),
    }


def quadratic_layer(network: Any, kernel: Any, d: int) -> nsd.ENN:
    """The paper's Corollary 1: one layer a x^2 + b x + c with alpha, beta and mu of the equivalent in dimension d."""
    k0, k1, k2 = (float(v) for v in power_series(network, 3, kernel))
    alpha, mu = k0 + k2 / d, float(sphere_diagonal(network, kernel)) - k0 - k1
    if alpha < mu / d:
        raise nsd.errors.InfeasibleMatchError(
            f"the quadratic layer needs alpha >= mu/d, got {alpha:.6g} and {mu / d:.6g}"
        )
    full = kernel == "ntk"  # all weights trained: slopes count once more
    a, b = math.sqrt(mu / (6.0 if full else 2.0)), math.sqrt(k1 / (2.0 if full else 1.0))
    return nsd.ENN([nsd.activation("quadratic", a=a, b=b, c=math.sqrt(alpha - mu / d) - a)])


def compare_on_sphere(
    kernel: str, n: int, d: int, sigma_a2: float = 0.2, seed: int = 0, readout: Any = "pre-activation"
) -> dict[str, Any]:
    """Distances to the DEQ's kernel of the equivalent, the quadratic layer, and the exact Hermite layer."""
    X = unit_rows(n, d, seed)
    deq = nsd.DEQ(nsd.activation("relu").affine(gain=math.sqrt(2.0)), sigma_a2, readout=readout)
    truth = kernel_of(deq, kernel, X, check=False)
    quadratic, exact = quadratic_layer(deq, kernel, d), nsd.match_sphere(deq, kernel)
    equivalent = sphere_equivalent(deq, X, kernel)
    others = {
        "equivalent": equivalent.matrix(),
        "quadratic": kernel_of(quadratic, kernel, X),
        "hermite": exact.kernel_matrix(X),
    }
    size = spectral_norm(truth)
    gaps = {name: spectral_norm(truth - other) for name, other in others.items()}
    off = ~np.eye(n, dtype=bool)
    layer: Any = quadratic.activations[0]
    return {
        "distances": {name: {"absolute": gap, "relative": gap / size} for name, gap in gaps.items()},
        "largest_off_diagonal_error": {k: float(np.abs(truth - v)[off].max()) for k, v in others.items()},
        "coefficients": {"alpha": float(equivalent.core[0, 0]), "beta": equivalent.gain, "mu": equivalent.shift},
        "printed": printed_coefficients(kernel, d, sigma_a2),
        "quadratic": {"a2": layer.a, "a1": layer.b, "a0": layer.c},
        "spectrum": histograms(
            {"DEQ": np.linalg.eigvalsh(truth), "quadratic layer": np.linalg.eigvalsh(others["quadratic"])}
        ),
    }


def points(setup: Setup) -> list[Point]:
    """The paper's G* and K*."""
    n, d = (250, 300) if setup.quick else (1000, 1200)
    settings = {"n": n, "d": d, "sigma_a2": 0.2, "seed": 0, "readout": "pre-activation"}
    return [Point.of(kernel, {"kernel": kernel, **settings}, compare_on_sphere) for kernel in ("ck", "ntk")]


_ROWS = {"ck": "G* (CK)", "ntk": "K* (NTK)"}


def draw(document: Document) -> dict[str, Figure]:
    """One figure: a row for each kernel with the bulks, the largest eigenvalues, and the activations."""
    kept = list(document["points"].items())
    says = "Unit sphere: one quadratic layer has the spectrum of the DEQ (workshop paper, Figure 1)"
    figure, axes = panels((12.0, 3.6 * len(kept)), says, len(kept), 3, squeeze=False)
    for (bulk, top, curve), (key, point) in zip(axes, kept, strict=True):
        spectrum, gap = point["numbers"]["spectrum"], point["numbers"]["distances"]["quadratic"]["relative"]
        draw_bulk(bulk, spectrum)
        draw_largest(top, spectrum)
        bulk.set_title(f"{_ROWS[key]}: relative distance {gap:.2g}")
        _activations(curve, point["numbers"]["quadratic"])
    shared_legend(figure, axes[0, 0])
    return {"": figure}


def _activations(ax: Axes, q: dict[str, float]) -> None:
    t = np.linspace(-3.0, 3.0, 121)
    ax.plot(t, math.sqrt(2.0) * np.maximum(t, 0.0), color=COLOURS["DEQ"])
    ax.plot(t, q["a2"] * t**2 + q["a1"] * t + q["a0"], color=COLOURS["twin"])
    ax.set(title="the activations", xlabel="input")


STUDY = Study(
    shows="a ReLU DEQ and one quadratic layer on the unit sphere (workshop, figure 1)",
    quick="5 s",
    full="10 s",
    points=points,
    draw=draw,
)
