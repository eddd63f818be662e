"""What a machine costs: seconds of one core to choose and fit, and to predict 500 rows, by activation and rows.

    python -m benchmarks.costs
    python -m benchmarks.costs --rows 300 --activations relu tanh

The rows are handwritten digits (64 columns), the classifier is ``DEQClassifier(activation)`` as it comes.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from sklearn.datasets import load_digits

import notsodeep as nsd


def cost(activation: str, rows: int) -> tuple[float, float, float]:
    """Return the seconds of the processor of a fit and of 500 predictions, and the accuracy."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[:rows], order[-500:]
    start = time.process_time()
    model = nsd.DEQClassifier(activation).fit(X[train], y[train])
    fitted = time.process_time()
    score = model.score(X[test], y[test])
    return fitted - start, time.process_time() - fitted, score


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 1200])
    parser.add_argument("--activations", nargs="+", default=["relu", "sin", "erf", "gelu", "tanh", "silu", "hard_tanh"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for rows in options.rows:
        for activation in options.activations:
            fit, predict, score = cost(activation, rows)
            print(
                f"{activation:10} {rows:6} rows: fit {fit:6.2f} s, predict {predict:6.2f} s, {100 * score:.1f} %",
                flush=True,
            )
