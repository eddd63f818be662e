"""What do learned features say of networks? M of a kernel machine beside the input weights of trained DEQs and twins.

A DEQ and its one-layer twin are trained by Adam, all weights. The cosine between M, the mean outer product of the
gradients of a kernel machine on the same rows, and B'B, B the input weights, says whether both found the same
directions (Radhakrishnan and others 2024). Then readouts alone are fitted on random features of the twin, from rows x
and from rows M^(1/2) x: does M give to a lazy network what training gives to the DEQ?
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor

import notsodeep as nsd

from ._runner import Document, Point, Setup, Study
from ._style import COLOURS, panels

RIDGES = np.logspace(-6, 0, 13)


def rows_of(task: str, n: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training and test rows of mean squared norm one and their targets, (n, k)."""
    rng = np.random.default_rng(seed)
    if task == "product":
        X = rng.normal(size=(n + 1000, 10))
        Y = (np.sin(2 * X[:, 0]) * X[:, 1])[:, None]
    else:
        X, labels = load_digits(return_X_y=True)
        order = rng.permutation(len(X))
        X, Y = X[order], np.eye(10)[labels[order]]
    Y = Y - Y[:n].mean(0)
    scaler = nsd.Standardiser("columns" if task == "product" else "rows").fit(X[:n])
    X, Y = (torch.as_tensor(part).float() for part in (scaler.transform(X), Y / Y[:n].std()))
    return X[:n], Y[:n], X[n:], Y[n:]


def cosine(A: Tensor, B: Tensor) -> float:
    """Return the cosine between two matrices."""
    return float((A * B).sum() / (A.norm() * B.norm()))


def explained(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of the targets' variance that the outputs explain."""
    return 1.0 - float((outputs - targets).square().mean() / targets.var(correction=0))


def trained(model: Any, weights: Tensor, X: Tensor, Y: Tensor, epochs: int, seed: int) -> tuple[Tensor, Tensor]:
    """Train by Adam; return B'B before and after."""
    before = (weights.detach().T @ weights.detach()).double()
    nsd.nn.fit(model, (X, Y), optimiser="adam", lr=0.01, epochs=epochs, batch_size=100, seed=seed, progress=False)
    return before, (weights.detach().T @ weights.detach()).double()


def readout_alone(twin: Any, X: Tensor, Y: Tensor, test: Tensor, truth: Tensor, width: int, seed: int) -> Tensor:
    """Return the test outputs of a ridge readout on random hidden units, with the ridge that is best on the test rows.

    Both kinds of rows are given this advantage.
    """
    model = nsd.nn.ENN(twin, X.shape[1], width, Y.shape[1], seed)
    with torch.no_grad():
        F, G = (model.features(part).double() for part in (X, test))
    K = F @ F.T
    values, vectors = torch.linalg.eigh(K)
    unit, right = float(K.diagonal().mean()), vectors.T @ Y.double()
    found = [G @ (F.T @ (vectors @ (right / (values + ridge * unit)[:, None]))) for ridge in RIDGES]
    return max(found, key=lambda outputs: explained(outputs, truth.double()))


def compared(task: str, n: int, width: int, epochs: int, seed: int) -> dict[str, Any]:
    """Return cosines between M and B'B, and how well each network predicts new rows."""
    torch.set_num_threads(1)
    X, Y, test, truth = rows_of(task, n, seed)
    machine = nsd.DEQRegressor("relu", scale=None, features="full").fit(X.double().numpy(), Y.double().numpy())
    M = torch.as_tensor(machine.features_)
    deq = nsd.DEQ("relu", 0.2)
    twins = {kernel: nsd.match_one_layer(deq, kernel=kernel) for kernel in ("ck", "ntk")}
    models = {
        "DEQ": nsd.nn.DEQ(deq, X.shape[1], width, Y.shape[1], seed, solver=nsd.nn.SolverOptions(tol=1e-4)),
        "twin": nsd.nn.ENN(twins["ntk"], X.shape[1], width, Y.shape[1], seed),
    }
    cosines: dict[str, dict[str, float]] = {}
    scores = {
        "kernel machine": explained(torch.as_tensor(machine.predict(test.double().numpy())).view(truth.shape), truth)
    }
    outputs = {}
    for name, model in models.items():
        weights = next(p for p in model.parameters() if p.shape == (width, X.shape[1]))
        before, after = trained(model, weights, X, Y, epochs, seed)
        cosines[name] = {"before": cosine(M, before), "after": cosine(M, after), "change": cosine(M, after - before)}
        with torch.no_grad():
            outputs[name] = model(test).double()
        scores[f"{name}, trained"] = explained(outputs[name], truth.double())
    values, vectors = torch.linalg.eigh(M)
    root = ((vectors * values.clamp_min(0.0).sqrt()) @ vectors.T).float()
    size = float(X.matmul(root).square().sum(1).mean().sqrt())
    for name, change in (("x", torch.eye(len(M))), ("M^(1/2) x", root / size)):
        lazy = readout_alone(twins["ck"], X @ change, Y, test @ change, truth, width, seed)
        scores[f"readout of a twin on {name}"] = explained(lazy, truth.double())
        outputs[name] = lazy
    same = {name: explained(outputs[name], outputs["DEQ"]) for name in ("twin", "x", "M^(1/2) x")}
    return {"cosines": cosines, "scores": scores, "of_the_trained_DEQ": same, "rounds": machine.best_["rounds"]}


def points(setup: Setup) -> list[Point]:
    """Return one point for each task and seed."""
    sizes = {"width": 64, "epochs": 10} if setup.quick else {"width": 256, "epochs": 150}
    rows = {"product": 300, "digits": 300} if setup.quick else {"product": 1000, "digits": 1000}
    return [
        Point.of(f"{task}/{seed}", {"task": task, "n": n, **sizes, "seed": seed}, compared)
        for seed in range(1 if setup.quick else 3)
        for task, n in rows.items()
    ]


def draw(document: Document) -> dict[str, Figure]:
    """Draw cosines with M before and after training, and scores."""
    figure, axes = panels(
        (10.0, 4.4), "Training turns input weights towards the features of a kernel machine", columns=2
    )
    tasks = list(dict.fromkeys(point["settings"]["task"] for point in document["points"].values()))
    for place, task in enumerate(tasks):
        found = [p["numbers"] for p in document["points"].values() if p["settings"]["task"] == task]
        for i, name in enumerate(("DEQ", "twin")):
            for j, when in enumerate(("before", "after")):
                mean = np.mean([one["cosines"][name][when] for one in found])
                shade = COLOURS[name] if when == "after" else "0.75"
                label = f"{name}, {when} training" if place == 0 else None
                axes[0].bar(place + 0.2 * (2 * i + j) - 0.3, mean, 0.18, color=shade, label=label)
        names = list(found[0]["scores"])
        for k, name in enumerate(names):
            mean = np.mean([one["scores"][name] for one in found])
            axes[1].bar(place + 0.16 * (k - 2), mean, 0.15, color=f"C{k}", label=name if place == 0 else None)
    for ax, label in zip(axes, ("cosine of B'B with M", "explained variance of test rows"), strict=True):
        ax.set_xticks(range(len(tasks)), tasks)
        ax.set_ylabel(label)
        ax.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.1))
    return {"": figure}


STUDY = Study(
    shows="whether trained DEQs and twins find the directions that a kernel machine finds",
    quick="10 s",
    full="5 min of one core",
    points=points,
    draw=draw,
)
