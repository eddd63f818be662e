"""``notsodeep demo``: a trained DEQ replaced and proven, a twin, and learned features, in one figure.

A DEQ is trained on the digits of scikit-learn. A small student answers for it with a promise, and its own iteration
stops as soon as the class is proven. An untrained DEQ has the kernel of one layer. A kernel machine learns which
columns of a table matter. All numbers are measured on rows that no step before has seen.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from sklearn.datasets import load_digits, make_friedman1
from torch import Tensor

import notsodeep as nsd

from ._files import atomic
from .matching.certificates import Verification
from .plots.spectrum import LIGHT, RED

NAMES = (*(f"column {i}" for i in range(1, 6)), *(f"noise {i}" for i in range(1, 11)))


class DemoSize(NamedTuple):
    """How much is computed."""

    width: int = 256
    epochs: int = 20
    steps: int = 2000
    rows: int = 500
    promise: float = 0.01


class Shown(NamedTuple):
    """What the demo measured on rows that no step before has seen."""

    accuracy: float  # of the trained DEQ
    replacement: nsd.nn.Replacement
    answered: float  # share of the rows that the student answers
    differs: float  # share of the rows on which the replacement differs from the DEQ
    proof: nsd.nn.Decision
    same: float  # share of the rows whose proven class is that of the solver
    solver_steps: Tensor
    twin: nsd.Twin  # of an untrained DEQ
    distances: Verification  # of the twin, on the digits
    plain: float  # R2 of a kernel machine on a table of which five columns matter
    learned: float  # the same with learned features
    features: np.ndarray

    def messages(self) -> dict[str, str]:
        """Return the message of each panel and its numbers."""
        twin, near, full = self.twin, self.distances, self.solver_steps
        steps, proven = mean_of(self.proof.steps), mean_of(self.proof.proven)
        certain = "if its assumption holds" if twin.certificate.assumes else "proven"
        share = float(np.diag(self.features)[:5].sum() / np.trace(self.features))
        return {
            "A small student answers for a trained DEQ": (
                f"{self.answered:.0%} of {len(full)} fresh digits; it differs on {self.differs:.1%} (promised: at most "
                f"{self.replacement.certificate.disagreement:.0%})"
            ),
            "The trained DEQ stops once its class is proven": (
                f"{steps:.1f} steps instead of {mean_of(full):.1f}; {proven:.0%} of the classes are proven, "
                f"{self.same:.0%} are those of the full solve"
            ),
            "One layer has the kernel of an untrained DEQ": (
                f"no error above {twin.bound:.1e} of the diagonal, {certain}; spectral distance on the digits "
                f"{near.distance:.0e}, of a scaled plain layer {near.plain_scaled_distance:.0e}"
            ),
            "A kernel machine learns which columns matter": (
                f"{share:.1%} of the weight on 5 of {len(NAMES)}; R2 on fresh rows {self.learned:.2f}, "
                f"without features {self.plain:.2f}"
            ),
        }


def main(folder: str | Path = "demo", console: Console | None = None, *, quick: bool = False) -> Shown:
    """Compute, print one sentence per result, write ``demo.png`` into ``folder``, and return what was measured."""
    console = console or Console()
    started, size = time.perf_counter(), DemoSize(64, 10, 400, 200, 0.03) if quick else DemoSize()
    target = Path(folder) / "demo.png"
    target.parent.mkdir(exist_ok=True)  # and no folders above it, as elsewhere
    console.print("1 of 3: training a DEQ, its student, and proving classes ...")
    trained = _trained(size)
    console.print("2 of 3: matching the kernel of a DEQ by one layer ...")
    twin = nsd.match_one_layer(nsd.DEQ("relu", sigma_a2=0.2))
    distances = twin.verify(digits()[0][:600])
    console.print("3 of 3: learning the features of a table ...")
    shown = Shown(**trained, twin=twin, distances=distances, **_learned(size))
    for message, numbers in shown.messages().items():
        console.print(f"- {message}: {numbers}.", highlight=False)
    with atomic(target) as temporary:
        draw(shown).savefig(temporary, format="png", dpi=110)
    console.print(f"Figure: {target} ({time.perf_counter() - started:.0f} s)")
    return shown


# ---- measurements ----------------------------------------------------------------------------------------


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the digits in random order, so that later rows are like earlier ones."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    return X[order] / 16.0 - 0.3, y[order]


def _trained(size: DemoSize) -> dict[str, Any]:
    """Train a DEQ on digits, and measure its student and its proofs."""
    X, y = map(torch.from_numpy, digits())
    seen, measured, fresh = X.float().split([700, 700, len(X) - 1400])
    model = nsd.nn.DEQ(nsd.DEQ("tanh", sigma_a2=0.2), X.shape[1], size.width, 10, bias=True).limit_contraction(0.9)
    nsd.nn.fit(model, (seen, y[:700]), optimiser="adam", lr=0.01, epochs=size.epochs)
    options = nsd.nn.ReplaceOptions(width=size.width // 2, steps=size.steps)
    fast = nsd.replace(model, seen, calibration=measured, disagreement=size.promise, options=options)
    with torch.no_grad():
        classes, quick = model(fresh).argmax(1), fast(fresh).argmax(1)
    proof, drift = model.decide(fresh), fast.drift()
    accuracy, differs, same = (
        mean_of(equal) for equal in (classes == y[1400:], quick != classes, proof.classes == classes)
    )
    solver_steps = model.solve(fresh).row_steps
    shares = {"accuracy": accuracy, "answered": 1.0 - drift.share, "differs": differs, "same": same}
    return {"replacement": fast, "proof": proof, "solver_steps": solver_steps} | shares


def _learned(size: DemoSize) -> dict[str, Any]:
    """Fit Friedman's first function, of five columns, beside which there are ten of noise."""
    X, y = make_friedman1(2 * size.rows, n_features=15, noise=1.0, random_state=0)
    (train, fresh), (targets, truth) = np.split(X, 2), np.split(y, 2)
    fitted = [nsd.DEQRegressor("relu", features=kind).fit(train, targets) for kind in (None, "diagonal")]
    plain, learned = (float(machine.score(fresh, truth)) for machine in fitted)
    return {"plain": plain, "learned": learned, "features": np.asarray(fitted[1].features_)}


