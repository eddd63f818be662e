"""Matching: time of a match, residual, and the distances of the exact kernels: twin, plain network, scaled plain one.

    python -m benchmarks.matching [--p 1000] [--n 800] [--sigma-a2 0.2] [--repeats 5] [--threads 1]

Times are the best of ``repeats`` runs at scales not seen before, so that no cache helps. Distances are relative, in
spectral norm, to the DEQ's exact kernel on the papers' mixture (seed 0).
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch

import notsodeep as nsd

from ._clock import elapsed

ACTIVATIONS = (
    *("tanh", "arctan", "sigmoid", "relu", "leaky_relu", "elu", "silu", "gelu", "softplus"),
    *("erf", "sin", "cos", "hard_tanh", "selu", "mish", "hard_swish"),
)
ODD = ("tanh", "arctan", "sigmoid")  # whose two families of one layer are compared
KERNELS = ("ck", "ntk", "ntk_frozen")


def match_milliseconds(deq: nsd.DEQ, tau0: float, kernel: str, family: str, repeats: int) -> float:
    """The fastest of several matches at neighbouring scales."""
    scales = [tau0 * (1.0 + 1e-6 * (i + 1)) for i in range(repeats)]
    return round(1e3 * min(elapsed(lambda scale=scale: nsd.match(deq, scale, kernel, family)) for scale in scales), 2)


def row(
    name: str, kernel: str, family: str, sigma_a2: float, statistics: nsd.MixtureStatistics, X: np.ndarray, repeats: int
) -> dict:
    """One activation, kernel and family."""
    deq = nsd.DEQ(name, sigma_a2)
    twin = nsd.match(deq, statistics, kernel, family)
    report = twin.verify(X)
    return {
        "activation": name,
        "kernel": kernel,
        "asked": family,
        "family": twin.family,
        "depth": twin.depth,
        "rates": twin.learning_rates is not None,
        "residual": twin.residual,
        "distance": report.distance,
        "plain": report.plain_distance,
        "plain_scaled": report.plain_scaled_distance,
        "gain_scaled": report.plain_scaled_distance / report.distance,
        "match_ms": match_milliseconds(deq, statistics.tau0, kernel, family, repeats),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--p", type=int, default=1000)
    parser.add_argument("--n", type=int, default=800)
    parser.add_argument("--sigma-a2", type=float, default=0.2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    mixture = nsd.GaussianMixture.two_class(arguments.p)
    X, y = mixture.sample(arguments.n, seed=0)
    statistics = nsd.MixtureStatistics.from_mixture(mixture, X, y)
    rows = [
        row(name, kernel, family, arguments.sigma_a2, statistics, X, arguments.repeats)
        for name in ACTIVATIONS
        for kernel in KERNELS
        for family in ("auto", *(("hard_tanh", "skip") if name in ODD else ()))
    ]
    document = {
        "command": "python -m benchmarks.matching",
        "settings": vars(arguments),
        "matches": rows,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
