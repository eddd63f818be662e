"""Ridge classification of all 60,000 images with exact kernels, beside what else could be used: time, memory, accuracy.

    python -m benchmarks.mnist_ridge --data FOLDER --dataset mnist --machines relu-ck relu-ntk tanh-ck tanh-ntk
    python -m benchmarks.mnist_ridge --data FOLDER --dataset fashion_mnist --machines relu-ck svc kernel-ridge
    python -m benchmarks.mnist_ridge --data FOLDER --device cuda --loo --machines relu-ck relu-ntk tanh-ck tanh-ntk
    python -m benchmarks.mnist_ridge --data FOLDER --threads 2 --n 2000 5000 10000 20000 --test 2000 \\
        --machines relu-ntk default kernel-ridge svc gp-classifier gpytorch
    python -m benchmarks.mnist_ridge --data FOLDER --threads 1 --n 500 1000 2000 5000 --test 2000 \\
        --machines relu-ntk relu-ntk-regressor kernel-ridge
    python -m benchmarks.mnist_ridge --data FOLDER --n 2000 --test 1000 --peer-n 2000 --width 512
    taskset -c 0,1 python -m benchmarks.mnist_ridge --data FOLDER --threads 2 --solver cg --tol 1e-3 --machines tanh-ntk

Every machine runs in a process of its own, so that the peak of its memory is its own. Peers that hold a dense matrix
get the first --peer-n images. Named machines are plain, with given variances and ridge; a "regressor" has the targets
of "kernel-ridge", +1 and -1; "default" is DEQClassifier() as it comes, which chooses variances and ridge. --loo also
computes leave-one-out predictions of all rows. By conjugate gradients the triangle of 60,000 rows in float32 takes 7.2
GB (7.45 GB with the diagonal blocks); nothing else of that size is held.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import notsodeep as nsd
from notsodeep.errors import MissingExtraError
from studies._data import load

OURS = ("relu-ck", "relu-ntk", "tanh-ck", "tanh-ntk", "default")
REGRESSORS = ("relu-ck-regressor", "relu-ntk-regressor")
PEERS = ("features-ck", "features-ntk", "svc", "kernel-ridge", "gp-classifier", "gpytorch")


def images(options: argparse.Namespace, n: int, precision: Any) -> tuple[Any, ...]:
    """Training and test images of mean squared norm one, with labels."""
    data = load(options.dataset, options.data).first(n).standardised()
    test = slice(0, options.test)
    return data.X_train.astype(precision), data.y_train, data.X_test[test].astype(precision), data.y_test[test]


def exact(options: argparse.Namespace, name: str) -> Any:
    cg = nsd.solve.CG(tol=options.tol, rank=options.rank, dtype=options.dtype)
    common = {
        "solver": cg if options.solver == "cg" else options.solver,
        "device": options.device,
        "client": cluster(options.scheduler),
    }
    if name == "default":
        return nsd.DEQClassifier(**common)
    activation, kernel = name.split("-")[:2]
    plain = {"sigma_b2": None, "sigma_c2": 0.0, "scale": None, "fit_intercept": False}
    given = {"activation": activation, "kernel": kernel, "ridge": options.ridge, **plain, **common}
    return _OneHot(nsd.DEQRegressor(**given)) if name in REGRESSORS else nsd.DEQClassifier(**given)


def cluster(address: str | None) -> Any:
    """The client of a cluster, if one is named."""
    if address is None:
        return None
    from distributed import Client

    return Client(address)


def peer(options: argparse.Namespace, name: str) -> Any:
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import RidgeClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import SVC

    if name.startswith("features"):
        kernel = name.split("-")[1]
        return make_pipeline(nsd.DEQFeatures("relu", kernel=kernel, width=options.width), RidgeClassifier())
    if name == "svc":
        return SVC(C=10.0, gamma=2.0)  # rows of norm one: a width of the order of their distances
    if name == "kernel-ridge":
        return _OneHot(KernelRidge(alpha=options.ridge, kernel="rbf", gamma=2.0))
    if name == "gp-classifier":
        return GaussianProcessClassifier(16.0 * RBF(0.5), optimizer=None)  # the width of the others, Laplace's method
    return _OneHot(_GPyTorch(options))


class _OneHot:
    """A regressor on +1 and -1 as a classifier."""

    def __init__(self, regressor: Any) -> None:
        self.regressor = regressor

    def fit(self, X: Any, y: Any) -> _OneHot:
        self.regressor.fit(X, 2.0 * np.eye(10)[y] - 1.0)
        return self

    def predict(self, X: Any) -> Any:
        return self.regressor.predict(X).argmax(1)


class _GPyTorch:
    """gpytorch's exact Gaussian process on the same kernel matrix: its posterior mean, by its conjugate gradients.

    Beyond 800 rows it takes pivoted Cholesky of rank 15 as preconditioner; the tolerance is ours.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def fit(self, X: Any, T: Any) -> None:
        try:
            import gpytorch
            from linear_operator import to_linear_operator
        except ImportError:
            raise MissingExtraError("gpytorch", "dev") from None
        self.X = X
        K = torch.from_numpy(nsd.ck(nsd.DEQ("relu", 0.2), X))
        prior = gpytorch.distributions.MultivariateNormal(torch.zeros(len(X)).double(), to_linear_operator(K))
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = self.options.ridge * float(K.diagonal().mean())
        with torch.no_grad(), gpytorch.settings.cg_tolerance(self.options.tol):
            covariance = likelihood(prior).lazy_covariance_matrix
            self.weights = covariance.solve(torch.from_numpy(T)).numpy()

    def predict(self, X: Any) -> Any:
        return nsd.ck(nsd.DEQ("relu", 0.2), X, self.X) @ self.weights


