"""``make demo``: two deep equilibrium models, their exact kernels, and the shallow networks that have the same ones.

Run ``python -m notsodeep.demo``; a table is printed and two figures are written to ``./demo``.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table

import notsodeep as nsd
from notsodeep.activations import Activation, Affine, HardTanh, LeakyReLU

DIMENSION, POINTS, SIGMA_A2 = 1000, 800, 0.2
WIDTHS, DRAWS = (64, 256, 1024), 5
KERNELS = ("ck", "ntk")
COLOURS = {"DEQ": "0.75", "twin": "#0b6fa4", "plain": "#d1603d"}


@dataclass(frozen=True)
class Result:
    """One DEQ and one kernel: the twin, the distances, and what the figure needs."""

    name: str
    kernel: str
    twin: nsd.Twin
    distances: dict[str, float]
    eigenvalues: dict[str, np.ndarray]


def main(folder: str | Path = "demo", console: Console | None = None) -> list[Result]:
    """Compute, print, draw; returns the results."""
    console = console or Console()
    started = time.perf_counter()
    mixture = nsd.GaussianMixture.two_class(DIMENSION)
    X, y = mixture.sample(POINTS, seed=0)
    statistics = nsd.MixtureStatistics.from_mixture(mixture, X, y)
    console.print(
        f"Two Gaussian classes, {POINTS} points in dimension {DIMENSION}; "
        f"deep equilibrium models with sigma_a2 = {SIGMA_A2}, centred.\n"
    )
    results = [result for name in ("tanh", "relu") for result in _design(name, statistics, X)]
    console.print(_table(results))
    deq = nsd.DEQ("tanh", SIGMA_A2).centred(statistics.tau0)
    errors = _finite_width(deq, X[:60])
    _report_finite_width(console, errors)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    _draw_spectra(results, target / "spectra.png")
    _draw_convergence(errors, target / "finite_width.png")
    console.print(
        f"\nFigures: {target / 'spectra.png'} and {target / 'finite_width.png'} "
        f"({time.perf_counter() - started:.0f} s in all)"
    )
    return results


def _design(name: str, statistics: nsd.MixtureStatistics, X: np.ndarray) -> list[Result]:
    """Match both kernels of one DEQ, and compare exact kernels on the points."""
    deq = nsd.DEQ(name, SIGMA_A2)
    exact = nsd.kernels_of(deq.centred(statistics.tau0), X, kinds=KERNELS)
    results = []
    for kernel, truth in exact.items():
        twin = nsd.match(deq, statistics, kernel=kernel)
        matrices = {
            "DEQ": truth,
            "twin": nsd.kernels_of(twin.network, X, kinds=(kernel,), learning_rates=twin.learning_rates)[kernel],
            "plain": nsd.kernels_of(twin.plain, X, kinds=(kernel,))[kernel],
        }
        size = np.abs(np.linalg.eigvalsh(truth)).max()
        distances = {k: float(np.abs(np.linalg.eigvalsh(m - truth)).max() / size) for k, m in matrices.items()}
        results.append(Result(name, kernel, twin, distances, {k: np.linalg.eigvalsh(m) for k, m in matrices.items()}))
    return results


def _finite_width(deq: nsd.DEQ, X: np.ndarray) -> dict[str, list[float]]:
    """Relative error of the NTK of one real network against the exact one, by width; the mean over draws."""
    exact = nsd.ntk(deq, X)
    errors = [
        [np.linalg.norm(nsd.finite_ntk(deq, X, width=m, seed=s) - exact, 2) for s in range(DRAWS)] for m in WIDTHS
    ]
    return {"mean": (np.mean(errors, axis=1) / np.linalg.norm(exact, 2)).tolist()}


# ---- what is printed -------------------------------------------------------------------------------------


def _table(results: list[Result]) -> Table:
    table = Table(title="Exact kernels of the DEQ and of explicit networks", title_justify="left")
    columns: tuple[tuple[str, Literal["left", "right"]], ...] = (
        ("DEQ", "left"),
        ("kernel", "left"),
        ("its shallow twin", "left"),
        ("equations\nsolved to", "right"),
        ("distance\nof twin", "right"),
        ("of plain\nnetwork", "right"),
    )
    for heading, justify in columns:
        table.add_column(heading, justify=justify)
    for r in results:
        table.add_row(
            r.name,
            r.kernel.upper(),
            "\n".join(_short(phi) for phi in r.twin.network.activations) + _rates(r.twin),
            f"{r.twin.residual:.0e}",
            f"{r.distances['twin']:.1e}",
            f"{r.distances['plain']:.1e}",
        )
    table.caption = (
        "One line per layer (leaky ReLU: right / left slope), then learning rates. Distances: exact infinite-width "
        "kernels against the DEQ's on these points, relative, in spectral norm. Plain network: the twin's depth, "
        "the DEQ's own activation, centred."
    )
    table.caption_justify = "left"
    return table


def _short(phi: Activation) -> str:
    base = phi.base if isinstance(phi, Affine) and phi.gain == phi.scale == 1.0 and phi.skip == 0.0 else phi
    if isinstance(base, HardTanh):
        return f"{base.a:.3f} clip(x, ±{base.c:.3f})"
    if isinstance(base, LeakyReLU):
        return f"leaky ReLU {base.gain:.3f} / {base.slope:.3f}"
    return type(base).__name__


def _rates(twin: nsd.Twin) -> str:
    if twin.learning_rates is None:
        return ""
    return "\nrates " + ", ".join(f"{rate:.2f}" for rate in twin.learning_rates)


def _report_finite_width(console: Console, errors: dict[str, list[float]]) -> None:
    pairs = ", ".join(f"{error:.3f} at width {m}" for m, error in zip(WIDTHS, errors["mean"], strict=True))
    slope = np.polyfit(np.log(WIDTHS), np.log(errors["mean"]), 1)[0]
    console.print(
        f"\nReal tanh DEQs of finite width, gradients through the implicit function theorem, {DRAWS} draws each: "
        f"the NTK differs from the exact one by {pairs} (slope {slope:.2f}; theory -0.5)."
    )


# ---- what is drawn ---------------------------------------------------------------------------------------


def _draw_spectra(results: list[Result], path: Path) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 6.8), layout="constrained")
    for ax, result in zip(axes.flat, results, strict=True):
        _draw_spectrum(ax, result)
    axes.flat[0].legend(frameon=False)
    figure.suptitle(f"Eigenvalues of exact kernels, {POINTS} points of a two-class mixture in dimension {DIMENSION}")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_spectrum(ax: Axes, result: Result) -> None:
    """Bulk as histograms, isolated eigenvalues as marks on the axis."""
    low = min(values[0] for values in result.eigenvalues.values())
    high = max(np.quantile(values, 0.98) for values in result.eigenvalues.values())
    bins = np.linspace(low, high + 0.35 * (high - low), 70)
    labels = {"DEQ": "DEQ", "twin": "its shallow twin", "plain": "plain network"}
    for label, values in result.eigenvalues.items():
        filled = label == "DEQ"
        ax.hist(
            values, bins=bins.tolist(), density=True, label=labels[label], color=COLOURS[label],
            histtype="stepfilled" if filled else "step", linewidth=1.6, linestyle="--" if label == "twin" else "-",
        )  # fmt: skip
    top = {label: values[-2:] for label, values in result.eigenvalues.items()}
    text = "\n".join(f"{labels[k]}: {v[1]:.2f}, {v[0]:.2f}" for k, v in top.items())
    ax.text(0.98, 0.72, f"two largest\n{text}", transform=ax.transAxes, ha="right", va="top", fontsize=8)
    ax.set_title(
        f"{result.name}, {result.kernel.upper()}: twin at distance {result.distances['twin']:.1e}", fontsize=10
    )
    ax.set(xlabel="eigenvalue", ylabel="density")
    ax.spines[["top", "right"]].set_visible(False)


def _draw_convergence(errors: dict[str, list[float]], path: Path) -> None:
    figure, ax = plt.subplots(figsize=(5.2, 3.8), layout="constrained")
    guide = [errors["mean"][0] * math.sqrt(WIDTHS[0] / m) for m in WIDTHS]
    ax.loglog(WIDTHS, guide, color="0.6", linestyle=":", label="width$^{-1/2}$")
    ax.loglog(WIDTHS, errors["mean"], marker="o", color=COLOURS["twin"], label=f"mean of {DRAWS} networks")
    ax.set(xlabel="width", ylabel="relative error of the NTK", title="Finite tanh DEQs approach the exact NTK")
    ax.set_xticks(WIDTHS, [str(m) for m in WIDTHS])
    ax.set_yticks([0.05, 0.1, 0.2, 0.4], ["0.05", "0.1", "0.2", "0.4"])
    ax.minorticks_off()
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    import matplotlib

    matplotlib.use("Agg")
    main()
