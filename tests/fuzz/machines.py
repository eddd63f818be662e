"""Random kernel machines, and classifiers of many classes."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray

import notsodeep as nsd
from fuzz.arguments import JUNK
from helpers import solved, tolerance, ulps
from notsodeep.errors import NotSoDeepError
from notsodeep.networks import KERNELS

Array = NDArray[Any]


def junk(rng: np.random.Generator) -> Any:
    """Something that is seldom what was asked for."""
    return JUNK[int(rng.integers(len(JUNK)))]


def refused(call: Callable[[], Any]) -> Any:
    """What a call returns, or ``None`` where it was refused by the library, or by scikit-learn's own checks."""
    try:
        return call()
    except NotSoDeepError:
        return None
    except (TypeError, ValueError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        if "sklearn" not in Path(last).parts:
            raise
        return None


MACHINES = (nsd.DEQClassifier, nsd.DEQRegressor, nsd.DEQGaussianProcess, nsd.DEQFeatures)
OPTIONS: dict[str, tuple[Any, ...]] = {
    "activation": ("relu", "tanh", "silu", "erf", "elu"),
    "sigma_a2": (0.0, 0.05, 0.15, 0.2),
    "sigma_c2": (0.0, 0.3),
    "kernel": KERNELS,
    "ridge": (1e-6, 1e-3, 1.0, "loo", "gcv"),
    "solver": ("auto", "cholesky", "eigh", nsd.solve.CG(), nsd.solve.CG(tol=1e-2, rank=5, dtype="float32")),
    "width": (16, 100),
    "noise": (1e-3, 0.1),
    "random_state": (0, 1),
}


def a_machine(rng: np.random.Generator) -> Any:
    """An estimator with a few settings of its own, one of which may be wrong."""
    kind = MACHINES[int(rng.integers(len(MACHINES)))]
    known = [name for name in kind().get_params() if name not in ("client", "progress")]
    chosen = {
        name: OPTIONS[name][int(rng.integers(len(OPTIONS[name])))]
        for name in known
        if name in OPTIONS and rng.random() < 0.4
    }
    if rng.random() < 0.3:
        chosen[str(rng.choice(known))] = junk(rng)
    return kind(**chosen)


def some_data(rng: np.random.Generator) -> tuple[Array, Array]:
    """Rows of ordinary or absurd scale, duplicates among them, and two or three classes."""
    n, p = int(rng.choice([2, 5, 20, 50])), int(rng.choice([1, 3, 8]))
    X = rng.standard_normal((n, p)) * float(rng.choice([1.0, 1e-3, 30.0, 10.0 ** rng.uniform(-200, 200)]))
    if rng.random() < 0.3:
        X[n // 2 :] = X[: n - n // 2]
    y = rng.integers(0, int(rng.integers(2, 4)), n)
    y[:2] = 0, 1
    if rng.random() < 0.15:  # numbers of any size to regressors, names to classifiers
        y = y * 10.0 ** rng.uniform(-300, 300)
    return (X.astype(np.float32) if rng.random() < 0.2 and np.abs(X).max() < 1e30 else X), y


KINDS: tuple[Callable[[Array], Any], ...] = (
    lambda a: torch.tensor(a, dtype=torch.float64).requires_grad_(),
    lambda a: torch.tensor(a, dtype=torch.bfloat16),
    lambda a: np.ma.array(a, mask=a == a.flat[0]),
    lambda a: a.astype(object),
    lambda a: np.where(np.arange(a.size).reshape(a.shape) % 2, a.astype(object), "a name"),
    lambda a: np.where(np.arange(a.size).reshape(a.shape) % 5, a.astype(object), None),
    lambda a: a.astype(str),
    lambda a: np.where(a > 0, 1e308, -1e308),
    lambda a: np.asfortranarray(a)[::-1],
    lambda a: np.nan_to_num(a, posinf=0, neginf=0).clip(-1e6, 1e6).astype(np.int64).astype("datetime64[s]"),
)


def of_another_kind(rng: np.random.Generator, array: Array) -> Any:
    """Rows or targets as tensors with gradients, short floats, text, objects, or absurd numbers; seldom."""
    return KINDS[int(rng.integers(len(KINDS)))](array) if rng.random() < 0.1 else array


def machine(rng: np.random.Generator) -> int:
    """Fit, predict, save, load and predict again; how many rows were predicted."""
    model, (X, y) = a_machine(rng), some_data(rng)
    rows, targets = of_another_kind(rng, X), of_another_kind(rng, y)
    if refused(lambda: model.fit(rows, targets)) is None:
        return 0
    transforms = isinstance(model, nsd.DEQFeatures)
    read = (rows,) if transforms else (rows, targets)
    dates = [isinstance(part, np.ndarray) and part.dtype.kind == "M" for part in read]
    assert not any(dates), f"dates were taken for numbers: {model!r}"
    call = "transform" if transforms else "predict"
    found = refused(lambda: np.asarray(getattr(model, call)(X)))
    if found is None:
        return 0
    assert len(found) == len(X), f"{len(found)} rows of {len(X)}: {model!r}"
    assert np.isfinite(found.astype(float)).all(), f"not finite: {model!r}"
    if hasattr(model, "predict_proba"):
        shares = model.predict_proba(X)
        assert np.abs(shares.sum(1) - 1.0).max() < 1e-6, f"shares: {model!r}"  # scores may be in single precision
    kept = X.copy()
    X *= 0.5
    assert np.array_equal(getattr(model, call)(kept), found), f"changes with the caller's rows: {model!r}"
    X[:] = kept
    if refused(lambda: model.fit(X[: len(X) // 2 + 1] * np.nan, y[: len(X) // 2 + 1])) is None:
        assert np.array_equal(getattr(model, call)(X), found), f"changes with a fit that failed: {model!r}"
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(getattr(again, call)(X), found), f"differs after pickling: {model!r}"
    return len(X)


def classes(rng: np.random.Generator) -> tuple[int, float]:
    """A classifier of many classes, few rows of each, against the equations; how many rows, and seconds to fit."""
    n, p = int(rng.choice([60, 200, 500])), int(rng.choice([2, 5, 20]))
    X, count = rng.standard_normal((n, p)), int(rng.integers(n // 4, n + 1))
    codes = np.concatenate([np.arange(count), rng.integers(0, count, n - count)])[rng.permutation(n)]
    names = NAMES[int(rng.integers(len(NAMES)))](count)
    deq, kernel = nsd.DEQ(str(rng.choice(["relu", "tanh", "erf"])), 0.15, 0.8, 0.1), str(rng.choice(["ck", "ntk"]))
    ridge, intercept = float(10.0 ** rng.uniform(-3, 0)), bool(rng.random() < 0.7)
    solver: Any = "auto" if rng.random() < 0.7 else nsd.solve.CG(tol=1e-9)
    model = nsd.DEQClassifier(
        network=deq, kernel=kernel, ridge=ridge, scale=None, fit_intercept=intercept, solver=solver
    )
    start = time.process_time()
    model.fit(X, names[codes])
    seconds = time.process_time() - start
    label = f"{count} classes of {n} rows, {model!r}"
    assert np.array_equal(model.classes_, np.unique(names)), label
    fresh = rng.standard_normal((15, p))
    outputs, shares, told = model.decision_function(fresh), model.predict_proba(fresh), model.predict(fresh)
    assert outputs.shape == shares.shape == (len(fresh), count), f"{outputs.shape}, {shares.shape}: {label}"
    assert np.abs(shares.sum(1) - 1.0).max() < ulps(8 * count), f"shares: {label}"
    assert np.array_equal(told, model.classes_[outputs.argmax(1)]), f"not the largest output: {label}"
    order = np.argsort(names)  # of the classes
    signs = np.where(codes[:, None] == order, 1.0, -1.0)
    wanted = _ridge_regression(deq, kernel, ridge, intercept, X, signs, fresh)
    off = outputs - wanted
    off -= off.mean(0) * intercept  # each class has a shift of its own, from the calibration
    # the condition of the equations; conjugate gradients end at a residual of 1e-9
    known = tolerance(amplified=10.0 * n / ridge) if solver == "auto" else solved(1e-9, 1.0 - ridge / n)
    assert np.abs(off).max() <= known, f"the equations differ by {np.abs(off).max():.1e}, not {known:.1e}: {label}"
    return n, seconds


NAMES: tuple[Callable[[int], Array], ...] = (
    np.arange,
    lambda n: np.arange(n)[::-1] * 10**12 - 7,
    lambda n: np.linspace(-1.0, 1.0, n).astype("U9"),
    lambda n: np.array([f"class {k}" for k in range(n)], dtype=object),
)


def _ridge_regression(
    deq: nsd.DEQ, kernel: Any, ridge: float, intercept: bool, X: Array, targets: Array, fresh: Array
) -> Array:
    """The outputs at fresh rows by Cholesky factors of the whole matrix."""
    K = nsd.kernels_of(deq, np.vstack([X, fresh]), kernels=[kernel])[kernel]
    own, mean = K[: len(X), : len(X)], targets.mean(0) * intercept
    factor = scipy.linalg.cho_factor(own + ridge * np.trace(own) / len(X) * np.eye(len(X)))
    return np.asarray(mean + K[len(X) :, : len(X)] @ scipy.linalg.cho_solve(factor, targets - mean))
