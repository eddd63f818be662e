"""Other weights, other data, and the preprint's own layer: what the theorems assume and what is needed.

Kernels as the papers measure them, means of many networks, with weights that are no Gaussians; equivalents on rows
that are no Gaussian mixture but images of a random generator, whose rows concentrate; and the one layer of the
preprint's Corollary 2, mended, in place of the twin in its Figure 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import notsodeep as nsd
from notsodeep.errors import ConvergenceError

from ._readouts import Candidate, loader, rate, score
from ._runner import Document, Point, Setup, Study
from ._style import COLOURS, panels, ticks_at, word
from .kernels import one_leaky_layer

Array = np.ndarray[Any, Any]
Generator = np.random.Generator

WEIGHTS: dict[str, Callable[[Generator, tuple[int, int]], Array]] = {
    "Gaussian": lambda rng, shape: rng.standard_normal(shape),
    "Rademacher": lambda rng, shape: rng.integers(0, 2, shape) * 2.0 - 1.0,
    "uniform": lambda rng, shape: rng.uniform(-(3**0.5), 3**0.5, shape),
    "sparse, 5 %": lambda rng, shape: rng.standard_normal(shape) * (rng.random(shape) < 0.05) / 0.05**0.5,
    "sparse, 3 of a row": lambda rng, shape: (
        rng.standard_normal(shape) * (rng.random(shape) < 3 / shape[1]) * (shape[1] / 3) ** 0.5
    ),
}


def mean_of_networks(
    activation: str, sigma_a2: float, weights: str, turned: bool, n: int, p: int, width: int, draws: int, seed: int
) -> dict[str, Any]:
    """Relative spectral distance of the mean CK of finite DEQs from the exact one, after 1, 2, 4, ... networks.

    The class means of the papers' mixture lie on one coordinate each; ``turned`` rows have them on all coordinates.
    """
    X, _ = nsd.GaussianMixture.two_class(p).sample(n, seed=seed)
    X = X @ np.linalg.qr(np.random.default_rng(p).standard_normal((p, p)))[0] if turned else X
    deq = nsd.DEQ(activation, sigma_a2)
    exact, rng, total, found = nsd.ck(deq, X), np.random.default_rng(seed), np.zeros((n, n)), {}
    for draw in range(1, draws + 1):
        A, B = (WEIGHTS[weights](rng, (width, k)) for k in (width, p))
        state = _equilibrium(deq, deq.variances[0] ** 0.5 * A, deq.variances[1] ** 0.5 * (B @ X.T))
        total += state.T @ state
        if draw & (draw - 1) == 0 or draw == draws:
            found[draw] = nsd.equivalents.relative_spectral_error(exact, total / draw)
    return {"distance": found}


def _equilibrium(deq: nsd.DEQ, A: Array, drive: Array) -> Array:
    """Iterate z = phi(A z + drive)/sqrt(m) to rounding; the map contracts by less than 0.9."""
    state, root = np.zeros_like(drive), len(drive) ** 0.5
    for _ in range(400):
        after = deq.activation(A @ state + drive) / root
        if np.abs(after - state).max() < 1e-12:
            return after
        state = after
    raise ConvergenceError("the network did not reach its equilibrium in 400 steps; use a smaller sigma_a2")


def generated(rows: int, p: int, seed: int) -> tuple[Array, Array]:
    """Two classes of images of a random generator: x = mu_a + scale_a G(z), G two tanh layers of random weights.

    A Lipschitz function of Gaussian noise is a concentrated vector, whatever it looks like.
    """
    rng = np.random.default_rng([p, 7])  # the generator itself belongs to p
    first, second = rng.standard_normal((p, p)) / p**0.5, rng.standard_normal((p, p)) / p**0.5
    noise, y = np.random.default_rng([p, seed]).standard_normal((rows, p)), np.arange(rows) % 2
    images = np.tanh(2.0 * np.tanh(2.0 * noise @ first) @ second)
    X = images * np.where(y == 0, 1.0, 1.0 + 4.0 / p**0.5)[:, None]
    X[:, 0] += np.where(y == 0, 2.0, -2.0)
    return X / (images**2).sum(1).mean() ** 0.5, y


def equivalents_on(activation: str, sigma_a2: float, data: str, n: int, p: int, seed: int) -> dict[str, float]:
    """Relative error of the equivalent on generated rows, or on Gaussian ones of the same means and covariances."""
    X, y = generated(20 * p, p, seed=100 + seed)
    means = np.stack([X[y == a].mean(0) for a in (0, 1)]) * p**0.5
    covariances = [np.cov(X[y == a].T) * p for a in (0, 1)]
    mixture = nsd.GaussianMixture(means, covariances)
    X, y = generated(n, p, seed) if data == "generated" else mixture.sample(n, seed=seed)
    statistics = nsd.MixtureStatistics.from_mixture(mixture, X, y)
    found = {}
    for kernel, exact in (("ck", nsd.ck), ("ntk", nsd.ntk)):
        equivalent = nsd.equivalent(nsd.DEQ(activation, sigma_a2), statistics, kernel)
        found[kernel] = nsd.equivalents.relative_spectral_error(exact(equivalent.network, X), equivalent.matrix())
    return found


def figure_three(load_data: Any, setup: Setup, dataset: str, width: int, seeds: Any, epochs: int) -> dict[str, Any]:
    """Test accuracies of the preprint's networks: DEQ, the layer of Corollary 2, two layers of the twin, plain ReLU.

    The layer has the kernel of the DEQ's pre-activations, as the preprint states it; what trains is a readout of z.
    """
    twin = nsd.match(nsd.DEQ("relu", 0.1), 1.0)
    layer = one_leaky_layer(nsd.coefficients(nsd.DEQ("relu", 0.1, readout="pre-activation"), 1.0))
    networks = {"DEQ": twin.deq, "Corollary 2": layer, "twin": twin.network, "plain": nsd.ENN(["relu"]).centred(1.0)}
    found = score(
        {name: Candidate(network, reference="DEQ") for name, network in networks.items()},
        load_data(dataset),
        width,
        setup,
        epochs=epochs,
        batch_size=128,
        seeds=seeds,
        optimisers={"sgd": rate(dataset)},
    )
    return {name: found.shares[name]["sgd"]["accuracy"] for name in networks}


def points(setup: Setup) -> list[Point]:
    """Weights, data and the preprint's Figure 3."""
    quick, load_data = setup.quick, loader(setup)
    size = {"n": 60, "p": 80, "width": 128, "draws": 16 if quick else 400}
    base = {"activation": "relu", "sigma_a2": 0.1, "seed": 0}
    chosen = [
        Point.of(f"weights/{name}{mark}", {**base, "weights": name, "turned": bool(mark), **size}, mean_of_networks)
        for name in WEIGHTS
        for mark in (("", ", turned") if name.startswith("sparse") else ("",))
    ]
    sizes = (60, 120) if quick else (100, 200, 400)
    chosen += [
        Point.of(
            f"data/{data}/{p}/{seed}",
            {**base, "data": data, "n": round(1.25 * p), "p": p, "seed": seed},
            equivalents_on,
        )
        for data in ("generated", "Gaussian")
        for p in sizes
        for seed in (0, 1)
    ]
    for width in (32,) if quick else (32, 128, 512):
        settings = {"dataset": "digits", "width": width, "seeds": [0, 1, 2], "epochs": 5 if quick else 30}
        chosen.append(Point.of(f"figure 3/{width}", settings, figure_three, load_data=load_data, setup=setup))
    return chosen


