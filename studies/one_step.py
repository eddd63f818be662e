"""One large gradient step on the input weights: does the twin need another learning rate?

The step adds a rank-one part to the features. Along the readout both networks gain eta alpha_1 beta.x; but the vector
that a DEQ gains is longer, R R' a with R = (I - sigma_a D A)^(-1), whose squared length is d^(-4) instead of the d^(-2)
of its projection, d = 1 - sigma_a2 E[phi']^2. So the features of a matched layer should need the rate eta/d.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import notsodeep as nsd

from ._runner import Document, Point, Setup, Study
from ._style import panels

STEPS = 14
"""Of the equilibria: the feedback of a random network contracts by 0.3 and leaves 1e-7."""
MODELS = ("DEQ", "twin at eta", "twin at eta/d")


def states(phi: Any, A: Tensor | None, drive: Tensor) -> Tensor:
    """The pre-activations u = A phi(u)/sqrt(m) + drive, (rows, m); without feedback the drive itself."""
    u = drive
    for _ in range(0 if A is None else STEPS):
        u = phi(u) / u.shape[1] ** 0.5 @ A.T + drive
    return u


def gradient(phi: Any, A: Tensor | None, B: Tensor, a: Tensor, X: Tensor, y: Tensor) -> Tensor:
    """The mean of y times the gradient of a . phi(u)/sqrt(m) in B."""
    u = states(phi, A, X @ B.T)
    gain = phi.derivative(u) / u.shape[1] ** 0.5
    adjoint = gain * a
    for _ in range(0 if A is None else STEPS):
        adjoint = gain * (a + adjoint @ A)
    return (adjoint * y[:, None]).T @ X / len(X)


def after_a_step(
    activation: str, sigma_a2: float, width: int, n: int, p: int, rates: Any, ridge: float, seed: int
) -> dict[str, Any]:
    """For each rate in units of p sqrt(width): the weight of beta.x in the features' kernel, and ridge test errors."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    deq = nsd.DEQ(activation, sigma_a2)
    twin = nsd.match(deq, 1.0)
    c = twin.coefficients
    d = 1.0 - sigma_a2 * c.c1 / (deq.variances[1] + sigma_a2 * c.c1)  # alpha_1 = sigma_b2 E1^2/(1 - sigma_a2 E1^2)
    phi, sigma = twin.deq.activation, twin.network.activations[0]
    beta = normal(p) / p**0.5
    X, fresh, test = (normal(n, p) / p**0.5 for _ in range(3))
    y, y_fresh, y_test = (torch.tanh(2.0 * p**0.5 * (Z @ beta)) for Z in (X, fresh, test))
    root_a, root_b = (v**0.5 for v in deq.variances[:2])
    found: dict[str, Any] = {"d": d, "weight": {m: [] for m in MODELS}, "error": {m: [] for m in MODELS}}
    a = normal(width)
    a = a * width**0.5 / a.norm()  # chance of its length would be that of the step
    recurrent, layer = (root_a * normal(width, width), root_b * normal(width, p)), (None, normal(width, p))
    along = test @ beta
    for name in MODELS:
        (A, B), network = (recurrent, phi) if name == "DEQ" else (layer, sigma)
        step = gradient(network, A, B, a, X, y)
        # sigma_b enters the step twice: B here is sigma_b times the weights that train
        factor = deq.variances[1] if A is not None else 1.0 / d if name.endswith("/d") else 1.0
        for relative in rates:
            moved = B + relative * p * width**0.5 * factor * step
            features = [network(states(network, A, Z @ moved.T)) / width**0.5 for Z in (fresh, test)]
            share = (along @ features[1]).norm() / (along @ along)
            found["weight"][name].append(float(share**2))
            found["error"][name].append(_ridge_error(*features, y_fresh, y_test, ridge))
    return found


def _ridge_error(train: Tensor, test: Tensor, y: Tensor, y_test: Tensor, ridge: float) -> float:
    K = train @ train.T
    K.diagonal().add_(ridge * float(K.diagonal().mean()))
    return float(((test @ (train.T @ torch.linalg.solve(K, y)) - y_test) ** 2).mean())


def points(setup: Setup) -> list[Point]:
    """Odd activations, whose twin is one layer; rates from lazy to large."""
    size = {"width": 256, "n": 128, "p": 128} if setup.quick else {"width": 2048, "n": 1000, "p": 1000}
    rates, seeds = ([0.0, 0.3], 1) if setup.quick else ([0.0, 0.1, 0.3, 1.0], 4)
    base = {"activation": "tanh", "sigma_a2": 0.24, **size, "rates": rates, "ridge": 0.01}
    return [Point.of(f"tanh/{seed}", {**base, "seed": seed}, after_a_step) for seed in range(seeds)]


def draw(document: Document) -> dict[str, Figure]:
    """The weight of beta.x in the kernel and the test error, against the rate."""
    figure, axes = panels((9.0, 3.8), "One large step: features of DEQ and twin", columns=2)
    found = list(document["points"].values())
    for ax, key, label in zip(axes, ("weight", "error"), ("weight of beta.x in the CK", "test error"), strict=True):
        for name in MODELS:
            rows = np.array([point["numbers"][key][name] for point in found])
            ax.plot(found[0]["settings"]["rates"], rows.mean(0), "o-", label=name)
        ax.set(xlabel="rate / (p sqrt(width))", ylabel=label)
    axes[0].legend(fontsize=8)
    return {"": figure}


STUDY = Study(
    shows="one large gradient step: which rate a twin needs",
    quick="5 s",
    full="2 min",
    points=points,
    draw=draw,
)
