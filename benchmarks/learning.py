"""How near predicted learning is, quantity by quantity: exact kernels on sampled data sets beside the prediction."""

from __future__ import annotations

import warnings

import numpy as np
from rich.console import Console
from rich.table import Table

import notsodeep as nsd
from notsodeep.errors import ConcentrationWarning

DRAWS, TESTS, RIDGE = 12, 1000, 0.01
RELU, TANH, MIX = nsd.DEQ("relu", 0.2), nsd.DEQ("tanh", 0.2), nsd.GaussianMixture.two_class
SETTINGS = (
    ("papers' mixture, ReLU", RELU, MIX(400), 320, "ck"),
    ("papers' mixture, tanh", TANH, MIX(400), 320, "ck"),
    ("means 10, tanh", TANH, MIX(400, mu=10.0, cov=6.0), 400, "ck"),
    ("means 10, ReLU", RELU, MIX(400, mu=10.0, cov=6.0), 400, "ck"),
    ("means 2, ReLU, p = 400", RELU, MIX(400, mu=2.0, cov=4.0), 400, "ntk"),
    ("means 2, ReLU, p = 60", RELU, MIX(60, mu=2.0, cov=4.0), 80, "ntk"),
    ("means 2, tanh, p = 60", TANH, MIX(60, mu=2.0, cov=4.0), 80, "ntk"),
    ("no means, 1 and 4, ReLU", RELU, nsd.GaussianMixture(np.zeros((2, 400)), [1.0, 4.0]), 400, "ntk"),
)


def one_draw(network: nsd.DEQ, mix: nsd.GaussianMixture, n: int, kernel: str, seed: int) -> list[float]:
    """Accuracy, squared error, training error, and the mean and the variance of the first score in class 0."""
    exact = {"ck": nsd.ck, "ntk": nsd.ntk}[kernel]
    (X, y), (Z, labels) = mix.sample(n, seed=2 * seed), mix.sample(TESTS, seed=2 * seed + 1)
    targets, K = 2.0 * np.eye(2) - 1.0, exact(network, X)
    gamma = RIDGE * float(np.diag(K).mean())
    weights = np.linalg.solve(K + gamma * np.eye(n), targets[y])
    scores = exact(network, Z, X) @ weights
    first = scores[labels == 0, 0]
    error, training = ((scores - targets[labels]) ** 2).mean(), ((gamma * weights) ** 2).mean()
    return [float(v) for v in ((scores.argmax(1) == labels).mean(), error, training, first.mean(), first.var())]


def main() -> None:
    """Print the deviation of measured means from predictions, with their standard errors."""
    table = Table(title=f"measured minus predicted, ridge {RIDGE}, {DRAWS} data sets (p = 60: {10 * DRAWS})")
    for column in ("setting", "accuracy, points", "error, %", "training error, %", "mean score", "its variance, %"):
        table.add_column(column)
    for name, network, mix, n, kernel in SETTINGS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConcentrationWarning)
            told = nsd.predict_learning(network, mix, n=n, kernel=kernel, ridge=RIDGE)  # type: ignore[arg-type]
        draws = DRAWS if mix.p > 60 else 10 * DRAWS
        rows = np.array([one_draw(network, mix, n, kernel, seed) for seed in range(draws)])
        predicted = [told.accuracy, told.mse, told.training_error, told.means[0, 0], told.covariances[0, 0, 0]]
        units = (0.01, told.mse / 100, told.training_error / 100, 1.0, told.covariances[0, 0, 0] / 100)
        cells = [
            f"{(rows[:, k].mean() - p) / u:+.3g} ± {rows[:, k].std() / draws**0.5 / u:.2g}"
            for k, (p, u) in enumerate(zip(predicted, units, strict=True))
        ]
        table.add_row(name, *cells)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