def draw(document: Document) -> dict[str, Figure]:
    """Distances of mean kernels against the number of networks; errors of equivalents against p; accuracies."""
    figure, axes = panels((12.0, 3.8), "Other weights, other data, and the preprint's layer", columns=3)
    for key, point in document["points"].items():
        kind, *rest = key.split("/")
        if kind == "weights":
            found = {int(k): v for k, v in point["numbers"]["distance"].items()}
            line = "--" if point["settings"]["turned"] else "-"
            axes[0].loglog(list(found), list(found.values()), line, marker=".", label=rest[0])
        elif kind == "data":
            colour = COLOURS["DEQ" if rest[0] == "generated" else "twin"]
            for kernel, mark in (("ck", "o"), ("ntk", "s")):
                label = f"{word(kernel)}, {rest[0]} data"
                axes[1].loglog(point["settings"]["p"], point["numbers"][kernel], mark, color=colour, label=label)
    rows = [(p["settings"]["width"], p["numbers"]) for k, p in document["points"].items() if k.startswith("figure 3")]
    for name in rows[0][1] if rows else ():
        means = [100 * np.mean(numbers[name]) for _, numbers in rows]
        axes[2].semilogx([width for width, _ in rows], means, "o-", label=name)
    axes[0].set(xlabel="networks in the mean", ylabel="distance from the exact CK", title="weights (ReLU)")
    axes[1].set(xlabel="p", ylabel="error of the equivalent", title="data that are no mixture")
    axes[2].set(xlabel="width", ylabel="test accuracy, %", title="preprint, Figure 3 (digits)")
    shown = dict(zip(*reversed(axes[1].get_legend_handles_labels()), strict=True))
    axes[1].legend(shown.values(), shown, fontsize=7)
    ticks_at(axes[1], sorted({p["settings"]["p"] for k, p in document["points"].items() if k.startswith("data/")}))
    ticks_at(axes[2], [width for width, _ in rows])
    for ax in (axes[0], axes[2]):
        ax.legend(fontsize=7)
    return {"": figure}


STUDY = Study(
    shows="other weights, data that is no mixture, and the layer of Corollary 2 (preprint, figure 3)",
    quick="15 s",
    full="4 min",
    points=points,
    draw=draw,
)
