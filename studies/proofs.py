"""Classes of contractive DEQs proven input by input: after how many steps, and in which time, beside a tolerance.

DEQs of ReLU and tanh units are trained with all their weights under three limits of the contraction. On fresh rows
``decide`` is held against solving to relative residuals of 1e-3, which proves nothing, and of 1e-5. On a GPU the DEQs
are wider and the batches larger; give such a run another folder, ``--output results/h200``.
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from ._measure import share
from ._runner import Document, Point, Setup, Study
from ._style import by_setting, panels, phrase, shared_legend
from .replace import ReplacedRun, seconds, some_rows, tolerance, train

TOLERANCES = (1e-3, 1e-5)
BATCHES = {"cpu": (128, 1024), "cuda": (1024, 8192, 32_768)}


def proofs(
    data: str, activation: str, limit: float, width: int, trained: int, fresh: int, epochs: int, setup: Setup
) -> dict[str, Any]:
    """Return steps and seconds until classes are proven, and until tolerances are met."""
    run = ReplacedRun(data, "notsodeep", activation, width, limit, trained, fresh=fresh, epochs=epochs)
    X, y, pool, labels = some_rows(run, setup)
    model, rows = train(run, X, y), pool[-fresh:]
    proof = model.decide(rows)
    found: dict[str, Any] = {
        "contraction": model.contraction(),
        "accuracy": share(proof.classes, labels[-fresh:]),
        "proven": float(proof.proven.double().mean()),
        "steps": float(proof.steps.double().mean()),
        "most_steps": int(proof.steps.max()),
    }
    for tol in TOLERANCES:
        with tolerance(model, tol), torch.no_grad():
            solved, outputs = model.solve(rows), model(rows)
            found[f"steps {tol:g}"] = float(solved.row_steps.double().mean())
            found[f"differs {tol:g}"] = 1.0 - share(outputs.argmax(1), proof.classes)
            for size in BATCHES[torch.device(setup.device).type]:
                batch = rows.repeat(-(-size // fresh), 1)[:size]
                took = seconds({"model": model, "decide": model.decide}, batch, repeats=9)
                found[f"ratio {tol:g} {size}"] = took["model"] / took["decide"]
    return found


def points(setup: Setup) -> list[Point]:
    """Return one point per data set, activation and limit."""
    size = {"width": 64, "trained": 600, "fresh": 397, "epochs": 5}
    if not setup.quick:
        size = {"width": 256 if setup.device == "cpu" else 1024, "trained": 6000, "fresh": 8192, "epochs": 3}
    names = ("digits",) if setup.quick else ("mnist", "fashion_mnist")
    chosen = [(data, phi, limit) for data in names for phi in ("relu", "tanh") for limit in (0.5, 0.8, 0.95)]
    return [
        Point.of(
            f"{data}/{phi}/{limit}", {"data": data, "activation": phi, "limit": limit, **size}, proofs, setup=setup
        )
        for data, phi, limit in chosen
    ]


def draw(document: Document) -> dict[str, Figure]:
    """Return one figure: steps until proof and until tolerances, against the limit."""
    found = by_setting(document["points"].values(), "data")
    figure, axes = panels((4.75 * len(found), 4.2), "Steps until the class is proven", 1, len(found))
    for (name, chosen), ax in zip(found.items(), axes if len(found) > 1 else [axes], strict=True):
        for phi, line in zip(("relu", "tanh"), ("-", "--"), strict=True):
            own = [point for point in chosen if point["settings"]["activation"] == phi]
            limits = [point["settings"]["limit"] for point in own]
            for kind, colour in zip(
                ("steps", *(f"steps {tol:g}" for tol in TOLERANCES)), ("C0", "C1", "C2"), strict=True
            ):
                label = f"{phrase(phi)}, {kind.replace('steps ', 'tolerance ').replace('steps', 'proof')}"
                ax.plot(limits, [point["numbers"][kind] for point in own], line, color=colour, marker="o", label=label)
        ax.set(title=phrase(name), xlabel="limit of the contraction", ylabel="mean steps per row")
    shared_legend(figure, ax, ncols=3)
    return {"": figure}


STUDY = Study(
    shows="classes of contractive DEQs proven input by input, in steps and time",
    quick="15 s",
    full="2 min, one core",
    points=points,
    draw=draw,
)
