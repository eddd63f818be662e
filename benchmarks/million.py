"""A million rows of dimension 784 as a stream: random features of the twin and a linear model.

    python -m benchmarks.million --width 2048
    python -m benchmarks.million --rows 100000 --width 512
    python -m benchmarks.million --method kernel --rows 4000

Two Gaussian classes, drawn in parts into a memory-mapped float32 file (3.1 GB for a million rows). Features see it in
parts, and ``SGDClassifier.partial_fit`` sees the features. The peak of memory is that of the process, pages of the
mapped file included; ``anonymous_gib`` is the same without them. Accuracy is on 10,000 new rows; the exact kernel on
few rows is there to compare with.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline

import notsodeep as nsd

PART = 50_000


def mixture(options: argparse.Namespace) -> nsd.GaussianMixture:
    """Two classes that differ in their means, and in one covariance of two levels."""
    p, r = options.p, options.separation
    means = np.zeros((2, p))
    means[0, 0], means[1, 0] = -r, r
    return nsd.GaussianMixture(means, [np.ones(p), np.r_[np.full(p // 2, 1.1), np.full(p - p // 2, 0.9)]], [1, 1])


def write(mix: nsd.GaussianMixture, path: Path, rows: int) -> np.ndarray:
    """The rows on disk, classes in random order, and their labels."""
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, mix.p))
    labels = np.empty(rows, dtype=np.int64)
    for start in range(0, rows, PART):
        stop = min(start + PART, rows)
        X, y = mix.sample(stop - start, seed=1 + start)
        order = np.random.default_rng(start).permutation(stop - start)
        file[start:stop], labels[start:stop] = X[order], y[order]
    file.flush()
    return labels


def anonymous_peak(seen: list[float]) -> None:
    """Remember the memory of this process that is no mapped file, in GiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            seen.append(int(line.split()[1]) / 2**20)


def fit(options: argparse.Namespace, X: Any, y: np.ndarray, seen: list[float]) -> Any:
    if options.method == "kernel":
        return nsd.DEQClassifier(options.activation, kernel=options.kernel, ridge=options.ridge).fit(X, y)
    features = nsd.DEQFeatures(options.activation, kernel=options.kernel, width=options.width).fit(X[:PART])
    model = SGDClassifier(loss="log_loss", alpha=1e-6, random_state=0)
    for start in range(0, len(X), PART):
        model.partial_fit(features.transform(X[start : start + PART]), y[start : start + PART], classes=[0, 1])
        anonymous_peak(seen)
    return make_pipeline(features, model)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    mix = mixture(options)
    y = write(mix, folder / "rows.npy", options.rows)
    X = np.load(folder / "rows.npy", mmap_mode="r")
    new, truth = mix.sample(10_000, seed=0)
    seen: list[float] = []
    started = time.perf_counter()
    model = fit(options, X, y, seen)
    right = float((model.predict(new.astype(np.float32)) == truth).mean())
    anonymous_peak(seen)
    return {
        "method": options.method,
        "rows": options.rows,
        "p": options.p,
        "data_gib": round(X.nbytes / 2**30, 2),
        "seconds": round(time.perf_counter() - started, 1),
        "accuracy": round(100.0 * right, 2),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "anonymous_gib": round(max(seen), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=("features", "kernel"), default="features")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--p", type=int, default=784)
    parser.add_argument("--separation", type=float, default=1.5)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--activation", default="relu")
    parser.add_argument("--kernel", default="ck")
    parser.add_argument("--ridge", type=float, default=1e-3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(options, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
