"""Machines that learn features beside plain ones, tuned SVM and gradient boosting, on tables of 150 to 5,000 rows.

Everyone gets the same training and test rows. SVM and boosting search the grids of the study ``peers`` by five inner
folds of at most 600 training rows and are fitted to all; beyond 200 columns boosting keeps its defaults. Our machines
have all other arguments at their defaults. xRFM, the package of the authors of this idea, takes part where it is
installed: its bandwidth, its ridge and whether M is diagonal are chosen on a fifth of the training rows, which its own
early stopping uses as well.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
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
from sklearn.preprocessing import StandardScaler

import notsodeep as nsd

from . import _data
from ._runner import Document, Point, Setup, Study
from ._style import COLOURS, INK, panels
from .peers import BOOSTING, SVM, Array, machine

LEARNED, PLAIN, XRFM = "learned features", "plain", "xRFM"
MACHINES = (LEARNED, PLAIN, SVM, BOOSTING) + ((XRFM,) if importlib.util.find_spec("xrfm") else ())
SEARCHED = 600
"""Training rows at most on which peers search their grids."""


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
    "clusters + 50": (5000, _made("classification", 50, n_features=15, n_informative=6, n_classes=3, flip_y=0.05)),
    "Hastie": (4000, _made("hastie_10_2")),
    "MNIST": (1500, _file("mnist")),
    "Fashion-MNIST": (1500, _file("fashion_mnist")),
    "CIFAR-10 features": (1500, _file("cifar10_vgg")),
}
QUICK = ("iris", "Friedman 1 + 20", "product of 5", "circles + 10")


def load(name: str, rows: int, data: Any = None) -> tuple[Array, Array]:
    """Return rows and targets of a table, at most so many rows, drawn at random."""
    size, make = TABLES[name]
    X, y = make(min(size, max(rows, 100)), data)
    chosen = np.random.default_rng(0).permutation(len(X))[: min(rows, size)]
    return X[chosen], y[chosen]


# ---- measurement ---------------------------------------------------------------------------------------------


def _tuned(name: str, X: Array, y: Array, classes: bool) -> Any:
    """Return a peer of the study ``peers``, searched on some of the rows and fitted to all."""
    search = machine(name, classes, X.shape[1]).set_params(refit=False)
    if name == BOOSTING and X.shape[1] > 200:
        return search.estimator.fit(X, y)
    few = slice(None)
    if len(X) > SEARCHED:
        few = train_test_split(np.arange(len(X)), train_size=SEARCHED, random_state=0, stratify=y if classes else None)[
            0
        ]
    search.fit(X[few], y[few])
    return search.estimator.set_params(**search.best_params_).fit(X, y)


class _XRFM:
    """xRFM on standardised columns in float32, with the best of twelve settings on the rows that it validates on."""

    def __init__(self, X: Array, y: Array, classes: bool) -> None:
        from xrfm import xRFM  # type: ignore[import-not-found]

        self.scaler = StandardScaler().fit(X)
        stratify = y if classes else None
        fit, held, own, hidden = train_test_split(self._rows(X), y, test_size=0.2, random_state=0, stratify=stratify)
        targets = [torch.as_tensor(v) if classes else torch.as_tensor(v).float()[:, None] for v in (own, hidden)]
        found = []
        for diagonal, bandwidth, ridge in itertools.product((False, True), (3.0, 10.0, 30.0), (1e-3, 1e-1)):
            inner = {"kernel": "l2", "bandwidth": bandwidth, "exponent": 1.0, "diag": diagonal}
            options = {"reg": ridge, "iters": 5, "verbose": False, "early_stop_rfm": True}
            params = {"model": inner | {"bandwidth_mode": "constant"}, "fit": options}
            model = xRFM(rfm_params=params, tuning_metric="brier" if classes else "mse", device="cpu")
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                model.fit(fit, targets[0], held, targets[1])
            if classes:
                p = np.asarray(model.predict_proba(held))
                error = float(((p - np.eye(p.shape[1])[hidden]) ** 2).sum())
            else:
                error = float(((np.ravel(model.predict(held)) - hidden) ** 2).sum())
            found.append((error, len(found), model))
        self.model = min(found)[2]

    def _rows(self, X: Array) -> torch.Tensor:
        return torch.as_tensor(self.scaler.transform(X)).float()

    def predict(self, X: Array) -> Array:
        """Predict at rows X."""
        return np.ravel(self.model.predict(self._rows(X)))


def _fitted(name: str, X: Array, y: Array, classes: bool) -> Any:
    if name in (LEARNED, PLAIN):
        kind: Any = nsd.DEQClassifier if classes else nsd.DEQRegressor
        return kind(features="auto" if name == LEARNED else None).fit(X, y)
    return _XRFM(X, y, classes) if name == XRFM else _tuned(name, X, y, classes)


def measure(table: str, machine: str, split: int, rows: int, data: Any = None) -> dict[str, Any]:
    """Return accuracy or R2 of one machine on three tenths of the rows, and the seconds of the processor in its fit."""
    torch.set_num_threads(1)
    X, y = load(table, rows, data)
    classes = y.dtype.kind in "iu" or len(np.unique(y)) < 20
    codes = np.unique(y, return_inverse=True)[1] if classes else y
    stratify = codes if classes else None
    X, test, t, truth = train_test_split(X, codes, test_size=0.3, random_state=split, stratify=stratify)
    level, unit = (0.0, 1.0) if classes else (t.mean(), t.std())  # the widths of SVR's tubes are in these units
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = _fitted(machine, X, t if classes else (t - level) / unit, classes)
    seconds, predicted = time.process_time() - started, np.ravel(model.predict(test))
    chosen = getattr(model, "best_", {})
    learned = {"features": chosen.get("features"), "rounds": chosen.get("rounds", 0)} if machine == LEARNED else {}
    if classes:
        return {"score": float(np.mean(predicted == truth)), "seconds": seconds, **learned}
    wrong = truth - level - unit * predicted
    return {"score": 1.0 - float((wrong**2).mean() / truth.var()), "seconds": seconds, **learned}


def points(setup: Setup) -> list[Point]:
    """Return one point for each table, split and machine: three splits up to 1,000 rows, one above."""
    chosen = QUICK if setup.quick else tuple(TABLES)
    sizes = {table: min(200, TABLES[table][0]) if setup.quick else TABLES[table][0] for table in chosen}
    return [
        Point.of(
            f"{table}/{name}/{split}",
            {"table": table, "machine": name, "split": split, "rows": sizes[table]},
            measure,
            data=setup.data,
        )
        for split in range(1 if setup.quick else 3)
        for table in sorted(chosen, key=sizes.__getitem__)
        for name in MACHINES
        if split == 0 or sizes[table] <= 1000
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
    shows="machines that learn features beside plain ones, tuned SVM and gradient boosting on 26 tables",
    quick="1 min",
    full="about an hour of one core",
    points=points,
    draw=draw,
)
