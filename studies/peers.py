"""Our machines with their defaults beside machines with searched settings, on fifteen tables.

Everyone gets the same folds. Peers standardise the columns and search a grid by five inner folds; Gaussian processes
maximise their marginal likelihood, with restarts. ``DEQClassifier()``, ``DEQRegressor()`` and ``DEQGaussianProcess()``
are fitted to the rows as they are, with every argument at its default: a fit searches activation, variances and ridge
by leave-one-out. So do two plainer machines: an RBF kernel, whose width and ridge are searched, and an ordinary layer
of ReLUs with biases, whose ridge is.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn import datasets
from sklearn.base import BaseEstimator, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC, SVR

import notsodeep as nsd

from ._runner import Document, Point, Setup, Study
from ._style import COLOURS, INK, panels

Array = NDArray[Any]
ROWS = 400
"""At most, drawn at random."""
FOLDS = 5
DEQ_MACHINE, PROCESS, NTK, NNGP, RBF_LOO, SVM, KERNEL_RIDGE, GAUSSIAN, BOOSTING, LINEAR = MACHINES = (
    "DEQ",
    "DEQ process",
    "ReLU NTK",
    "ReLU NNGP",
    "RBF, leave-one-out",
    "SVM",
    "kernel ridge",
    "Gaussian process",
    "boosting",
    "linear",
)
RBF_MACHINES = (RBF_LOO, SVM, KERNEL_RIDGE, GAUSSIAN)


# ---- data ----------------------------------------------------------------------------------------------------


def _xor(rng: np.random.Generator) -> tuple[Array, Array]:
    X = rng.uniform(-1, 1, (ROWS, 2))
    return X + 0.1 * rng.standard_normal(X.shape), (X[:, 0] * X[:, 1] > 0).astype(int)


def _spirals(rng: np.random.Generator) -> tuple[Array, Array]:
    """Two arms of one and a half turns."""
    turn, arm = 3 * np.pi * np.sqrt(rng.uniform(0.05, 1, ROWS)), rng.integers(0, 2, ROWS)
    X = turn[:, None] * np.stack([np.cos(turn + np.pi * arm), np.sin(turn + np.pi * arm)], axis=1)
    return X + 0.5 * rng.standard_normal(X.shape), arm


def _spheres(rng: np.random.Generator) -> tuple[Array, Array]:
    """Two shells in five dimensions."""
    X, y = rng.standard_normal((ROWS, 5)), rng.integers(0, 2, ROWS)
    X = (1.0 + 0.5 * y)[:, None] * X / np.linalg.norm(X, axis=1, keepdims=True)
    return X + 0.15 * rng.standard_normal(X.shape), y


def _loaded(name: str) -> Callable[[], tuple[Array, Array]]:
    return lambda: getattr(datasets, f"load_{name}")(return_X_y=True)


def _made(name: str, **options: Any) -> Callable[[], tuple[Array, Array]]:
    return lambda: getattr(datasets, f"make_{name}")(ROWS, random_state=0, **options)


CLASSES: dict[str, Callable[[], tuple[Array, Array]]] = {
    "iris": _loaded("iris"),
    "wine": _loaded("wine"),
    "breast cancer": _loaded("breast_cancer"),
    "digits": _loaded("digits"),
    "two moons": _made("moons", noise=0.25),
    "circles": _made("circles", noise=0.15, factor=0.5),
    "XOR": lambda: _xor(np.random.default_rng(0)),
    "spirals": lambda: _spirals(np.random.default_rng(0)),
    "spheres": lambda: _spheres(np.random.default_rng(0)),
    "clusters": _made("classification", n_features=15, n_informative=6, n_classes=3, flip_y=0.05),
}
REGRESSIONS: dict[str, Callable[[], tuple[Array, Array]]] = {
    "diabetes": _loaded("diabetes"),
    "Friedman 1": _made("friedman1", noise=1.0),
    "Friedman 2": _made("friedman2", noise=60.0),
    "Friedman 3": _made("friedman3", noise=0.1),
    "sparse linear": _made("sparse_uncorrelated", n_features=20),
}
DATASETS = {**CLASSES, **REGRESSIONS}


def load(name: str, rows: int = ROWS) -> tuple[Array, Array]:
    """Rows and targets of a table, at most so many rows."""
    X, y = DATASETS[name]()
    chosen = np.random.default_rng(0).permutation(len(X))[:rows]
    return X[chosen], y[chosen]


# ---- machines ------------------------------------------------------------------------------------------------


def _searched(model: Any, grid: Mapping[str, Sequence[Any]], **options: Any) -> Any:
    name = type(model).__name__.lower()
    named = {f"{name}__{key}": list(values) for key, values in grid.items()}
    return GridSearchCV(make_pipeline(StandardScaler(), model), named, cv=FOLDS, **options)


def _same_class(model: Any, X: Array, T: Array) -> float:
    return float(np.mean(model.predict(X).argmax(1) == T.argmax(1)))


class LeaveOneOutRidge(BaseEstimator):  # type: ignore[misc]
    """Ridge regression with an RBF kernel; width and ridge have the least squared leave-one-out error."""

    def __init__(self, widths: Array) -> None:
        self.widths = widths

    def fit(self, X: Array, y: Array) -> LeaveOneOutRidge:
        """Search the widths, and the 37 ridges of our machines for each."""
        self.rows_, self.mean_, best = X, y.mean(0), np.inf
        targets = (y - self.mean_).reshape(len(y), -1)
        for gamma in self.widths:
            values, vectors = np.linalg.eigh(rbf_kernel(X, gamma=gamma))
            for ridge in 10.0 ** np.linspace(-8.0, 1.0, 37):
                inverse = (vectors / (values.clip(0.0) + ridge)) @ vectors.T
                dual = inverse @ targets
                error = np.mean((dual / inverse.diagonal()[:, None]) ** 2)
                if error < best:
                    best, self.gamma_, self.dual_ = error, gamma, dual.reshape(y.shape)
        return self

    def predict(self, X: Array) -> Array:
        """Predict targets."""
        return self.mean_ + rbf_kernel(X, self.rows_, gamma=self.gamma_) @ self.dual_


def _with_ones(X: Array) -> Array:
    return np.hstack([X, np.ones((len(X), 1))])


def machine(name: str, classes: bool, columns: int) -> Any:
    """A machine that is not fitted yet; an RBF kernel has widths around the root of the number of columns."""
    widths = np.array([0.1, 0.3, 1.0, 3.0, 10.0]) / columns
    leaves, penalties = {"max_leaf_nodes": [4, 8, 31], "learning_rate": [0.05, 0.15]}, np.logspace(-3, 3, 7)
    bend = RBF(columns**0.5, (1e-2, 1e3))
    options = {"n_restarts_optimizer": 2, "random_state": 0}
    if name == DEQ_MACHINE:
        return nsd.DEQClassifier() if classes else nsd.DEQRegressor()
    if name == PROCESS:
        return nsd.DEQGaussianProcess()
    if name in (NTK, NNGP):
        layer: Any = {"network": nsd.ENN(["relu"]), "kernel": "ntk" if name == NTK else "ck", "scale": None}
        model = nsd.DEQClassifier(**layer) if classes else nsd.DEQRegressor(**layer)
        return make_pipeline(nsd.Standardiser("columns"), FunctionTransformer(_with_ones), model)
    if name == RBF_LOO:
        return make_pipeline(StandardScaler(), LeaveOneOutRidge(widths))
    if name == SVM:
        grid = {"C": [0.1, 1.0, 10.0, 100.0, 1000.0], "gamma": widths}
        return _searched(SVC(), grid) if classes else _searched(SVR(), grid | {"epsilon": [0.03, 0.2]})
    if name == KERNEL_RIDGE:
        ridges = {"alpha": np.logspace(-4, 1, 6), "gamma": widths}
        return _searched(KernelRidge(kernel="rbf"), ridges, **({"scoring": _same_class} if classes else {}))
    if name == GAUSSIAN and classes:
        return make_pipeline(StandardScaler(), GaussianProcessClassifier(ConstantKernel() * bend, random_state=0))
    if name == GAUSSIAN:
        covariance = ConstantKernel() * bend + WhiteKernel(0.1, (1e-6, 10.0))
        return make_pipeline(StandardScaler(), GaussianProcessRegressor(covariance, normalize_y=True, **options))
    if name == BOOSTING:
        kind: Any = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
        return _searched(kind(random_state=0, min_samples_leaf=10), leaves)
    if name == LINEAR and classes:
        return _searched(LogisticRegression(max_iter=2000), {"C": penalties})
    return _searched(Ridge(), {"alpha": penalties})


def _fitted(name: str, X: Array, y: Array, classes: bool) -> Any:
    model = machine(name, classes, X.shape[1])
    if name in (KERNEL_RIDGE, RBF_LOO) and classes:
        return model.fit(X, np.eye(int(y.max()) + 1)[y])
    scaled = name in (PROCESS, GAUSSIAN) or classes
    shift, unit = (0.0, 1.0) if scaled else (y.mean(), y.std())  # the widths of SVR's tubes are in these units
    return model.fit(X, y if scaled else (y - shift) / unit)


def measure(dataset: str, machine: str, repeat: int, rows: int, folds: int) -> dict[str, Any]:
    """Scores of one machine on the folds of one repeat: accuracy and log-loss, or R2; and the seconds of a fit."""
    torch.set_num_threads(1)
    X, y = load(dataset, rows)
    classes = dataset in CLASSES
    split = (StratifiedKFold if classes else KFold)(folds, shuffle=True, random_state=repeat)
    scores, losses, seconds = [], [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of peers whose parameter is at a bound
        for train, test in split.split(X, y):
            started = time.perf_counter()
            model = _fitted(machine, X[train], y[train], classes)
            seconds.append(time.perf_counter() - started)
            predicted = model.predict(X[test])
            if not classes:
                shift, unit = (0.0, 1.0) if machine in (PROCESS, GAUSSIAN) else (y[train].mean(), y[train].std())
                wrong = y[test] - shift - unit * predicted
                scores.append(1.0 - float((wrong**2).mean() / y[test].var()))
                continue
            predicted = predicted.argmax(1) if predicted.ndim > 1 else predicted
            scores.append(float(np.mean(predicted == y[test])))
            if machine == SVM:
                model = CalibratedClassifierCV(clone(model.best_estimator_), ensemble=False).fit(X[train], y[train])
            if hasattr(model, "predict_proba"):
                losses.append(float(log_loss(y[test], model.predict_proba(X[test]), labels=np.unique(y))))
    return {"scores": scores, "losses": losses or None, "fit_seconds": float(np.median(seconds))}


def points(setup: Setup) -> list[Point]:
    """One point for each data set, machine and repeat."""
    rows, folds, repeats = (90, 3, 1) if setup.quick else (ROWS, FOLDS, 2)
    chosen = ("iris", "two moons", "XOR", "Friedman 1", "diabetes") if setup.quick else tuple(DATASETS)
    order = (DEQ_MACHINE, RBF_LOO, NTK, NNGP, PROCESS, GAUSSIAN, BOOSTING, SVM, KERNEL_RIDGE, LINEAR)
    return [
        Point.of(
            f"{dataset}/{name}/{repeat}",
            {"dataset": dataset, "machine": name, "repeat": repeat, "rows": rows, "folds": folds},
            measure,
        )
        for name in order
        for dataset in sorted(chosen, key=lambda dataset: dataset != "digits")
        for repeat in range(repeats)
        if name != PROCESS or dataset in REGRESSIONS
    ]


# ---- what the numbers say ------------------------------------------------------------------------------------


def means(document: Document, quantity: str = "scores") -> dict[str, dict[str, float]]:
    """By data set and machine: means over all folds, of scores in points (hundredths)."""
    found: dict[str, dict[str, list[float]]] = {}
    for point in document["points"].values():
        values = point["numbers"][quantity]
        if values is not None:
            cell = found.setdefault(point["settings"]["dataset"], {}).setdefault(point["settings"]["machine"], [])
            cell.extend(np.atleast_1d(values).tolist())
    unit = 100.0 if quantity == "scores" else 1.0
    return {name: {m: unit * float(np.mean(v)) for m, v in found[name].items()} for name in DATASETS if name in found}


def ranks(document: Document) -> dict[str, float]:
    """The mean rank of each machine by its mean score, 1 for the best; the DEQ process is left out.

    It takes part in regressions alone, so that ranks with it would not be of the same machines everywhere.
    """
    table = means(document)
    kept = [name for name in MACHINES if name != PROCESS and all(name in row for row in table.values())]
    found = np.mean([rankdata([-row[name] for name in kept]) for row in table.values()], axis=0)
    return dict(zip(kept, found.tolist(), strict=True))


def behind(row: Mapping[str, float], name: str = DEQ_MACHINE) -> float:
    """Points that a machine lacks to the best RBF machine; negative where it is ahead."""
    return max(row[peer] for peer in RBF_MACHINES if peer in row) - row[name]


def draw(document: Document) -> dict[str, Figure]:
    """Scores as differences to the best tuned RBF machine of each table."""
    table = means(document)
    near = sum(behind(row) <= 1.0 for row in table.values())
    says = f"with its defaults, the DEQ machine is at most a point behind the best tuned RBF machine on {near} of "
    figure, ax = panels((9.0, 1.6 + 0.36 * len(table)), says + f"{len(table)} tables")
    looks: dict[str, tuple[str, str]] = {
        LINEAR: ("x", "0.6"),
        NTK: ("<", "#7a5c3e"),
        NNGP: (">", "#7a5c3e"),
        RBF_LOO: ("P", "#c98a1b"),
        BOOSTING: ("^", COLOURS["plain"]),
        GAUSSIAN: ("v", "#8a63b8"),
        KERNEL_RIDGE: ("D", "#c98a1b"),
        SVM: ("s", COLOURS["twin"]),
        PROCESS: ("*", "#17a2b8"),
        DEQ_MACHINE: ("o", COLOURS["DEQ"]),
    }
    least = -12.0  # points; what is further behind stands at the edge
    for name, (marker, colour) in looks.items():
        rows = [(i, -behind(row, name)) for i, row in enumerate(table.values()) if name in row]
        own = name in (DEQ_MACHINE, PROCESS)
        ax.scatter(
            [max(gap, least) for _, gap in rows],
            [i for i, _ in rows],
            s=70 if own else 30,
            marker=marker,
            color=colour,
            label=f"{name} (default)" if own else name,
            zorder=3 if own else 2,
            alpha=1.0 if own else 0.8,
        )
    ax.axvline(0.0, color=INK, linewidth=0.8)
    ax.axvspan(-1.0, 0.0, color=INK, alpha=0.07)
    ax.set_yticks(range(len(table)), list(table))
    ax.invert_yaxis()
    ax.set_xlabel("points of accuracy or of R² ahead of the best RBF machine (at the left edge: 12 or more behind)")
    ax.set_xlim(least - 0.5)
    figure.legend(loc="outside lower center", ncols=4)
    return {"": figure}


STUDY = Study(
    shows="kernel machines with their defaults beside plain layers, RBF machines, boosting",
    quick="1 min",
    full="30 min of one core; --jobs helps",
    points=points,
    draw=draw,
)
