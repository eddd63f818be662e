"""``make demo``: two deep equilibrium models, the shallow networks with the same kernels, a table and a report.

``notsodeep demo`` runs it; the report is one file, ``demo/report.html``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from .. import report
from .._files import write_text
from ..activations import Activation, Affine, HardTanh, LeakyReLU, Thresholds
from ..matching import UniformCertificate
from ..plots import ErrorDisplay, LearningDisplay, SpectrumDisplay
from ..plots.style import COLOURS, figure_style, panels, ticks_at, word
from ..plots.twin import draw_activations
from .study import SIGMA_A2, Case, DemoSize, DemoStudy, Spectrum, run

__all__ = ["Case", "Size", "Study", "main", "run", "short"]

_SIZE = (5.4, 3.6)
_STEPS = "#1f8ac0"


def main(folder: str | Path = "demo", console: Console | None = None, *, quick: bool = False) -> DemoStudy:
    """Everything; returns what was computed. The report is ``report.html`` in ``folder``."""
    console = console or Console()
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    size = DemoSize.quick() if quick else DemoSize()
    console.print(
        f"Deep equilibrium models with sigma_a2 = {SIGMA_A2} on {size.points} points of the papers' mixture (dimension "
        f"{size.dimension}) and on scikit-learn's digits.\n"
    )
    found = run(size)
    console.print(_table(found))
    console.print(f"\n{_gradients(found)}")
    path = target / "report.html"
    write_text(path, page(found))
    console.print(
        f"\nReport with figures: {path} ({found.wall_seconds:.0f} s, {found.cpu_seconds:.0f} s of processor time)"
    )
    return found


# ---- what is printed -------------------------------------------------------------------------------------


def _gradients(found: DemoStudy) -> str:
    """One sentence on finite networks."""
    pairs = zip(found.gradients.n, found.gradients.mean, strict=True)
    said = ", ".join(f"{error:.3f} at width {m}" for m, error in pairs)
    return (
        f"Gradients of real tanh DEQs, {found.size.gradient_draws} draws each: their NTK differs from the exact one by "
        f"{said} (slope {found.gradients.slope:.2f}; theory -0.5)."
    )


def short(phi: Activation) -> str:
    """An activation in a few characters."""
    base = phi.base if isinstance(phi, Affine) and phi.gain == phi.scale == 1.0 and phi.skip == 0.0 else phi
    if isinstance(base, HardTanh):
        return f"{base.a:.3f} clip(x, ±{base.c:.3f})"
    if isinstance(base, LeakyReLU):
        return f"leaky {base.gain:.3f} / {base.slope:.3f}"
    if isinstance(phi, Affine) and phi.skip:
        return f"{phi.gain:.2f} {phi.base.name}({phi.scale:.2f}x){phi.skip:+.2f}x"
    if isinstance(base, Thresholds):
        return f"relu(w.x-t|x|), {len(base.thresholds)} t"
    return type(base).__name__ if phi.elementwise else "psi(w.x/|x|; |x|)"


def _table(found: DemoStudy) -> Table:
    width = max(found.size.widths)
    table = Table(title=f"DEQ, its shallow twin, plain network of the twin's depth; width {width}")
    table.title_justify = "left"
    table.add_column("data, DEQ\nand its twin", no_wrap=True)
    for heading in ("", "kernel\ndistance", "accuracy\n%", "a batch\nms", "speed-up"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for case in found.cases:
        layers = [short(phi) for phi in case.twin.network.activations]
        left = [f"{case.data}, {case.activation}", *layers, "", ""]
        shown = ("network", "kernel distance", "accuracy %", "a batch ms", "speed-up")
        for first, row in zip(left, case.rows(), strict=False):
            table.add_row(first, *(row[name] for name in shown))
        scaled = f"{case.verified.plain_scaled_distance:.1e}"
        table.add_row(left[3], "scaled", scaled, "", "", "", end_section=True)
    table.caption = (
        "Kernel distance: exact conjugate kernels against the DEQ's, relative, in spectral norm. Scaled: the plain "
        "kernel times its best factor, which a readout learns by itself. On the mixture DEQ and twin "
        "are centred. Networks: random "
        f"hidden weights, readout by ridge regression, mean ± standard error over {found.size.seeds} seeds. "
        "Leaky: ReLU with right / left slope. t: one layer of ordinary units, thresholds t times the norm of the input."
    )
    table.caption_justify = "left"
    return table


# ---- the report ------------------------------------------------------------------------------------------


def page(found: DemoStudy) -> str:
    """The HTML of the report."""
    size = found.size
    with figure_style():
        figures = {
            "activations": [_activations(case, i) for i, case in enumerate(found.cases[:2])],
            "spectra": [_spectrum(s, i) for i, s in enumerate(found.spectra)],
            "accuracies": [_accuracy(case, i) for i, case in enumerate(found.cases)],
            "learning": [_learning(found)],
            "convergence": [_convergence(found)],
        }
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
        report.row_of(figures["activations"]),
        report.heading("Spectra of exact kernels on the mixture, and what is predicted without sampling"),
        report.table(*_spectral_numbers(found)),
        report.row_of(figures["spectra"]),
        report.heading("Accuracy against width"),
        report.row_of(figures["accuracies"]),
        report.heading("What they will learn, predicted before training"),
        report.row_of(figures["learning"]),
        report.heading("Real networks approach the exact kernel"),
        report.row_of(figures["convergence"]),
        report.paragraph(
            f"Computed in {found.wall_seconds:.0f} s ({found.cpu_seconds:.0f} s of processor time) by: notsodeep demo"
        ),
    ]
    return report.document("notsodeep: deep equilibrium models and their shallow twins", parts)


def _numbers(found: DemoStudy) -> tuple[list[str], list[list[str]]]:
    cases = [({"data, DEQ": f"{c.data}, {word(c.activation)}"} | row) for c in found.cases for row in c.rows()]
    return list(cases[0]), [list(row.values()) for row in cases]


def _spectral_numbers(found: DemoStudy) -> tuple[list[str], list[list[str]]]:
    headings = ["DEQ, kernel", "distance of twin", "of plain network", "with the best factor"]
    rows = []
    for s in found.spectra:
        top, predicted = s.eigenvalues["DEQ"][-2:], [spike.value for spike in s.law.spikes[-2:]]
        largest = [", ".join(f"{v:.2f}" for v in values) for values in (top, predicted)]
        distances = (s.verified.distance, s.verified.plain_distance, s.verified.plain_scaled_distance)
        rows.append([_name(s), *(f"{distance:.1e}" for distance in distances), *largest])
    return [*headings, "largest eigenvalues", "predicted"], rows


def _name(s: Spectrum) -> str:
    return f"{word(s.activation)}, {s.twin.kernel.upper()}"


def _activations(case: Case, index: int) -> str:
    drawn, ax = panels(_SIZE)
    draw_activations(ax, case.twin)
    uniform = isinstance(case.twin.certificate, UniformCertificate)
    proof = f"error below {case.twin.bound:.0e}, proven" if uniform else f"equations solved to {case.twin.residual:.0e}"
    caption = f"{word(case.activation)}: {case.twin.reason}; {proof}."
    return report.figure(drawn, caption, f"activation{index}")


def _spectrum(s: Spectrum, index: int) -> str:
    drawn, ax = panels(_SIZE)
    display = SpectrumDisplay.from_eigenvalues(s.eigenvalues["DEQ"], s.law).plot(ax)
    low, high = display.bulk
    values = s.eigenvalues["twin"]
    counts, edges = np.histogram(values[(values >= low) & (values <= high)], 60)
    ax.stairs(counts / (len(values) * np.diff(edges)), edges, color=_STEPS, linewidth=1.1)
    caption = (
        f"{_name(s)}: eigenvalues of the exact kernel of the DEQ (bars, dots), "
        f"predicted density (line) and isolated eigenvalues (arrows), the twin's (blue steps); Kolmogorov distance "
        f"{display.distance:.3f}. The twin's kernel is at {s.verified.distance:.1e}, the plain network's at "
        f"{s.verified.plain_distance:.1e}."
    )
    return report.figure(drawn, caption, f"spectrum{index}")


def _accuracy(case: Case, index: int) -> str:
    drawn, ax = panels(_SIZE)
    widths = sorted(case.trained)
    for shift, (name, colour) in zip((0.96, 1.0, 1.04), COLOURS.items(), strict=True):
        means, errors = np.array([case.trained[m].summary(name, "accuracy") for m in widths]).T * 100
        ax.errorbar([m * shift for m in widths], means, errors, marker="o", capsize=3, color=colour, label=name)
    ax.set_xscale("log", base=2)
    ticks_at(ax, widths)
    ax.set(xlabel="width", ylabel="test accuracy (%)")
    ax.legend()
    caption = f"{case.data}, {word(case.activation)}: readouts on random features, mean and standard error over seeds."
    return report.figure(drawn, caption, f"accuracy{index}")


def _learning(found: DemoStudy) -> str:
    drawn, ax = panels(_SIZE)
    LearningDisplay.from_curve(found.learning, found.learned).plot(ax)
    caption = (
        "Two classes in dimension 200 that differ mostly in the size of their covariances: lines are predicted, points "
        "measured by kernel regression with the centred DEQs. An odd activation does not see covariances; ReLU does."
    )
    return report.figure(drawn, caption, "learning")


def _convergence(found: DemoStudy) -> str:
    drawn, ax = panels(_SIZE)
    ErrorDisplay([found.gradients]).plot(ax)
    ax.set(xlabel="width", ylabel="relative error of the NTK")
    caption = f"Gradients of finite tanh DEQs against the exact NTK; slope {found.gradients.slope:.2f}, theory -0.5."
    return report.figure(drawn, caption, "convergence")
