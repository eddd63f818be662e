"""Machines that learn features beside plain ones, tuned SVM and gradient boosting, on tables of 100 to 20,000 rows.

Everyone gets the same training and test rows. Peers search their grids by five inner folds, as in the study ``peers``;
our machines have all other arguments at their defaults. xRFM takes part where the package is installed.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import rankdata
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split

import notsodeep as nsd

from . import _data
from ._runner import Document, Point, Setup, Study
from ._style import COLOURS, INK, panels
from .peers import BOOSTING, SVM, Array, machine

LEARNED, PLAIN, XRFM = "learned features", "plain", "xRFM"
MACHINES = (LEARNED, PLAIN, SVM, BOOSTING) + ((XRFM,) if importlib.util.find_spec("xrfm") else ())
SPLITS = 3


# ---- tables --------------------------------------------------------------------------------------------------


def _made(name: str, noise_columns: int = 0, **options: Any) -> Callable[..., tuple[Array, Array]]:
    """Return a generator of scikit-learn with further columns of noise."""

    def table(rows: int, data: Any) -> tuple[Array, Array]:
        X, y = getattr(datasets, f"make_{name}")(rows, random_state=0, **options)
        more = np.random.default_rng(1).uniform(X.min(), X.max(), (rows, noise_columns))
        return np.hstack([X, more]), y

    return table


def _loaded(name: str) -> Callable[..., tuple[Array, Array]]:
    return lambda rows, data: getattr(datasets, f"load_{name}")(return_X_y=True)


def _file(name: str) -> Callable[..., tuple[Array, Array]]:
    def table(rows: int, data: Any) -> tuple[Array, Array]:
        found = _data.load(name, data)
        return found.X_train.astype(np.float64), found.y_train

    return table


def _product(columns: int) -> Callable[..., tuple[Array, Array]]:
    """Return sin(2 x1) x2 among normal columns."""

    def table(rows: int, data: Any) -> tuple[Array, Array]:
        X = np.random.default_rng(0).normal(size=(rows, columns))
        return X, np.sin(2 * X[:, 0]) * X[:, 1]

    return table


def _rotated(rows: int, data: Any) -> tuple[Array, Array]:
    """Return a function of two oblique directions, which no single column shows."""
    rng = np.random.default_rng(0)
    X, directions = rng.normal(size=(rows, 20)), np.linalg.qr(rng.normal(size=(20, 2)))[0]
    u, v = (X @ directions).T
    return X, np.sin(2 * u) * v + 0.1 * rng.normal(size=rows)


TABLES: dict[str, tuple[int, Callable[..., tuple[Array, Array]]]] = {
    "iris": (150, _loaded("iris")),
    "wine": (178, _loaded("wine")),
    "breast cancer": (569, _loaded("breast_cancer")),
    "digits": (1797, _loaded("digits")),
    "diabetes": (442, _loaded("diabetes")),
    "Friedman 1": (800, _made("friedman1", noise=1.0)),
    "Friedman 1 + 20": (800, _made("friedman1", 20, noise=1.0)),
    "Friedman 1 + 100": (2000, _made("friedman1", 100, noise=1.0)),
    "Friedman 2": (800, _made("friedman2", noise=60.0)),
    "Friedman 2 + 10": (800, _made("friedman2", 10, noise=60.0)),
    "Friedman 3": (800, _made("friedman3", noise=0.1)),
    "Friedman 3 + 10": (800, _made("friedman3", 10, noise=0.1)),
    "product of 5": (400, _product(5)),
    "product of 20": (800, _product(20)),
    "product of 50": (3000, _product(50)),
    "two directions": (1500, _rotated),
    "sparse linear": (400, _made("sparse_uncorrelated", n_features=20)),
    "linear + 50": (500, _made("regression", n_features=60, n_informative=10, noise=20.0)),
    "two moons + 10": (400, _made("moons", 10, noise=0.25)),
    "circles + 10": (400, _made("circles", 10, noise=0.15, factor=0.5)),
    "clusters": (1000, _made("classification", n_features=15, n_informative=6, n_classes=3, flip_y=0.05)),
    "clusters + 50": (20_000, _made("classification", 50, n_features=15, n_informative=6, n_classes=3, flip_y=0.05)),
    "Hastie": (12_000, _made("hastie_10_2")),
    "MNIST": (5000, _file("mnist")),
    "Fashion-MNIST": (5000, _file("fashion_mnist")),
}
QUICK = ("iris", "Friedman 1 + 20", "product of 5", "circles + 10")


def load(name: str, rows: int, data: Any = None) -> tuple[Array, Array]:
    """Return rows and targets of a table, at most so many rows, drawn at random."""
    size, make = TABLES[name]
    X, y = make(min(size, max(rows, 100)), data)
    chosen = np.random.default_rng(0).permutation(len(X))[: min(rows, size)]
    return X[chosen], y[chosen]


# ---- measurement ---------------------------------------------------------------------------------------------


def _model(name: str, classes: bool, columns: int) -> Any:
    if name in (LEARNED, PLAIN):
        kind: Any = nsd.DEQClassifier if classes else nsd.DEQRegressor
        return kind(features="auto" if name == LEARNED else None)
    if name == XRFM:
        from xrfm import xRFM  # type: ignore[import-not-found]

        return xRFM()
    return machine(name, classes, columns)


def measure(table: str, machine: str, split: int, rows: int, data: Any = None) -> dict[str, Any]:
    """Return accuracy or R2 of one machine on three tenths of the rows, and the seconds of the processor in its fit."""
    torch.set_num_threads(1)
    X, y = load(table, rows, data)
    classes = y.dtype.kind in "iu" or len(np.unique(y)) < 20
    codes = np.unique(y, return_inverse=True)[1] if classes else y
    stratify = codes if classes else None
    X, test, t, truth = train_test_split(X, codes, test_size=0.3, random_state=split, stratify=stratify)
    level, unit = (0.0, 1.0) if classes else (t.mean(), t.std())  # the widths of SVR's tubes are in these units
    targets = t if classes else (t - level) / unit
    model, started = _model(machine, classes, X.shape[1]), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if machine == XRFM:  # which wants rows to validate on
            fit, held, own, hidden = train_test_split(
                X, targets, test_size=0.2, random_state=0, stratify=stratify and t
            )
            model.fit(fit, own, held, hidden)
        else:
            model.fit(X, targets)
    seconds, predicted = time.process_time() - started, np.ravel(model.predict(test))
    if classes:
        return {"score": float(np.mean(predicted == truth)), "seconds": seconds}
    wrong = truth - level - unit * predicted
    return {"score": 1.0 - float((wrong**2).mean() / truth.var()), "seconds": seconds}


def points(setup: Setup) -> list[Point]:
    """Return one point for each table, split and machine, the quick machines first."""
    rows, splits, chosen = (200, 1, QUICK) if setup.quick else (20_000, SPLITS, tuple(TABLES))
    return [
        Point.of(
            f"{table}/{name}/{split}",
            {"table": table, "machine": name, "split": split, "rows": min(rows, TABLES[table][0])},
            measure,
            data=setup.data,
        )
        for split in range(splits)
        for table in sorted(chosen, key=lambda table: TABLES[table][0])
        for name in MACHINES
    ]


# ---- what the numbers say ------------------------------------------------------------------------------------


def scores(document: Document) -> dict[str, dict[str, float]]:
    """Return mean scores in points, by table and machine."""
    found: dict[str, dict[str, list[float]]] = {}
    for point in document["points"].values():
        cell = found.setdefault(point["settings"]["table"], {}).setdefault(point["settings"]["machine"], [])
        cell.append(100.0 * point["numbers"]["score"])
    return {name: {m: float(np.mean(v)) for m, v in found[name].items()} for name in TABLES if name in found}


def ranks(document: Document) -> dict[str, float]:
    """Return the mean rank of each machine over the tables that all have measured, 1 for the best."""
    table = scores(document)
    kept = [name for name in (*MACHINES[:4], XRFM) if any(name in row for row in table.values())]
    whole = [row for row in table.values() if all(name in row for name in kept)]
    found = np.mean([rankdata([-round(row[name], 6) for name in kept]) for row in whole], axis=0)
    return dict(zip(kept, found.tolist(), strict=True))


def draw(document: Document) -> dict[str, Figure]:
    """Draw scores as differences to the plain machine of each table."""
    table, mean = scores(document), ranks(document)
    best = min(mean, key=mean.__getitem__)
    figure, ax = panels((9.0, 1.6 + 0.3 * len(table)), f"{best}: mean rank {mean[best]:.1f} on {len(table)} tables")
    looks = {BOOSTING: ("^", COLOURS["plain"]), SVM: ("s", COLOURS["twin"]), XRFM: ("D", "#c98a1b")}
    for name, (marker, colour) in (looks | {LEARNED: ("o", COLOURS["DEQ"])}).items():
        gaps = [(row[name] - row[PLAIN], i) for i, row in enumerate(table.values()) if {name, PLAIN} <= row.keys()]
        if gaps:
            shown = [(min(max(gap, -15.0), 30.0), i) for gap, i in gaps]  # what is further off stands at the edge
            ax.scatter(*zip(*shown, strict=True), marker=marker, color=colour, label=f"{name} ({mean[name]:.1f})")
    ax.axvline(0.0, color=INK, linewidth=0.8)
    ax.set_yticks(range(len(table)), list(table))
    ax.invert_yaxis()
    ax.set_xlabel(
        f"points of accuracy or R² ahead of the plain machine (mean rank {mean[PLAIN]:.1f}); ranks in brackets"
    )
    figure.legend(loc="outside lower center", ncols=4)
    return {"": figure}


STUDY = Study(
    shows="machines that learn features beside plain ones, tuned SVM and gradient boosting on 25 tables",
    quick="1 min",
    full="some hours on two cores, of which tuned peers take most",
    points=points,
    draw=draw,
)