def clocked(work: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Seconds on the wall and of the processor, the least of some repeats."""
    found = []
    for _ in range(repeats):
        wall, busy = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - wall, time.process_time() - busy))
    walls, cpus = zip(*found, strict=True)
    return round(min(walls), 3), round(min(cpus), 3)


def measure(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """One machine, in this process."""
    dense = name in ("svc", "kernel-ridge", "gp-classifier", "gpytorch")
    n = min(options.n[0], options.peer_n) if dense else options.n[0]
    if options.threads:
        torch.set_num_threads(options.threads)
    X, y, test, labels = images(options, n, np.float32 if name.startswith("features") else np.float64)
    model = exact(options, name) if name in (*OURS, *REGRESSORS) else peer(options, name)
    few = 3000 if options.device == "cuda" else 200  # loads libraries, and compiles for a device: once in a session
    model.fit(X[:few], y[:few])
    model.predict(test[:100])
    repeats = 5 if n <= 5000 else 1
    wall, fit_cpu = clocked(lambda: model.fit(X, y), repeats)
    found = {"machine": name, "dataset": options.dataset, "n": n, "fit_s": wall}
    if options.steps:
        print(json.dumps(found | {"record": getattr(model, "record_", None)}), flush=True)
    right = float((model.predict(test) == labels).mean())
    wall, predict_cpu = clocked(lambda: model.predict(test), repeats)
    if options.loo and name in OURS:
        loo_s, _ = clocked(lambda: model.loo_, 1)
        wrong = float((model.loo_.argmax(1) != y).mean())
        found |= {"loo_s": loo_s, "loo_accuracy": round(100.0 * (1.0 - wrong), 2)}
    return found | {
        "predict_s": wall,
        "cpu_s": [fit_cpu, predict_cpu],  # of all cores: a busy machine changes them less
        "accuracy": round(100.0 * right, 2),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "record": getattr(model, "record_", None),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=None, help="folder of the data sets")
    parser.add_argument("--dataset", default="mnist", choices=("mnist", "fashion_mnist"))
    parser.add_argument("--n", type=int, nargs="+", default=[60_000])
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--peer-n", type=int, default=20_000)
    parser.add_argument("--machines", nargs="+", choices=(*OURS, *REGRESSORS, *PEERS), default=(*OURS, *PEERS))
    parser.add_argument("--ridge", type=float, default=1e-3)
    parser.add_argument("--solver", default="auto", choices=("auto", "cholesky", "cg"))
    parser.add_argument("--loo", action="store_true", help="also the leave-one-out predictions of all rows")
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--rank", type=int, default=None)
    parser.add_argument("--dtype", default="float32", choices=("auto", "float32", "float64"))
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--scheduler", default=None, help="of a Dask cluster that computes the exact machines")
    parser.add_argument("--device", default=None)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--steps", action="store_true", help="also print what is known before predictions are made")
    parser.add_argument("--here", action="store_true", help="one machine in this process")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options, options.machines[0])), flush=True)
        return
    for n in options.n:
        for name in options.machines:
            last = ["--machines", name, "--n", str(n), "--here"]  # a later option replaces an earlier one
            if subprocess.run([sys.executable, "-m", "benchmarks.mnist_ridge", *sys.argv[1:], *last]).returncode:
                print(json.dumps({"machine": name, "n": n, "failed": True}), flush=True)


if __name__ == "__main__":
    main()
