"""The report of the demo: its figures and its text."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import report
from ..matching import UniformCertificate
from ..plots import LearningDisplay, SpectrumDisplay
from .study import Case, Spectrum, Study

_COLOURS = {"DEQ": "#7b8794", "twin": "#1f8ac0", "plain": "#e07a4f"}
_NAMES = {"tanh": "tanh", "relu": "ReLU"}
_SIZE = (5.4, 3.6)


def page(found: Study) -> str:
    """The HTML of the report."""
    size = found.size
    parts = [
        report.paragraph(
            "A deep equilibrium model (DEQ) iterates one layer to its fixed point. In high dimension its kernels "
            "depend on a few numbers, and a shallow explicit network, its twin, can be given the same ones. Here are "
            f"two DEQs with their twins, on {size.points} points of the papers' two-class mixture in dimension "
            f"{size.dimension} and on the digits of scikit-learn."
        ),
        report.heading("DEQ, twin and plain network"),
        report.table(*_numbers(found)),
        report.paragraph(
            "Kernel distance: exact conjugate kernels against the DEQ's, relative, in spectral norm. Accuracy on data "
            f"kept apart; width {max(size.widths)}, mean and standard error over {size.seeds} seeds, readouts by ridge "
            "regression. The plain network has the twin's depth and the DEQ's activation; most of its distance may be "
            "a common factor, so the distance with the best factor stands beside it. On the mixture DEQ and twin are "
            "centred: the activation is shifted so that its mean is zero. Times depend on this machine."
        ),
        report.heading("The activations"),
        report.row_of([_activations(case, i) for i, case in enumerate(found.cases[:2])]),
        report.heading("Spectra of exact kernels on the mixture, and what is predicted without sampling"),
        report.table(*_spectral_numbers(found)),
        report.row_of([_spectrum(s, i) for i, s in enumerate(found.spectra)]),
        report.heading("Accuracy against width"),
        report.row_of([_accuracy(case, i) for i, case in enumerate(found.cases)]),
        report.heading("What they will learn, predicted before training"),
        report.row_of([_learning(found)]),
        report.heading("Real networks approach the exact kernel"),
        report.row_of([_convergence(found)]),
        report.paragraph(
            f"Computed in {found.wall_seconds:.0f} s ({found.cpu_seconds:.0f} s of processor time) by: notsodeep demo"
        ),
    ]
    return report.document("notsodeep: deep equilibrium models and their shallow twins", parts)


# ---- tables ----------------------------------------------------------------------------------------------


def _numbers(found: Study) -> tuple[list[str], list[list[str]]]:
    cases = [({"data, DEQ": f"{c.data}, {_NAMES[c.activation]}"} | row) for c in found.cases for row in c.rows()]
    return list(cases[0]), [list(row.values()) for row in cases]


def _spectral_numbers(found: Study) -> tuple[list[str], list[list[str]]]:
    headings = ["DEQ, kernel", "distance of twin", "of plain network", "with the best factor"]
    rows = []
    for s in found.spectra:
        top, predicted = s.eigenvalues["DEQ"][-2:], [spike.value for spike in s.law.spikes[-2:]]
        largest = [", ".join(f"{v:.2f}" for v in values) for values in (top, predicted)]
        name = f"{_NAMES[s.activation]}, {s.kernel.upper()}"
        rows.append([name, *(f"{distance:.1e}" for distance in s.distances), *largest])
    return [*headings, "largest eigenvalues", "predicted"], rows


# ---- figures ---------------------------------------------------------------------------------------------


def _axes() -> tuple[Figure, Axes]:
    drawn, ax = plt.subplots(figsize=_SIZE, layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    return drawn, ax


def _activations(case: Case, index: int) -> str:
    drawn, ax = _axes()
    x = np.linspace(-3, 3, 601)
    uniform = isinstance(case.twin.certificate, UniformCertificate)
    whose = "DEQ" if uniform else "DEQ, centred"
    ax.plot(x, case.twin.implicit.activation(x), color=_COLOURS["DEQ"], linewidth=4, alpha=0.6, label=whose)
    styles = ("-", "--")
    for i, phi in enumerate(case.twin.network.activations):
        name = "twin" if case.twin.depth == 1 else f"twin, layer {i + 1}"
        ax.plot(x, phi.at_norm(x, 1.0), color=_COLOURS["twin"], linestyle=styles[i % 2], label=name)
    ax.legend(frameon=False)
    ax.set_xlabel("x")
    proof = f"error below {case.twin.bound:.0e}, proven" if uniform else f"equations solved to {case.twin.residual:.0e}"
    caption = f"{_NAMES[case.activation]}: {case.twin.reason}; {proof}."
    return report.figure(drawn, caption, f"activation{index}")


def _learning(found: Study) -> str:
    drawn, ax = _axes()
    LearningDisplay.from_curve(found.learning, found.learned).plot(ax)
    caption = (
        "Two classes in dimension 200 that differ mostly in the size of their covariances: lines are predicted, points "
        "measured by kernel regression with the centred DEQs. An odd activation does not see covariances; ReLU does."
    )
    return report.figure(drawn, caption, "learning")


def _spectrum(s: Spectrum, index: int) -> str:
    drawn, ax = _axes()
    display = SpectrumDisplay.from_eigenvalues(s.eigenvalues["DEQ"], s.law).plot(ax)
    _overlay(ax, s.eigenvalues["twin"], display.bulk)
    caption = (
        f"{_NAMES[s.activation]}, {s.kernel.upper()}: eigenvalues of the exact kernel of the DEQ (bars, dots), "
        f"predicted density (line) and isolated eigenvalues (arrows), the twin's (blue steps); Kolmogorov distance "
        f"{display.distance:.3f}. "
        f"The twin's kernel is at {s.distance:.1e}, the plain network's at {s.plain_distance:.1e}."
    )
    return report.figure(drawn, caption, f"spectrum{index}")


def _overlay(ax: Axes, eigenvalues: np.ndarray, bulk: tuple[float, float]) -> None:
    """The twin's bulk as steps over the bars of the DEQ's."""
    inside = eigenvalues[(eigenvalues >= bulk[0]) & (eigenvalues <= bulk[1])]
    counts, edges = np.histogram(inside, 60)
    density = counts / (len(eigenvalues) * np.diff(edges))
    ax.stairs(density, edges, color=_COLOURS["twin"], linewidth=1.1)


def _accuracy(case: Case, index: int) -> str:
    drawn, ax = _axes()
    widths = sorted(case.trained)
    for shift, name in zip((0.96, 1.0, 1.04), _COLOURS, strict=True):
        means, errors = np.array([case.trained[m].summary(name, "accuracy") for m in widths]).T * 100
        at = [m * shift for m in widths]
        ax.errorbar(at, means, errors, marker="o", ms=4, capsize=3, color=_COLOURS[name], label=name)
    ax.set_xscale("log", base=2)
    ax.set_xticks(widths, [str(m) for m in widths])
    ax.minorticks_off()
    ax.set(xlabel="width", ylabel="test accuracy (%)")
    ax.legend(frameon=False)
    caption = (
        f"{case.data}, {_NAMES[case.activation]}: readouts on random features, mean and standard error over seeds."
    )
    return report.figure(drawn, caption, f"accuracy{index}")


def _convergence(found: Study) -> str:
    drawn, ax = _axes()
    widths, errors = found.size.gradient_widths, found.gradient_errors
    guide = [errors[0] * math.sqrt(widths[0] / m) for m in widths]
    ax.loglog(widths, guide, color=_COLOURS["DEQ"], linestyle=":", label="width$^{-1/2}$")
    ax.loglog(widths, errors, marker="o", color=_COLOURS["twin"], label="tanh DEQs")
    ax.set_xticks(widths, [str(m) for m in widths])
    ticks = [t for t in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if 0.7 * min(errors) < t < 1.4 * max(errors)]
    ax.set_yticks(ticks, [str(t) for t in ticks])
    ax.minorticks_off()
    ax.set(xlabel="width", ylabel="relative error of the NTK")
    ax.legend(frameon=False)
    caption = f"Gradients of finite tanh DEQs against the exact NTK; slope {found.slope:.2f}, theory -0.5."
    return report.figure(drawn, caption, "convergence")
