"""``make demo``: two deep equilibrium models, the shallow networks with the same kernels, a table and a report.

``notsodeep demo`` runs it; the report is one file, ``demo/report.html``.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from .._files import write_text
from ..activations import Activation, Affine, HardTanh, LeakyReLU, Thresholds
from .page import page
from .study import SIGMA_A2, Case, Size, Study, run

__all__ = ["Case", "Size", "Study", "main", "run", "short"]


def main(folder: str | Path = "demo", console: Console | None = None, *, quick: bool = False) -> Study:
    """Everything; returns what was computed. The report is ``report.html`` in ``folder``."""
    console = console or Console()
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    size = Size.quick() if quick else Size()
    console.print(
        f"Deep equilibrium models with sigma_a2 = {SIGMA_A2} on {size.points} points of the papers' mixture (dimension "
        f"{size.dimension}) and on scikit-learn's digits.\n"
    )
    found = run(size)
    console.print(_table(found))
    console.print(f"\n{gradients(found)}")
    path = target / "report.html"
    write_text(path, page(found))
    console.print(
        f"\nReport with figures: {path} ({found.wall_seconds:.0f} s, {found.cpu_seconds:.0f} s of processor time)"
    )
    return found


def gradients(found: Study) -> str:
    """One sentence on finite networks."""
    pairs = zip(found.size.gradient_widths, found.gradient_errors, strict=True)
    said = ", ".join(f"{error:.3f} at width {m}" for m, error in pairs)
    return (
        f"Gradients of real tanh DEQs, {found.size.gradient_draws} draws each: their NTK differs from the exact one by "
        f"{said} (slope {found.slope:.2f}; theory -0.5)."
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


def _table(found: Study) -> Table:
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
        table.add_row(left[3], "scaled", f"{case.plain_scaled:.1e}", "", "", "", end_section=True)
    table.caption = (
        "Kernel distance: exact conjugate kernels against the DEQ's, relative, in spectral norm. Scaled: the plain "
        "kernel times its best factor, which a readout learns by itself. On the mixture DEQ and twin "
        "are centred. Networks: random "
        f"hidden weights, readout by ridge regression, mean ± standard error over {found.size.seeds} seeds. "
        "Leaky: ReLU with right / left slope. t: one layer of ordinary units, thresholds t times the norm of the input."
    )
    table.caption_justify = "left"
    return table