def mean_of(values: Tensor) -> float:
    """Return the mean of the entries."""
    return float(values.double().mean())


# ---- the figure ------------------------------------------------------------------------------------------


def draw(shown: Shown) -> Figure:
    """Draw one panel for each message."""
    figure = Figure(figsize=(12.0, 8.6), layout="constrained")
    panels = figure.subplots(2, 2).flat
    shown.replacement.plot(panels[0])
    _draw_steps(panels[1], shown)
    shown.twin.plot(panels[2])
    nsd.plots.FeaturesDisplay(shown.features, NAMES).plot(panels[3], top=len(NAMES))
    for ax, (message, numbers) in zip(panels, shown.messages().items(), strict=True):
        ax.set_title(message, loc="left", fontweight="bold", pad=36)
        ax.text(0.0, 1.03, numbers.replace("; ", "\n", 1), transform=ax.transAxes)
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_steps(ax: Axes, shown: Shown) -> None:
    """Draw how many rows are done after how many steps."""
    for steps, name, colour in (
        (shown.proof.steps, "class proven", RED),
        (shown.solver_steps, "residual below the solver's tolerance", LIGHT),
    ):
        values, counts = np.unique(np.asarray(steps), return_counts=True)
        ax.bar(values, 100.0 * counts / counts.sum(), color=colour, label=name)
    ax.set(xlabel="steps of the iteration", ylabel="fresh rows (%)", ylim=(0, 125), yticks=range(0, 101, 20))
    ax.legend(frameon=False, fontsize="small")
