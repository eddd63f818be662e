"""Time of a predicted spectrum on a grid of 2,000 points: python benchmarks/spectra.py

Two isotropic classes (closed sums) and ten full covariances with p = 784 (p x p inverses).
"""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table

import notsodeep as nsd

from ._clock import elapsed

POINTS = 2000


def ten_full_covariances(p: int = 784, classes: int = 10) -> nsd.GaussianMixture:
    """Wishart covariances with eigenvalues that spread over two decades, without common eigenvectors."""
    rng = np.random.default_rng(0)
    covariances = []
    for _ in range(classes):
        root = rng.standard_normal((p, 2 * p)) * np.linspace(0.5, 1.5, 2 * p)
        covariances.append(root @ root.T / (2 * p))
    return nsd.GaussianMixture(0.2 * rng.standard_normal((classes, p)), covariances)


def grid(mix: nsd.GaussianMixture, n: int) -> np.ndarray:
    """The law and its density on the grid."""
    law = nsd.spectral_law(nsd.DEQ("relu", sigma_a2=0.2), mix, n=n)
    density: np.ndarray = law.density(np.linspace(law.support[0][0], law.support[-1][1], POINTS))
    return density


def main() -> None:
    table = Table(title=f"predicted law and density on {POINTS} points")
    for column in ("mixture", "p", "n", "seconds", "target"):
        table.add_column(column, justify="left" if column == "mixture" else "right")
    two, ten = nsd.GaussianMixture.two_class(1000), ten_full_covariances()
    grid(two, 100)  # imports and tables of the kernels
    for n in (800, 2000):
        table.add_row("two isotropic classes", "1000", str(n), f"{elapsed(lambda n=n: grid(two, n)):.2f}", "< 2")
    for n in (500, 2000):
        table.add_row("ten full covariances", "784", str(n), f"{elapsed(lambda n=n: grid(ten, n)):.2f}", "< 20")
    Console().print(table)


if __name__ == "__main__":
    main()
