"""Costs of the equivalents: coefficients, the operator's product as a ratio to two passes over X, solves, distances.

    python benchmarks/equivalents.py [--n 50000] [--p 784] [--repeats 7] [--threads 1]

The product must read X twice (X'v, then X times that); the ratio says what everything else adds. Times are the best of
``repeats`` runs, wall clock.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import numpy as np
import torch

import notsodeep as nsd

from ._clock import elapsed

ACTIVATIONS = ("tanh", "arctan", "relu", "leaky_relu", "elu", "silu")


def best(action: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest run."""
    return min(elapsed(action) for _ in range(repeats))


def coefficient_times(repeats: int) -> dict[str, float]:
    """Milliseconds of coefficients() at a scale not seen before, so that no cache helps; worst over kernels."""
    fresh = iter(np.linspace(0.9, 1.1, 100_000))

    def worst(network: nsd.DEQ | nsd.ENN) -> float:
        return max(
            best(lambda k=kernel: nsd.coefficients(network, float(next(fresh)), k), repeats)
            for kernel in ("ck", "ntk", "ntk_frozen")
        )

    out = {f"DEQ {name}": worst(nsd.DEQ(name, 0.2)) for name in ACTIVATIONS}
    out |= {f"ENN {name} x 2": worst(nsd.ENN([name, name])) for name in ACTIVATIONS}
    return {name: round(1e3 * seconds, 3) for name, seconds in out.items()}


def product_times(n: int, p: int, repeats: int) -> dict[str, float]:
    """Milliseconds of two bare passes over X and of the operator's product, and their ratio."""
    mix = nsd.GaussianMixture.two_class(p)
    X, y = mix.sample(n, seed=0)
    eq = nsd.equivalent(nsd.DEQ("relu", 0.2), nsd.MixtureStatistics.from_mixture(mix, X, y))
    rows, v = torch.from_numpy(X), torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    passes = best(lambda: rows @ (rows.T @ v), repeats)
    product = best(lambda: eq @ v, repeats)
    return {"two_passes_ms": 1e3 * passes, "product_ms": 1e3 * product, "ratio": product / passes}


def solve_times(n: int, p: int, repeats: int) -> dict[str, float]:
    """Seconds of solve, logdet and the ten largest eigenvalues, and the relative residual of the solve."""
    mix = nsd.GaussianMixture.two_class(p)
    X, y = mix.sample(n, seed=0)
    eq = nsd.equivalent(nsd.DEQ("relu", 0.2), nsd.MixtureStatistics.from_mixture(mix, X, y), "ntk")
    v = np.random.default_rng(0).standard_normal(n)
    z = eq.solve(v, 1e-3)
    return {
        "solve_s": best(lambda: eq.solve(v, 1e-3), repeats),
        "logdet_s": best(lambda: eq.logdet(1e-3), repeats),
        "ten_eigenvalues_s": best(lambda: eq.eigenvalues(10), repeats),
        "solve_residual": float(np.linalg.norm(eq @ z + 1e-3 * z - v) / np.linalg.norm(v)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=50_000)
    parser.add_argument("--p", type=int, default=784)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    report = {
        "threads": torch.get_num_threads(),
        "coefficients_ms": coefficient_times(options.repeats),
        f"product n={options.n} p={options.p}": product_times(options.n, options.p, options.repeats),
        "solve n=5000 p=784": solve_times(5000, 784, max(1, options.repeats // 3)),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
