"""What a machine costs: seconds of one core to choose and fit, and to predict 500 rows, by activation and rows.

    python -m benchmarks.costs
    python -m benchmarks.costs --rows 300 --activations relu tanh
    python -m benchmarks.costs --data FOLDER --rows 1500
    python -m benchmarks.costs --data FOLDER --dataset mnist --rows 1500

The rows are handwritten digits (64 columns), or with --data images of 784 columns, where ten of the 500 rows are
ten times and ten a thousand times as long as they were. The classifier is ``DEQClassifier(activation)`` as it comes.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from sklearn.datasets import load_digits

import notsodeep as nsd
from studies import _data

NAMES = [name for name in nsd.activations.activation_names() if name not in ("affine", "hermite")]  # no parameters


def load(data: str | None, dataset: str) -> tuple[np.ndarray, np.ndarray]:
    """Return digits, or the first images of a data set."""
    if data is None:
        return load_digits(return_X_y=True)
    found = _data.load(dataset, data)
    return found.X_train[:5000].astype(float), found.y_train[:5000]


def cost(activation: str, rows: int, data: str | None, dataset: str) -> tuple[float, float, float]:
    """Return the seconds of the processor of a fit and of 500 predictions, and the accuracy on rows as they are."""
    X, y = load(data, dataset)
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[:rows], order[-500:]
    factors = np.ones(500)
    if data is not None:
        factors[:20] = np.repeat([10.0, 1000.0], 10)
    start = time.process_time()
    model = nsd.DEQClassifier(activation).fit(X[train], y[train])
    fitted = time.process_time()
    right = model.predict(factors[:, None] * X[test]) == y[test]
    return fitted - start, time.process_time() - fitted, float(right[factors == 1.0].mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 1200])
    parser.add_argument("--activations", nargs="+", default=NAMES)
    parser.add_argument("--data", help="folder of the images", default=None)
    parser.add_argument("--dataset", default="fashion_mnist", choices=("mnist", "fashion_mnist"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for rows in options.rows:
        for activation in options.activations:
            fit, predict, score = cost(activation, rows, options.data, options.dataset)
            print(
                f"{activation:10} {rows:6} rows: fit {fit:6.2f} s, predict {predict:6.2f} s, {100 * score:.1f} %",
                flush=True,
            )
