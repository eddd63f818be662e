"""When is training lazy, and does the prediction hold there?

DEQs are trained on the papers' mixture by gradient descent and by Adam, in both parametrisations, at several widths.
The targets are added to the outputs at the start, so that what is learned begins at zero, as in the theory. A
prediction belongs to each run: the accuracy of gradient flow with the exact tangent kernel, at its training error.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

import notsodeep as nsd
from notsodeep.errors import ConcentrationWarning

from ._runner import Document, Point, Setup, Study
from ._style import panels

RATES = {("sgd", "ntk"): 1.0, ("adam", "ntk"): 0.01, ("sgd", "standard"): 1.0, ("adam", "standard"): 0.01}
"""Learning rates: for gradient descent in units of the largest stable one; Adam's divided by the root of the fan-in in
the standard parametrisation, where its steps are as much larger."""
RULE = ("optimiser", "parametrisation")
MARKS = {("sgd", "ntk"): "o", ("adam", "ntk"): "s", ("sgd", "standard"): "^", ("adam", "standard"): "D"}


def learned(
    width: int, optimiser: str, parametrisation: str, activation: str, p: int, n: int, steps: int, seed: int
) -> dict[str, Any]:
    """Return accuracy, training error and movement of a trained DEQ, and what is predicted at that training error."""
    spec, mixture = nsd.DEQ(activation, 0.2), nsd.GaussianMixture.two_class(p, mu=3.0)
    X, y = (torch.as_tensor(part) for part in mixture.sample(n, seed=seed))
    X_test, y_test = (torch.as_tensor(part) for part in mixture.sample(2000, seed=1000 + seed))
    X, X_test, y, y_test = X.float(), X_test.float(), 2.0 * y.float() - 1.0, 2.0 * y_test.float() - 1.0
    model = nsd.nn.DEQ(spec, p, width, 1, seed, parametrisation=parametrisation, solver=nsd.nn.SolverOptions(tol=1e-4))
    start = copy.deepcopy(model)
    with torch.no_grad():
        before, before_test = start(X), start(X_test)
    rate = RATES[optimiser, parametrisation]
    if optimiser == "sgd":
        rate *= 1.0 / float(torch.linalg.matrix_norm(nsd.empirical_ntk(model, X).double(), 2) / n)
    elif parametrisation == "standard":
        rate /= width**0.5
    data = X, y[:, None] + before
    nsd.nn.fit(model, data, optimiser=optimiser, lr=rate, epochs=steps, batch_size=n, seed=seed, progress=False)
    with torch.no_grad():
        outputs, outputs_test = (model(X) - before)[:, 0], (model(X_test) - before_test)[:, 0]
    error = float((outputs - y).square().mean())
    report = nsd.lazy(model, X, start=start, y=y)
    times = np.geomspace(1e-3, 1e3, 61) / n
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConcentrationWarning)  # at late times, which no run reaches
        flow = nsd.predict_learning(spec, mixture, n, times=times)
    falling = flow.training_error[::-1]
    return {
        "measured": float((outputs_test.sign() == y_test).double().mean()),
        "predicted": float(np.interp(error, falling, flow.accuracy[::-1])),
        "training_error": error,
        "kernel": report.kernel,
        "alignment": report.alignment,
        "labels": report.labels,
        "infinite": report.infinite,
        "weights": report.weights,
    }


def points(setup: Setup) -> list[Point]:
    """Return one point for each width, optimiser, parametrisation, activation and seed."""
    widths, n, p, steps = ((16, 64), 60, 40, 10) if setup.quick else ((16, 64, 256, 1024), 200, 100, 60)
    settings: list[dict[str, Any]] = [
        {"width": width, "optimiser": rule, "parametrisation": form, "activation": phi, "p": p, "n": n, "steps": steps,
         "seed": seed}
        for width in widths
        for seed in ((0,) if setup.quick or width > 256 else (0, 1))
        for phi in ("tanh", "relu")
        for rule, form in RATES
    ]  # fmt: skip
    names = ("width", "optimiser", "parametrisation", "activation", "seed")
    return [Point.of("/".join(str(one[name]) for name in names), one, learned) for one in settings]


def draw(document: Document) -> dict[str, Figure]:
    """Draw predicted accuracy against measured, coloured by how far the kernel moved."""
    figure, ax = panels((6.4, 4.8), "The prediction holds for gradient descent on a kernel that stays, not for Adam")
    rows = list(document["points"].values())
    moved = [row["numbers"]["kernel"] for row in rows]
    norm = LogNorm(max(min(moved), 1e-3), max(moved))
    for rule, mark in MARKS.items():
        some = [row["numbers"] for row in rows if tuple(row["settings"][name] for name in RULE) == rule]
        x, y = ([100 * one[name] for one in some] for name in ("measured", "predicted"))
        label = f"{'gradient descent' if rule[0] == 'sgd' else 'Adam'}, {rule[1]}"
        colours = [one["kernel"] for one in some]
        drawn = ax.scatter(x, y, c=colours, norm=norm, marker=mark, cmap="viridis", label=label, s=28)
    low = 100 * min(row["numbers"][name] for row in rows for name in ("measured", "predicted"))
    high = 100 * max(row["numbers"][name] for row in rows for name in ("measured", "predicted"))
    ax.plot([low, high], [low, high], color="0.6", linewidth=1)
    ax.set(xlabel="measured accuracy (%)", ylabel="predicted accuracy (%)")
    ax.legend(frameon=False, fontsize="small", loc="lower right")
    figure.colorbar(drawn, ax=ax, label="relative movement of the kernel")
    return {"": figure}


STUDY = Study(
    shows="when training is lazy, and for which training the prediction holds",
    quick="10 s",
    full="10 min on two cores",
    points=points,
    draw=draw,
)
